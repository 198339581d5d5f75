"""Forwards a local port to a port on a node of the job. Each connection is a Slurm step of its own, which relays the data
through its stdin and stdout.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kit import shell
from kit.errors import ToolError
from kit.schema.run_paths import RunPaths
from kit.sessions.node_steps import JobNode

_LOOK_S = 0.5
# After a connection that was refused.
_TRY_AGAIN_S = 0.05
# The interval in which Slurm is asked whether the job still runs.
_ASK_S = 15.0
# A server that has not answered within this time has failed.
_STARTS_S = 120.0
# Ports for servers that the kit starts itself, below the kernel's ephemeral ports: ip(7).
_PORTS = range(20000, 32000)


def forward(opened: socket.socket, node: JobNode, port: int, *, active: Callable[[], bool]) -> None:
    """Forward each connection to a port of the node, until `active` returns False."""
    links: list[shell.Process] = []
    asked = time.monotonic()
    command = [str(RunPaths(node.run_dir).bin / "port.sh"), str(port)]
    argv = node.step(["--job-name=kit-port"], command)
    try:
        while True:
            if select.select([opened], [], [], _LOOK_S)[0]:
                try:
                    taken, _ = opened.accept()
                except OSError:
                    # Another user's connection, or no free descriptor: those that are open end some time.
                    time.sleep(_TRY_AGAIN_S)
                    continue
                with taken:
                    links.append(
                        shell.connected(argv, stdin=taken.fileno(), stdout=taken.fileno(), env=node.host.piped_env())
                    )
            links = [one for one in links if one.poll() is None]
            if time.monotonic() - asked > _ASK_S:
                asked = time.monotonic()
                if not active():
                    return
    finally:
        _end(links)


@dataclass(frozen=True, kw_only=True)
class JobServer:
    """A server in the job's container. token: for logging in. process: the step on this machine. log: its output."""

    port: int
    token: str
    process: shell.Process
    log: Path

    def runs(self) -> bool:
        """Whether the server still runs."""
        return self.process.poll() is None

    def said(self) -> str:
        """The last lines of its output."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-8:])


@contextlib.contextmanager
def serving(name: str, node: JobNode, shell_argv: tuple[str, ...], log: Path) -> Iterator[JobServer]:
    """Run a server of templates/core/lib/tools.sh on the node during the block. It ends when its standard input is closed.

    shell_argv: the run's own step of a shell. ToolError if the container has no such server, or if it does not start.
    """
    port, token = secrets.choice(_PORTS), secrets.token_urlsafe(24)
    read_end, write_end = os.pipe()
    with log.open("wb") as sink, os.fdopen(read_end, "rb") as pipe, os.fdopen(write_end, "wb", buffering=0) as tap:
        argv = node.from_here(_tool_step(shell_argv, node, name, port))
        process = shell.connected(
            argv, stdin=pipe.fileno(), stdout=sink.fileno(), env=node.host.piped_env(), stderr_too=True
        )
        try:
            pipe.close()
            _tell(tap, token)
            made = JobServer(port=port, token=token, process=process, log=log)
            yield made
        finally:
            tap.close()
            _end([process])


def wait_until_up(server: JobServer, node: JobNode) -> None:
    """Wait until the server accepts connections. ToolError, with its last lines, if it ends before that or takes too long."""
    until = time.monotonic() + _STARTS_S
    ask = ["bash", "-c", 'exec 3<>"/dev/tcp/127.0.0.1/$1"', "bash", str(server.port)]
    argv = node.step(["--job-name=kit-port"], ask)
    while server.runs() and time.monotonic() < until:
        if shell.run(argv, env=node.host.piped_env(), check=False).returncode == 0:
            return
        time.sleep(_LOOK_S)
    raise ToolError(
        f"the server did not start:\n{server.said()}", hint="the job's image must contain the server's program"
    )


def _tool_step(shell_argv: tuple[str, ...], node: JobNode, name: str, port: int) -> list[str]:
    """The run's shell step with a server in place of the shell, and without a terminal."""
    words = [word for word in shell_argv if word != "--pty"]
    at = next(n for n, word in enumerate(words) if word.endswith("/bin/shell.sh"))
    where = [f"--jobid={node.number}", f"--nodelist={node.name}", f"--job-name=kit-{name}"]
    return [words[0], *where, *words[1 : at + 1], "--tool", name, str(port), *words[at + 1 :]]


def _tell(tap: IO[bytes], token: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        tap.write(f"{token}\n".encode())


def _end(processes: list[shell.Process]) -> None:
    for one in processes:
        one.terminate()
    for one in processes:
        one.wait()
