"""`kit tmux`: a session for one run, with a shell in the first window and its logs in the second, a pane for each role."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from kit import shell
from kit.spec.run_paths import RunPaths

SHELL, LOGS = "shell", "logs"
# Of a session that nobody looks at yet; a terminal that attaches gives it its own.
_COLUMNS, _ROWS = "200", "60"

# The command line that follows the logs of a role; of the whole run for None.
Following = Callable[[str | None], Sequence[str]]


def session_of(run_dir: Path) -> str:
    """The session's name: that of the run, without the two characters that tmux takes for a window's and a pane's."""
    return run_dir.name.replace(".", "_").replace(":", "_")


def roles_of(run_dir: Path) -> list[str | None]:
    """The roles of a run, by their log folders; for a plain job, None alone."""
    logs = RunPaths(run_dir).logs
    found: list[str | None] = [*sorted(p.name for p in logs.iterdir() if p.is_dir())] if logs.is_dir() else []
    return found or [None]


def exists(session: str) -> bool:
    """Whether there is such a session."""
    _require()
    return shell.run(["tmux", "has-session", "-t", f"={session}"], check=False).returncode == 0


def make(session: str, run_dir: Path, *, cwd: Path, following: Following) -> None:
    """Make the session. cwd: where its shell is. A pane stays, with what it showed, when its command has ended."""
    _require()
    first, *others = roles_of(run_dir)
    window = f"={session}:{LOGS}"
    size = ["-x", _COLUMNS, "-y", _ROWS]
    shell.run(["tmux", "new-session", "-d", "-s", session, "-n", SHELL, "-c", str(cwd), *size])
    # First a window that stays when its command has ended, then the command.
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
        # At once, so that the next one finds room.
        shell.run(["tmux", "select-layout", "-t", window, "even-vertical" if len(others) < 5 else "tiled"])


def attach(session: str) -> int:
    """Show the session on this terminal until it is left; within tmux, in the client that is there."""
    words = ["switch-client"] if os.environ.get("TMUX") else ["attach-session"]
    return shell.call(["tmux", *words, "-t", f"={session}"])


def _title(pane: str, role: str | None) -> None:
    shell.run(["tmux", "select-pane", "-t", pane, "-T", role or "all ranks"])


def _require() -> None:
    shell.require("tmux", hint="install tmux, or follow the logs with 'kit logs RUN [ROLE] -f'")
