"""Remembers Slurm's last answers for half a minute: a server that is asked again and again asks Slurm twice a minute at most."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from kit.hosts.host import Queue
from kit.slurm.client import JobId, QueuedJob

# Seconds for which an answer is used again.
ASK_S = 30.0


class RecentQueue:
    """A queue that asks a cluster's Slurm at most once in ASK_S seconds, as long as its answer has the jobs that are asked for."""

    def __init__(self, queue: Queue, *, now: Callable[[], float] = time.monotonic) -> None:
        self._queue, self._now = queue, now
        self._answers: dict[str, tuple[float, Mapping[JobId, QueuedJob]]] = {}

    def about(self, wanted: Mapping[str, Collection[Collection[JobId]]]) -> Queue:
        """A queue function for these runs: cluster -> the jobs of each run.

        A remembered answer that has no job of one of the runs is not used, since that run may be newer.
        """

        def ask(name: str) -> Mapping[JobId, QueuedJob] | None:
            at, known = self._answers.get(name, (-ASK_S, {}))
            asked_at = self._now()
            if asked_at - at < ASK_S and all(any(job in known for job in jobs) for jobs in wanted.get(name, ())):
                return known
            answer = self._queue(name)
            if answer is not None:
                # As old as the question: a wait that asks again half a minute after an answer gets a new one.
                self._answers[name] = (asked_at, answer)
            return answer

        return ask
