"""kit serve."""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from kit.cli.runs import RunsDir, folders


def serve(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1. 0 means any free port.")
    ] = 0,
    path: Annotated[
        Path | None, typer.Option("--socket", help="Listen on this Unix socket instead of a port.", show_default=False)
    ] = None,
    control: Annotated[
        bool,
        typer.Option(
            "--control",
            help="Allow visitors of the pages to cancel and resume runs. Without this option, they can only read.",
        ),
    ] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Serve live pages of all runs to a browser on this machine. The URL contains the token that access needs."""
    from kit.errors import ToolError, UsageError
    from kit.reports import vega_library
    from kit.submission import catch_up

    if port and path:
        raise UsageError("--port and --socket cannot be used together", hint="leave one out")
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        hint = "pip install 'slurm-kit[serve]'"
        raise ToolError(f"kit serve needs {error.name}, which is not installed", hint=hint) from None
    from kit.loopback_owner import listening
    from kit.serve import listen
    from kit.serve.access import new_token
    from kit.serve.app import app
    from kit.serve.current_runs import Board

    token = new_token()
    board = Board(lambda: folders(runs_dir), catch_up.queue())
    served, hub = app(board, token=token, script=vega_library.script(), may_control=control)
    place = listen.on_path(path) if path else listening("--port", port)
    with place as opened, contextlib.suppress(KeyboardInterrupt):
        _say(opened, token)
        listen.serve(served, hub, opened)


def _say(opened: socket.socket, token: str) -> None:
    """Print the URL to stdout, and instructions for access from elsewhere to stderr."""
    name = opened.getsockname()
    host = socket.gethostname()
    number, far = (8000, name) if isinstance(name, str) else (name[1], f"127.0.0.1:{name[1]}")
    print(f"from your own machine: ssh -N -L {number}:{far} {host}; Ctrl-C here ends it", file=sys.stderr)
    print(f"http://127.0.0.1:{number}/{token}/", flush=True)
