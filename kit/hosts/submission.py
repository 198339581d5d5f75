"""Submits a batch script although sbatch's answer may be lost, late or noisy.

What is about to be submitted is on disk first, with a random mark that goes into the job's comment. If sbatch's answer does not
tell whether Slurm has taken the job, the mark in Slurm's queue does, at once or later. Nothing is removed while that is open.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kit.errors import JobRefusedError, SlurmError, UnconfirmedError
from kit.files import atomic_write, hold_signals, untrusted_files
from kit.files.owning_process import Owner
from kit.slurm import accounting, client

# Seconds between looks for a job whose answer is open. A busy controller may handle a request a minute late, after sbatch has given
# up, but most are there within seconds.
_LOOKS_S = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
# A request older than this has been handled or dropped.
_LATE_S = 120.0
_COMMENT = "--comment="


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What is about to be submitted. earlier: jobs with the same script. owner: the process. at: seconds since the epoch."""

    mark: str
    script: str
    earlier: tuple[int, ...]
    owner: str
    at: float

    @property
    def comment(self) -> str:
        """The part of the job's comment that identifies it."""
        return f"kit:{self.mark}"


def submit(argv: Sequence[str], *, env: Mapping[str, str], note: Path, earlier: Sequence[int] = ()) -> int:
    """Run an sbatch argv, whose last word is the script, and return the job's number. A Ctrl-C is delayed to the end.

    note: the file for the intent; the caller removes it (`confirmed`) once the number is recorded. earlier: jobs of this script.
    JobRefusedError or SlurmError if there is no job. UnconfirmedError if that is not known; then the note stays.
    """
    import secrets  # not needed by what only looks

    intent = Intent(
        mark=secrets.token_hex(8),
        script=argv[-1],
        earlier=tuple(earlier),
        owner=str(Owner.current()),
        at=time.time(),
    )
    with hold_signals.uninterrupted():
        atomic_write.write(note, json.dumps(asdict(intent)) + "\n")
        try:
            return client.submit(_marked(argv, intent), env=env)
        except (JobRefusedError, UnconfirmedError) as error:
            return _after(error, intent, env)


def confirmed(note: Path) -> None:
    """Remove the note of a submission whose outcome is recorded."""
    note.unlink(missing_ok=True)


def read_intent(note: Path) -> Intent | None:
    """The intent in a note; None if there is none, or if it cannot be read."""
    try:
        known = json.loads(untrusted_files.read_text(note))
        found = Intent(**{**known, "earlier": tuple(known["earlier"])})
        return found if isinstance(found.mark, str) and isinstance(found.at, float) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def jobs_of(intent: Intent, *, env: Mapping[str, str], forgotten: bool = False) -> list[int]:
    """The jobs that Slurm has of a submission, oldest first. SlurmError if it does not answer.

    forgotten: also ask accounting, for a job that the controller has forgotten.
    """
    found = client.marked(intent.comment, intent.script, env=env)
    if not found and forgotten:
        found = accounting.marked(intent.comment, since=intent.at, env=env)
    return sorted(set(found) - set(intent.earlier))


def is_under_way(intent: Intent) -> bool:
    """Whether the submitting process is alive, or may be: on another machine, that cannot be checked for a while."""
    owner = Owner.parse(intent.owner)
    alive = owner.alive() if owner else False
    return time.time() - intent.at < _LATE_S if alive is None else alive


def is_late(intent: Intent) -> bool:
    """Whether Slurm has handled the request, or never will."""
    return time.time() - intent.at > _LATE_S


def _marked(argv: Sequence[str], intent: Intent) -> tuple[str, ...]:
    """The argv with the mark added to the job's own comment."""
    given = [option for option in (*_options_in(argv[-1]), *argv[:-1]) if option.startswith(_COMMENT)]
    own = given[-1].removeprefix(_COMMENT) if given else ""
    if any(sign in own for sign in "\"'\\"):
        # sbatch removes quotes in a header, by rules of its own. The script's path identifies such a job.
        return tuple(argv)
    return (*argv[:-1], f"{_COMMENT}{own} {intent.comment}" if own else f"{_COMMENT}{intent.comment}", argv[-1])


def _options_in(script: str) -> list[str]:
    try:
        from kit.planning.sbatch_header import header

        return header(untrusted_files.read_bytes(script).decode(errors="replace"))
    except OSError:
        return []


def _after(error: SlurmError, intent: Intent, env: Mapping[str, str]) -> int:
    """The job of a submission that sbatch did not confirm. A plain refusal is checked once."""
    is_open = isinstance(error, UnconfirmedError)
    answered = False
    for pause in _LOOKS_S if is_open else _LOOKS_S[:1]:
        time.sleep(pause)
        try:
            jobs = jobs_of(intent, env=env)
        except SlurmError:
            answered = False
            continue
        answered = True
        if jobs:
            return _only(jobs, error, env)
    if not is_open:
        raise error
    message = error.message.strip()
    if answered:
        raise JobRefusedError(
            f"{message}\n  Slurm has no job with this submission's mark: nothing was submitted",
            hint=error.hint or "submit again",
        )
    raise UnconfirmedError(
        f"submit not confirmed: {message}\n  whether Slurm has taken {intent.script} is not known; its folder is kept",
        hint="kit runs, once Slurm answers: it finds the job by its mark",
    )


def _only(found: Sequence[int], error: SlurmError, env: Mapping[str, str]) -> int:
    """The first of these jobs. More than one come from a wrapper of sbatch that tried again; they would share a folder."""
    first, *others = found
    why = [line for line in error.message.splitlines() if line.strip()][-1].strip()
    print(f"kit: sbatch's answer was not clear ({why}); Slurm has taken the job: {first}", file=sys.stderr)
    for other in others:
        with contextlib.suppress(SlurmError):
            client.cancel(other, env=env)
            print(f"kit: job {other} is the same submission a second time; it is cancelled", file=sys.stderr)
    return first


def is_own(note: Path) -> bool:
    """Whether the note is this user's: another user's jobs are not in the answer."""
    try:
        # A link is its maker's, whatever it leads to.
        return note.lstat().st_uid == os.getuid()
    except OSError:
        return False
