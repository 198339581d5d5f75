"""Measures the value of an adaptive search: the best of 60 small trainings against the best of 200 random ones.

    python -m benchmarks search [--seeds 5] [--first 0] [--points 60] [--random 200] [--at-once 4]

Needs Optuna and numpy (`pip install 'slurm-kit[search]'`), no Slurm. A training is real: a network of two layers learns on which of
three spirals a point lies, in some tenths of a second on one core. Its metric is the loss on points that it has not seen. A tenth
of the labels is random, so that this loss has a floor, as in a real task. Without a floor, the least of many trainings could lie
anywhere over five orders of magnitude, would differ on each machine, and would depend on luck.

The search asks for values with the code that a task of the array uses (kit.sweeps.search.suggest), from the points' run folders.
`--at-once` points always run. When one ends the next one asks, like the slots of an array. The code of `[sweep.random]` draws the
random points.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks._common import Goal, report
from kit.schema.run_paths import RunPaths
from kit.schema.sweep import Distribution, Search, Sweep, Value
from kit.sweeps.points import expand
from kit.sweeps.search import search_trials, suggest

METRIC = "test_loss"
KEYS = {
    "args.--lr": Distribution(log_uniform=(1e-4, 10.0)),
    "args.--momentum": Distribution(uniform=(0.0, 0.99)),
    "args.--weight-decay": Distribution(log_uniform=(1e-7, 1e-1)),
    "args.--width": Distribution(log_uniform=(4, 128), integer=True),
    "args.--scale": Distribution(log_uniform=(0.05, 5.0)),
    "args.--batch-size": Distribution(choice=(8, 32, 128)),
}
EPOCHS, POINTS, WRONG = 15, 300, 0.1


def main(words: Sequence[str] = ()) -> int:
    """Train, and print the table. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks search")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="The first seed.")
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--random", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="Processes that train.")
    options = parser.parse_args(words)
    # This also applies to processes that start from here on: each has one core.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    found = []
    with ProcessPoolExecutor(options.workers) as pool:
        for seed in range(options.first, options.first + options.seeds):
            searched = searching(pool, seed, options.points, options.at_once)
            drawn = at_random(pool, seed, options.random)
            found.append((searched, min(drawn), min(drawn[: options.points])))
            print(f"seed {seed}: searched {found[-1][0]:.5f}, random {found[-1][1]:.5f}", file=sys.stderr, flush=True)
    goals = []
    for seed, (searched, random, few) in enumerate(found, options.first):
        goals += [
            Goal(name=f"seed {seed}: best of {options.points} searched", value=searched, bound=random),
            Goal(name=f"seed {seed}: best of {options.random} at random", value=random),
            Goal(name=f"seed {seed}: best of {options.points} at random", value=few),
        ]
    ratio = statistics.geometric_mean([searched / random for searched, random, _ in found])
    return report([*goals, Goal(name="searched / random, geometric mean", value=ratio, bound=1.0)])


def searching(pool: ProcessPoolExecutor, seed: int, count: int, at_once: int) -> float:
    """The least loss of a search, with the code that runs on the nodes."""
    search = Search(count=count, seed=seed, keys=KEYS)
    with tempfile.TemporaryDirectory(prefix="kit-bench-") as name:
        folders = [Path(name) / f"point.{index}" for index in range(count)]
        waiting, running = iter(enumerate(folders)), dict[Future[float], Path]()
        for index, run_dir in islice(waiting, at_once):
            running[_started(pool, search, folders, index)] = run_dir
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for one in done:
                _ended(running.pop(one), one.result())
                for index, run_dir in islice(waiting, 1):
                    running[_started(pool, search, folders, index)] = run_dir
        every = [search_trials.read_trial(run_dir, index, [METRIC]) for index, run_dir in enumerate(folders)]
    return min(one.reached[0] for one in every if one.state == "complete")


def _started(pool: ProcessPoolExecutor, search: Search, folders: Sequence[Path], index: int) -> Future[float]:
    run_dir = folders[index]
    run_dir.mkdir()
    known = [search_trials.read_trial(one, number, [METRIC]) for number, one in enumerate(folders)]
    values = suggest.following(search, ["min"], known, index)
    search_trials.suggest(run_dir, values)
    return pool.submit(train, values, search.seed)


def _ended(run_dir: Path, loss: float) -> None:
    paths = RunPaths(run_dir)
    paths.metrics.write_text(f"{json.dumps({'kind': 'final', METRIC: loss})}\n")
    paths.events.write_text(f"{json.dumps({'event': 'end', 'exit_code': '0'})}\n")


def at_random(pool: ProcessPoolExecutor, seed: int, count: int) -> list[float]:
    """The losses of `count` random draws. A loss that diverged is infinite."""
    sweep = Sweep.model_validate({"random": {"count": count, "seed": seed + 1000, "keys": dict(KEYS)}})
    losses = list(pool.map(train, expand.draws(sweep), [seed] * count))
    return [loss if math.isfinite(loss) else math.inf for loss in losses]


def train(values: Mapping[str, Value], seed: int) -> float:
    """The loss on the test points after the last epoch; infinite or NaN where it diverged. seed: for the data and the weights."""
    import numpy as np  # noqa: PLC0415 - of an extra

    at = {key.removeprefix("args.--"): float(str(value)) for key, value in values.items()}
    draw = np.random.default_rng(seed)
    inputs, labels = _spirals(draw, POINTS)
    unseen, known = _spirals(draw, POINTS)
    width, batch = int(at["width"]), int(at["batch-size"])
    weights = [draw.normal(0, at["scale"], (2, width)), draw.normal(0, at["scale"] / math.sqrt(width), (width, 3))]
    biases = [np.zeros(width), np.zeros(3)]
    moved = [np.zeros_like(one) for one in (*weights, *biases)]
    with np.errstate(all="ignore"):
        for _ in range(EPOCHS):
            order = draw.permutation(POINTS)
            for start in range(0, POINTS, batch):
                rows = order[start : start + batch]
                hidden = np.tanh(inputs[rows] @ weights[0] + biases[0])
                wrong = _softmax(hidden @ weights[1] + biases[1]) - np.eye(3)[labels[rows]]
                wrong /= len(rows)
                back = (wrong @ weights[1].T) * (1 - hidden**2)
                slopes = [
                    inputs[rows].T @ back + at["weight-decay"] * weights[0],
                    hidden.T @ wrong + at["weight-decay"] * weights[1],
                    back.sum(0),
                    wrong.sum(0),
                ]
                for place, (one, slope) in enumerate(zip((*weights, *biases), slopes, strict=True)):
                    moved[place] = at["momentum"] * moved[place] - at["lr"] * slope
                    np.add(one, moved[place], out=one)
        seen = _softmax(np.tanh(unseen @ weights[0] + biases[0]) @ weights[1] + biases[1])
        return float(-np.log(np.maximum(seen[np.arange(POINTS), known], 1e-30)).mean())


def _spirals(draw: Any, count: int) -> tuple[Any, Any]:
    """Random points in the plane, and for each the number of its noisy spiral, of three."""
    import numpy as np  # noqa: PLC0415 - of an extra

    labels = np.arange(count) % 3
    far = draw.uniform(0.1, 1, count)
    turn = 4 * far + labels * (2 * math.pi / 3) + draw.normal(0, 0.15, count)
    labels = np.where(draw.uniform(size=count) < WRONG, draw.integers(3, size=count), labels)
    return np.stack([far * np.cos(turn), far * np.sin(turn)], 1) * 3, labels


def _softmax(logits: Any) -> Any:
    import numpy as np  # noqa: PLC0415 - of an extra

    raised = np.exp(logits - logits.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)
