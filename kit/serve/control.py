"""Actions of `kit serve --control`: cancel runs and sweeps, resume runs, as the commands of the same names do."""

from __future__ import annotations

import threading
import time

from kit.errors import RunError
from kit.hosts import status as host_status
from kit.serve.current_runs import Board
from kit.submission import catch_up
from kit.submission.resume import resume
from kit.sweeps import cancel_by_name

# One at a time: a run that two readers resume is submitted once, since the second finds it in the queue.
_ONE = threading.Lock()


def act(board: Board, kind: str, name: str, action: str) -> str:
    """Cancel or resume; return the result as a sentence. RunError for an unknown name; other errors are those of the command."""
    folder = board.sweep(name) if kind == "sweep" else getattr(board.run(name), "run_dir", None)
    if folder is None or (kind, action) not in {("run", "cancel"), ("run", "resume"), ("sweep", "cancel")}:
        raise RunError(f"no {kind} of this name, or it has no action {action!r}")
    with _ONE:
        try:
            if action == "cancel":
                return "; ".join(
                    map(str, cancel_by_name.cancel([str(folder)], board.folders(), queue=catch_up.queue()))
                )
            (one,) = host_status.read_statuses([folder], queue=catch_up.queue())
            made = resume(one)
            return f"job {made.job_id}: {made.run_id} continues"
        finally:
            board.forget()


def said(action: str, name: str, outcome: str) -> str:
    """A line about the action for the terminal of the server."""
    return f"{time.strftime('%H:%M:%S')} {action} {name}: {outcome}"
