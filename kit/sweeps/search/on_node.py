"""Runs on the node of a search's point, outside any container, together with the batch script (templates/core/bin/array.sh).

    python -m kit.sweeps.search.on_node ask   POINT       before the batch script: chooses the point's values, and writes its files
    python -m kit.sweeps.search.on_node watch POINT PID   during the batch script: stops it if the point is bad early

POINT is a run folder. No part of a search runs on the login node, and no process remains after the task.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock

from kit.errors import KitError, RunError
from kit.files import atomic_write
from kit.schema.sweep import Sweep
from kit.sweeps.record import SweepPaths, SweepRecord, read_sweep
from kit.sweeps.search import apply_chosen_values, halving, search_trials

# How long a task waits for the lock. Without the lock, two tasks may choose without seeing each other's values, which does no harm.
_LOCK_S = 60.0
_LOOK_S = 5.0


def ask(run_dir: Path) -> None:
    """Choose the point's values. After a requeue, it keeps those that it has."""
    values = search_trials.suggestion(run_dir)
    if values is None:
        # It needs an extra, which a node may lack: main reports that.
        from kit.sweeps.search import suggest

        sweep, record, index = _of(run_dir)
        assert sweep.search is not None
        with _exclusive(run_dir.parent):
            known = _trials(run_dir.parent.parent, record, [*sweep.objectives])
            values = suggest.following(sweep.search, [*sweep.objectives.values()], known, index)
            search_trials.suggest(run_dir, values)
    apply_chosen_values.apply(run_dir, values)
    said = " ".join(f"{key}={value}" for key, value in values.items())
    print(f"search: {said}", file=sys.stderr)


def watch(run_dir: Path, batch: int) -> None:
    """Watch the point until it is stopped, or its batch script has ended."""
    sweep, record, index = _of(run_dir)
    if sweep.search is None or sweep.search.stop is None:
        return
    ((metric, goal),) = sweep.objectives.items()
    paths, rule, judged = SweepPaths(run_dir.parent.parent), sweep.search.stop, 0
    while _lives(batch):
        mine = search_trials.reports(run_dir, metric)
        if halving.at(mine, halving.rung(rule, judged)) is not None:
            others = [
                search_trials.reports(paths.point(one.index), metric) for one in record.points if one.index != index
            ]
            step = halving.verdict(rule, goal, mine, others)
            if step is not None:
                found = {"step": step, "metric": metric, "value": halving.at(mine, step), "others": len(others)}
                atomic_write.write(search_trials.stopped_file(run_dir), json.dumps(found) + "\n")
                print(f"search: {metric} is not among the best at step {step}: the point is stopped", file=sys.stderr)
                os.kill(batch, signal.SIGTERM)
                return
            judged += 1
        time.sleep(_LOOK_S)


def main(words: Sequence[str]) -> int:
    """Run one command. Returns 1, with a one-line reason, if it failed: the point keeps the values that it was planned with."""
    try:
        if words[0] == "ask":
            ask(Path(words[1]).resolve())
        else:
            watch(Path(words[1]).resolve(), int(words[2]))
    except (KitError, OSError, ImportError) as error:
        print(f"search: {error}", file=sys.stderr)
        return 1
    return 0


def _of(run_dir: Path) -> tuple[Sweep, SweepRecord, int]:
    """The search of a point as recorded at submit, and the point's number in it."""
    folder = run_dir.parent.parent
    record = read_sweep(folder)
    if record.search is None:
        raise RunError(f"{folder}: this sweep is not a search")
    return record.search, record, int(run_dir.name.rpartition(".")[2])


def _trials(folder: Path, record: SweepRecord, objectives: Sequence[str]) -> list[search_trials.SearchTrial]:
    paths = SweepPaths(folder)
    return [search_trials.read_trial(paths.point(one.index), one.index, objectives) for one in record.points]


@contextlib.contextmanager
def _exclusive(points: Path) -> Iterator[None]:
    """Allow one task of the sweep at a time. The kernel releases the lock after a kill -9."""
    lock = filelock.FileLock(points / ".suggesting", timeout=_LOCK_S)
    try:
        lock.acquire()
    except (filelock.Timeout, OSError) as error:
        print(f"search: without the lock of {points}: {error}", file=sys.stderr)
    try:
        yield
    finally:
        lock.release()


def _lives(pid: int) -> bool:
    """Whether the batch script that started this process still runs."""
    return os.getppid() == pid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
