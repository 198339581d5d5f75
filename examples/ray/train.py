"""A training of your own on Ray actors under the kit: it stops on a signal with a checkpoint, and continues from the newest.

    kit submit examples/ray

The kit has started Ray on every node of the job, and RAY_ADDRESS says where. Each actor has a part of the data and works out a
gradient; this program, which runs once, has the weights. TERM comes with a preemption or `kit cancel`, USR1 before the time limit.
The exit code, 128 + signal, tells the kit that the run is not done.
"""

import argparse
import json
import math
import os
import random
import signal
import sys
from pathlib import Path

import ray

came: list[int] = []


def take(number: int, _frame: object) -> None:
    """Remember the signal for the end of the step."""
    came.append(number)


class Shard:
    """A part of the data: points of a sine, and the powers of x that are to come near it."""

    def __init__(self, number: int, seed: int) -> None:
        draw = random.Random(f"{seed}.{number}")
        places = [draw.uniform(-1, 1) for _ in range(200)]
        self.points = [([x**power for power in range(6)], math.sin(3 * x)) for x in places]

    def node(self) -> str:
        """The name of its node."""
        return os.environ.get("SLURMD_NODENAME", "?")

    def gradient(self, weights: list[float]) -> tuple[float, list[float]]:
        """The mean squared error of the weights, and its gradient."""
        loss, total = 0.0, [0.0] * len(weights)
        for powers, wanted in self.points:
            error = sum(w * p for w, p in zip(weights, powers, strict=True)) - wanted
            loss += error * error / len(self.points)
            total = [t + 2 * error * p / len(self.points) for t, p in zip(total, powers, strict=True)]
        return loss, total


def save(file: Path, step: int, weights: list[float]) -> None:
    """Complete before it has its name."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".tmp").write_text(json.dumps({"step": step, "weights": weights}), encoding="utf-8")
    file.with_suffix(".tmp").replace(file)


def main() -> None:
    """Train, from the newest checkpoint on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, take)
    file = Path(os.environ["KIT_CHECKPOINT_DIR"]) / "weights.json"
    ray.init(address="auto")
    for number in (signal.SIGTERM, signal.SIGUSR1):  # Ray has set its own
        signal.signal(number, take)
    actor = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(Shard)
    shards = [actor.remote(number, int(os.environ["KIT_SEED"])) for number in range(2 * len(ray.nodes()))]
    print(f"actors on {' '.join(ray.get([shard.node.remote() for shard in shards]))}", flush=True)
    first, weights, loss = 0, [0.0] * 6, math.inf
    if file.exists():
        newest = json.loads(file.read_text(encoding="utf-8"))
        first, weights = newest["step"], newest["weights"]
    print(f"continues from step {first}", flush=True)
    for step in range(first + 1, options.steps + 1):
        answers = ray.get([shard.gradient.remote(weights) for shard in shards])
        loss = sum(answer[0] for answer in answers) / len(shards)
        slope = [sum(parts) / len(shards) for parts in zip(*(answer[1] for answer in answers), strict=True)]
        weights = [w - 0.1 * s for w, s in zip(weights, slope, strict=True)]
        if step % 20 == 0:
            print(f"step {step}: loss {loss:.6f}", flush=True)
        if came or step % 500 == 0:
            save(file, step, weights)
        if came and step < options.steps:
            print(f"stopped after step {step}", flush=True)
            sys.exit(128 + came[0])
    print(f"final loss {loss:.9f} after step {options.steps}", flush=True)


if __name__ == "__main__":
    main()
