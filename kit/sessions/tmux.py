"""`kit tmux`: a session for one run, with a shell in the first window and its logs in the second, in one pane for each role."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from kit import shell
from kit.schema.run_paths import RunPaths

SHELL, LOGS = "shell", "logs"
_FIRST = "first"
# The size of a session before a terminal attaches.
_COLUMNS, _ROWS = "200", "60"

# What the kit and its Slurm are found by: a tmux server keeps the environment of the shell that started it. No others: a secret in
# the words of a command can be read by every user of the machine.
_VARIABLES = re.compile(
    r"HOME|PATH|VIRTUAL_ENV|CONDA_PREFIX|SLURM_CONF|KIT_(CLUSTER|STORE)|XDG_(CACHE|CONFIG|DATA|STATE)_HOME"
)

# Returns the command line that follows the logs of a role; None: of the whole run.
Following = Callable[[str | None], Sequence[str]]


def session_of(run_dir: Path) -> str:
    """The session's name: the run's name without the two characters that tmux uses for windows and panes."""
    return run_dir.name.replace(".", "_").replace(":", "_")


def roles_of(run_dir: Path) -> list[str | None]:
    """The roles of a run, by their log folders; for a plain job, only None."""
    logs = RunPaths(run_dir).logs
    found: list[str | None] = [*sorted(p.name for p in logs.iterdir() if p.is_dir())] if logs.is_dir() else []
    return found or [None]


def exists(session: str) -> bool:
    """Whether there is such a session."""
    _require()
    return shell.run(["tmux", "has-session", "-t", f"={session}"], check=False).returncode == 0


def make(session: str, run_dir: Path, *, cwd: Path, following: Following) -> None:
    """Make the session. cwd: the shell's folder. A pane stays, with its content, after its command has ended."""
    _require()
    first, *others = roles_of(run_dir)
    window = f"={session}:{LOGS}"
    size = ["-x", _COLUMNS, "-y", _ROWS]
    # A shell that had started before would have another environment. To kill it could leave a lock of one of its start files.
    shell.run(["tmux", "new-session", "-d", "-s", session, "-n", _FIRST, *size, "sleep", "60"])
    for name in filter(_VARIABLES.fullmatch, os.environ):
        shell.run(["tmux", "set-environment", "-t", f"={session}", name, os.environ[name]])
    shell.run(["tmux", "new-window", "-t", f"={session}:", "-n", SHELL, "-c", str(cwd)])
    # Make the window first, set it to stay after its command has ended, then start the command.
    shell.run(["tmux", "new-window", "-d", "-t", f"={session}:", "-n", LOGS, "-c", str(cwd)])
    for option, value in (
        ("remain-on-exit", "on"),
        ("pane-border-status", "top"),
        ("pane-border-format", " #{pane_title} "),
    ):
        shell.run(["tmux", "set-option", "-w", "-t", window, option, value])
    shell.run(["tmux", "respawn-pane", "-k", "-t", f"{window}.0", "-c", str(cwd), *following(first)])
    pane = f"{window}.0"
    _title(pane, first)
    for role in others:
        pane = shell.run(
            ["tmux", "split-window", "-d", "-P", "-F", "#{pane_id}", "-t", pane, "-c", str(cwd), *following(role)]
        ).stdout
        _title(pane, role)
        # Arrange the panes now, so that there is space for the next one.
        shell.run(["tmux", "select-layout", "-t", window, "even-vertical" if len(others) < 5 else "tiled"])
    shell.run(["tmux", "kill-window", "-t", f"={session}:{_FIRST}"])


def attach(session: str) -> int:
    """Show the session on this terminal until the user leaves it; inside tmux, in the present client."""
    words = ["switch-client"] if os.environ.get("TMUX") else ["attach-session"]
    return shell.call(["tmux", *words, "-t", f"={session}"])


def _title(pane: str, role: str | None) -> None:
    shell.run(["tmux", "select-pane", "-t", pane, "-T", role or "all ranks"])


def _require() -> None:
    shell.require("tmux", hint="install tmux, or follow the logs with 'kit logs RUN [ROLE] -f'")
