"""The error tree. Every fault that a user can cause or fix is one of these; `kit.cli.main` is the only place that prints them.

    KitError                 1   anything without a class of its own
    ├── UsageError           2   the command line itself (Typer uses 2 as well)
    ├── ConfigError          3   job.toml, clusters/, mounts/, launchers/, image.toml, --set
    │   ├── NotBuiltError    3   the job names an image that was never built
    │   └── PlanChangedError 3   the job or its inputs changed between plan and submit
    ├── ToolError            4   a program that the kit drives is missing, failed or timed out
    ├── ImageError           5   build, squash, lock, store
    │   ├── EngineError      5   no container engine answers
    │   └── LockError        5   the image file is missing or is not the locked one
    │       └── LostBaseError 5  the base of the lock does not exist any more
    ├── SlurmError           6   sbatch, squeue, the embedded cluster
    │   ├── JobRefusedError  6   sbatch does not take the job
    │   ├── UnconfirmedError 6   whether Slurm has taken a job is not known
    │   └── NoAnswerError    8   Slurm did not answer for so long that a wait ended; the run continues
    ├── StillRunningError    9   the time of a wait is over; the runs continue
    ├── RunError             7   a run folder that is missing, unreadable or not what was asked for
    └── RunFailed            the run's own code   the run ended, and not with 0 (`kit submit --wait`)

A Ctrl-C ends with 130 and TERM with 143, as in a shell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self


class KitError(Exception):
    """Base class of the kit's errors.

    message: what is wrong, naming the file, key or program. hint: what to try next, one sentence or command.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(KitError):
    """Options contradict each other, or an argument is invalid."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One wrong value: FILE: KEY: PROBLEM, and below it a hint.

    problem: a sentence. got, allowed: only if the allowed values can be listed. hint: a command or a line that works. file: empty
    if the caller adds it (`ConfigError.of`).
    """

    key: str
    problem: str
    got: str = ""
    allowed: str = ""
    hint: str = ""
    file: str = ""

    def __str__(self) -> str:
        parts = [self.problem, self.got and f"got {self.got}", self.allowed and f"allowed: {self.allowed}"]
        text = ": ".join(part for part in (self.file, self.key, "; ".join(filter(None, parts))) if part)
        return f"{text}\n  try: {self.hint}" if self.hint else text


class ConfigError(KitError):
    """A job, cluster, mounts, launcher, image or table file, or a value of --set, is wrong.

    `faults` has all faults found at once.
    """

    exit_code = 3

    def __init__(self, message: str, *, faults: Sequence[Fault] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.faults = tuple(faults)

    @classmethod
    def of(cls, *faults: Fault, file: str = "") -> Self:
        """One error for all faults. file: for faults that name none."""
        placed = tuple(fault if fault.file else replace(fault, file=file) for fault in faults)
        return cls("\n".join(map(str, placed)), faults=placed)


class NotBuiltError(ConfigError):
    """The job names an image that was never built, so no lock pins it. image: its name."""

    image = ""


class PlanChangedError(ConfigError):
    """The job, or something that it uses, changed between plan and submit."""


class ToolError(KitError):
    """A program is missing, failed, or exceeded its time limit."""

    exit_code = 4


class TimedOutError(ToolError):
    """A program exceeded its time limit."""


class ImageError(KitError):
    """An image could not be built, imported, squashed, locked or stored; or it is missing or does not match its lock."""

    exit_code = 5


class EngineError(ImageError):
    """No container engine answers, or it died during the work."""


class LockError(ImageError):
    """The image file is missing, or its bytes do not match the lock."""


class LostBaseError(LockError):
    """The base of the lock of `image` does not exist any more. A build with a new lock takes the base of today."""

    def __init__(self, image: str, problem: str, *, hint: str) -> None:
        super().__init__(f"image {image}: {problem}", hint=hint)
        self.image = image


class SlurmError(KitError):
    """Slurm refused the request, or could not be reached."""

    exit_code = 6


class JobRefusedError(SlurmError):
    """sbatch refuses the job as it is."""


class UnconfirmedError(SlurmError):
    """sbatch's answer does not tell whether Slurm has taken the job, or was lost."""


class NoAnswerError(SlurmError):
    """Slurm did not answer for so long that the command no longer waits. The run continues, and its end is not known."""

    exit_code = 8


class StillRunningError(KitError):
    """The time that a wait was given is over, and not all runs have ended. They continue."""

    exit_code = 9


class RunError(KitError):
    """There is no such run, its folder lacks the requested data, or its state does not allow the command."""

    exit_code = 7


class RunFailed(KitError):  # noqa: N818 - it reports an outcome, not a mistake
    """A run that was waited for did not end with 0. exit_code: the run's own."""

    def __init__(self, message: str, *, exit_code: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code or 1


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name most similar to this one; None if none is. cutoff: difflib's ratio; 1 accepts only equal names."""
    from difflib import get_close_matches

    near = get_close_matches(name, [*known], n=1, cutoff=cutoff)
    return near[0] if near else None


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """A question with the nearest known name; empty if none is near."""
    near = nearest(name, known, cutoff=cutoff)
    return f"did you mean {near!r}?" if near else ""
