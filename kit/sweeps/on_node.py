"""Runs a task of a search's array on its node, outside any container, beside its batch script (templates/bin/array.sh).

    python -m kit.sweeps.on_node ask   POINT        before the batch script: the point's values, chosen and written into its files
    python -m kit.sweeps.on_node watch POINT PID    while it runs: stops the batch script where the point is bad early

POINT is a run folder. Nothing of a search lives on the login node, and nothing outlives the task.
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
from kit.runs import atomic_write
from kit.spec.sweep import Sweep
from kit.sweeps import apply_chosen_values, halving, search_trials
from kit.sweeps.record import SweepPaths, SweepRecord, read

# How long a task waits for others that ask; without the lock two of them may not see each other's values, and no more.
_LOCK_S = 60.0
_LOOK_S = 5.0


def ask(run_dir: Path) -> None:
    """The point's values: those that it has already after a requeue, else new ones."""
    values = search_trials.suggestion(run_dir)
    if values is None:
        # It needs an extra, which a node may lack: main reports that.
        from kit.sweeps import suggest

        sweep, record, index = _of(run_dir)
        assert sweep.search is not None
        with _alone(run_dir.parent):
            known = _trials(run_dir.parent.parent, record, [*sweep.objectives])
            values = suggest.following(sweep.search, [*sweep.objectives.values()], known, index)
            search_trials.suggest(run_dir, values)
    apply_chosen_values.apply(run_dir, values)
    said = " ".join(f"{key}={value}" for key, value in values.items())
    print(f"search: {said}", file=sys.stderr)


def watch(run_dir: Path, batch: int) -> None:
    """Until the point is to be stopped, or the batch script is gone."""
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
    """1, with one line that says why, where it could not be done: the point keeps the values that it was planned with."""
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
    """The search that a point belongs to, as it was at submit, and its number there."""
    folder = run_dir.parent.parent
    record = read(folder)
    if record.search is None:
        raise RunError(f"{folder}: it is not a search")
    return record.search, record, int(run_dir.name.rpartition(".")[2])


def _trials(folder: Path, record: SweepRecord, objectives: Sequence[str]) -> list[search_trials.SearchTrial]:
    paths = SweepPaths(folder)
    return [search_trials.of(paths.point(one.index), one.index, objectives) for one in record.points]


@contextlib.contextmanager
def _alone(points: Path) -> Iterator[None]:
    """One task of the sweep at a time. The lock is the kernel's: a kill -9 frees it."""
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
    """Whether the batch script that this process was started by is still there."""
    return os.getppid() == pid


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
