"""kit port, kit notebook, kit code."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli.runs import RunName, ThisRun

if TYPE_CHECKING:
    from kit.hosts.status import Status
    from kit.sessions.node_steps import JobNode

Local = Annotated[
    int | None,
    typer.Option(
        "--local",
        "-l",
        min=0,
        max=65535,
        help="Port of this machine. 0 means any free port.",
        show_default="kit port: the same number if it is free; else any free port",
    ),
]
Node = Annotated[
    str | None,
    typer.Option(
        "--node", help="A node, or a role, which means the role's first node; default: the first node of the job."
    ),
]


def port(
    run: ThisRun,
    port: Annotated[
        str,
        typer.Argument(
            metavar="PORT[:NAME]",
            help="PORT: a number, or the name that a role gives the port. NAME: a node, or a role, which means its first node.",
        ),
    ],
    local: Local = None,
) -> None:
    """Forward a port of this machine to a port of a running job's node, also over ssh, until Ctrl-C or the end of the job."""
    from kit.sessions import node_steps

    text, _, name = port.partition(":")
    one, node = _node(run, name or None)
    number = node_steps.port(one.run_dir, text, name or None)
    _forward(one, node, number, number if local is None else local, sure=local is not None, path="")


def notebook(run: RunName = None, node: Node = None, local: Local = None) -> None:
    """Run Jupyter in the container of a running job, until Ctrl-C or the end of the job. The URL contains a token."""
    _serve("notebook", run, node, local, path="/?token={}")


def code(run: RunName = None, node: Node = None, local: Local = None) -> None:
    """Run a VS Code server in the container of a running job, until Ctrl-C or the end of the job. The image must have one."""
    _serve("code", run, node, local, path="/?tkn={}")


def _node(run: str | None, name: str | None) -> tuple[Status, JobNode]:
    from kit.cli.runs import find
    from kit.sessions import node_steps

    one = find(run)
    return one, node_steps.find_node(one, name)


def _serve(tool: str, run: str | None, name: str | None, local: int | None, *, path: str) -> None:
    from kit.sessions import port_forward

    status, node = _node(run, name)
    with tempfile.TemporaryDirectory(prefix="kit-tool-") as folder:
        argv = tuple(status.manifest.shell_argv)
        with (
            port_forward.serving(tool, node, argv, Path(folder) / "log") as server,
            contextlib.suppress(KeyboardInterrupt),
        ):
            port_forward.wait_until_up(server, node)
            _forward(status, node, server.port, local or 0, sure=True, path=path.format(server.token))


def _forward(run: Status, node: JobNode, number: int, local: int, *, sure: bool, path: str) -> None:
    """Forward a port, with messages. sure: only this port of this machine may be used."""
    from kit.errors import UsageError
    from kit.loopback_owner import listening
    from kit.sessions import port_forward

    def active() -> bool:
        from kit.cli.runs import find

        return find(run.run_dir.name).state == "RUNNING"

    with contextlib.ExitStack() as held:
        try:
            opened = held.enter_context(listening("--local", local))
        except UsageError:
            if sure:
                raise
            opened = held.enter_context(listening("--local", 0))
        here = opened.getsockname()[1]
        print(f"port {number} of {node.name}, for run {run.run_dir.name}; Ctrl-C ends it", file=sys.stderr)
        print(f"http://127.0.0.1:{here}{path}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            port_forward.forward(opened, node, number, active=active)
            print(f"run {run.run_dir.name} has ended", file=sys.stderr)
