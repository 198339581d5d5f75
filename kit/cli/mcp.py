"""kit mcp and kit skill."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def mcp(
    limits: Annotated[
        Path | None,
        typer.Option(
            "--limits",
            help="The file with the limits of what tools may do.",
            show_default="~/.config/kit/mcp.toml",
        ),
    ] = None,
    project: Annotated[
        Path | None,
        typer.Option("--project", help="The folder of the project.", show_default="that of the working folder"),
    ] = None,
) -> None:
    """Serve tools for agents on stdin and stdout (Model Context Protocol): plan, submit, wait, explain, within your limits."""
    from kit import data_folders
    from kit.errors import ToolError, UsageError

    try:
        import mcp as sdk  # noqa: F401
        import mcp_types  # noqa: F401
    except ImportError as error:
        hint = "pip install 'slurm-kit[mcp]'"
        raise ToolError(f"kit mcp needs {error.name}, which is not installed", hint=hint) from None
    from kit.mcp import server
    from kit.mcp.limits import default_file
    from kit.mcp.session import AgentSession

    file = (limits or default_file()).expanduser().absolute()
    if limits and not file.is_file():
        raise UsageError(f"{file}: no file", hint="kit mcp, without --limits, only reads until there are limits")
    if project:
        if not project.is_dir():
            raise UsageError(f"{project}: no folder", hint="kit mcp --project .")
        os.chdir(project)
    server.serve(AgentSession(project=data_folders.project(), limits_file=file))


def skill() -> None:
    """Print the skill for agents: what the kit is, its commands, how to read its answers, and what never to do."""
    from kit.mcp import resources

    print(resources.skill(), end="")
