"""Waits for the points of a sweep."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kit.hosts.host import Queue
from kit.hosts.patient_queue import PatientQueue
from kit.hosts.status import UNKNOWN
from kit.sweeps import find
from kit.sweeps.find import state_of
from kit.sweeps.record import read_sweep

_POLL_S = 2.0
# Seconds that a point may be absent from squeue without an end in its record: either can be late.
_SETTLE_S = 10.0
_UNSETTLED = {"LOST", "SUBMITTED", find.MISSING}


def wait(folder: Path, *, queue: Queue, on_poll: Callable[[Counter[str]], None]) -> list[int]:
    """Wait until all points of a sweep have ended; return those that did not end well. `on_poll` gets the count of each state.

    NoAnswerError if Slurm does not answer for too long.
    """
    record, unsettled, patient = read_sweep(folder), 0.0, PatientQueue(queue)
    while True:
        now = find.states(folder, record, queue=patient)
        count = Counter(state_of(one) for one in now.values())
        on_poll(count)
        active = any(one is not None and (one.active or one.state == UNKNOWN) for one in now.values())
        if not active and (not _UNSETTLED & count.keys() or unsettled >= _SETTLE_S):
            return find.to_retry(now)
        unsettled = 0.0 if active else unsettled + _POLL_S
        time.sleep(_POLL_S)
