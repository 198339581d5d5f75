"""Asks Slurm about runs that are waited for, also over a time without answers: a controller that restarts ends no run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

from kit.errors import NoAnswerError, SlurmError, ToolError
from kit.hosts.host import Queue
from kit.slurm.client import JobId, QueuedJob

# A restart of slurmctld on a large cluster takes minutes. Without any answer for so long, the wait ends.
LONGEST_S = 900.0


def _say(line: str) -> None:
    print(f"kit: {line}", file=sys.stderr)


class PatientQueue:
    """A queue function for a loop. Its answer is None while a cluster's Slurm does not answer, which is said once.

    NoAnswerError after LONGEST_S seconds without an answer.
    """

    def __init__(self, queue: Queue, *, say: Callable[[str], None] = _say) -> None:
        self._queue, self._say = queue, say
        self._silent_since: dict[str, float] = {}
        self._told: set[str] = set()

    def __call__(self, name: str) -> Mapping[JobId, QueuedJob] | None:
        """The jobs of a cluster; None if its Slurm does not answer now."""
        reason = "the cluster cannot be reached"
        try:
            answer = self._queue(name)
        except (SlurmError, ToolError) as error:
            answer, reason = None, error.message
        if answer is not None:
            self._silent_since.pop(name, None)
            return answer
        since = self._silent_since.setdefault(name, time.monotonic())
        last = [line for line in reason.splitlines() if line.strip()][-1].strip()
        if time.monotonic() - since > LONGEST_S:
            problem = f"cluster {name}: Slurm has not answered for {LONGEST_S / 60:.0f} minutes: {last}"
            raise NoAnswerError(
                f"{problem}\n  the run continues; its end is not known", hint="kit status, once Slurm answers"
            )
        if name not in self._told:
            self._told.add(name)
            self._say(f"cluster {name}: Slurm does not answer: {last}; asking again, the run continues")
        return None
