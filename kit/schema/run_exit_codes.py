"""Exit codes of a run in addition to those of its program. The batch script's libraries return them."""

from __future__ import annotations

from enum import IntEnum


class RunExitCode(IntEnum):
    """A reason why the batch script ended the run. `meaning` is a sentence for the reference."""

    PREFLIGHT = 72, "the preflight failed; no rank was started"
    SETUP_LINE = 73, "a line of `setup` failed"
    NOT_READY = 74, "a role was not ready in time"
    STALLED = 76, "the ranks made no progress for longer than `watch.patience`"
    NO_PROGRESS = 77, "the ranks were started `retry.no_progress` times in a row without making a new step"

    meaning: str

    def __new__(cls, code: int, meaning: str) -> RunExitCode:
        """A member whose value is the code."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member
