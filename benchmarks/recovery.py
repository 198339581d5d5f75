"""Measures the seconds from the kill -9 of a rank to the next optimizer step.

    python -m benchmarks recovery [--rounds 20] [--nodes 4] [--ranks 2] [--only cold,warm]

Needs Slurm on this machine and .train-venv with torch. Both ways train the same small model with DDP over gloo. The last rank kills
itself after some steps; the time before the kill and the time after each of rank 0's steps are written down. Several kills belong
to one job, so that only restarts are measured, not the start of the job.

- cold: the kit starts the ranks' step again, `retry.in_allocation`.
- warm: the same with `retry.warm`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks._common import ROOT, Goal, project, report
from kit import shell
from kit.slurm import client
from kit.slurm.embedded import ClusterSize, down, up

NAME = "bench-back"
PYTHON = ROOT / ".train-venv/bin/python"
PROFILE = "embedded = true\n[node]\ncpus = 8\ngpus = 1\n[defaults.env]\nOMP_NUM_THREADS = '1'\n"
JOB = """\
name = "bench"
launcher = "ddp"
script = "program.py"
python = "{python}"
args = ["{rounds}"]
seed = 7
[resources]
nodes = {nodes}
gpus_per_node = 1
ranks_per_node = {ranks}
[container]
runtime = "bare"
[preflight]
enabled = false
"""
# Steps of each start before the kill.
STEPS = 8

# What a program of a user does, and nothing more: it imports, meets the others, builds, loads, and trains.
TRAIN = f"""\
import os, pathlib, signal, sys, time
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = {STEPS}
folder, rounds = pathlib.Path(os.environ["KIT_RUN_DIR"]), int(sys.argv[1])
kills, steps, saved = folder / "kills", folder / "steps", folder / "checkpoints" / "saved.pt"


def note(path):
    with path.open("a") as file:
        file.write(f"{{time.time()}}\\n")


def train(victim, done, left):
    rank = dist.get_rank()
    torch.manual_seed(7)
    net = torch.nn.Sequential(*(layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.GELU())))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    step = 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = DistributedDataParallel(net)
    for number in range(STEPS):
        batch = torch.from_numpy(np.random.default_rng(step + rank).standard_normal((8, 256), dtype=np.float32))
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if rank == 0:
            note(steps)
            if number == STEPS // 2:
                state = {{"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}}
                torch.save(state, saved.with_suffix(".new"))
                saved.with_suffix(".new").rename(saved)
    dist.barrier()
    if done < left:
        if rank == victim:
            note(kills)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
"""
PLAIN = (
    TRAIN
    + """
done = len(kills.read_text().split()) if kills.exists() else 0
dist.init_process_group("gloo")
train(dist.get_world_size() - 1, done, rounds)
dist.destroy_process_group()
"""
)
# The last is imported by torch itself, with the first step of an optimizer.
MODULES = ["numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo"]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A project on the benchmark's cluster. nodes: of the job; ranks: on each of them."""

    project: Path
    env: dict[str, str]
    rounds: int
    nodes: int
    ranks: int

    def submit(self, *sets: str) -> list[float]:
        """Run the job with its kills to its end. ToolError when it fails."""
        words = [word for text in sets for word in ("--set", text)]
        argv = [sys.executable, "-m", "kit", "submit", "--cluster", NAME, "--wait", *words]
        return between(Path(shell.run(argv, cwd=self.project, env=self.env).stdout.splitlines()[0]))


def between(folder: Path) -> list[float]:
    """Seconds from each kill to the first step after it."""
    kills, steps = (sorted(map(float, (folder / name).read_text().split())) for name in ("kills", "steps"))
    return [min(step for step in steps if step > kill) - kill for kill in kills]


def main(arguments: Sequence[str]) -> int:
    """Print the table. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks recovery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="kills of each way")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2, help="ranks on each node")
    parser.add_argument("--only", help=f"some of {','.join(WAYS)}")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",") if options.only else [*WAYS]
    if unknown := [name for name in chosen if name not in WAYS]:
        parser.error(f"--only: no such way: {unknown[0]}; there are: {', '.join(WAYS)}")
    if not PYTHON.exists():
        parser.error(f"{PYTHON} is not there: make training makes it")
    with bench(options) as on:
        took = {name: WAYS[name](on) for name in chosen}
    print("| kill -9 of a rank to the next optimizer step | p50, s | p95, s | kills |\n|---|---|---|---|")
    for name, seconds in took.items():
        p95 = statistics.quantiles(seconds, n=20, method="inclusive")[18] if len(seconds) > 1 else seconds[0]
        print(f"| {name} | {statistics.median(seconds):.2f} | {p95:.2f} | {len(seconds)} |")
    print()
    bounds = {"warm": 2.0}
    goals = [Goal(name=n, value=statistics.median(s), unit="s", bound=bounds.get(n)) for n, s in took.items()]
    return report(goals)


@contextmanager
def bench(options: argparse.Namespace) -> Iterator[Bench]:
    """The cluster, and a project for its jobs."""
    words = {"python": PYTHON, "rounds": options.rounds, "nodes": options.nodes, "ranks": options.ranks}
    with project(NAME, PROFILE, JOB.format(**words)) as folder:
        (folder / "program.py").write_text(PLAIN)
        try:
            cluster = up(NAME, ClusterSize(nodes=options.nodes, gpus_per_node=1, placeholder_gpus=True))
            env = client.environment(cluster.env())
            yield Bench(project=folder, env=env, rounds=options.rounds, nodes=options.nodes, ranks=options.ranks)
        finally:
            down(NAME)


def cold(on: Bench) -> list[float]:
    """The kit's restart of the whole step."""
    return on.submit("shape=srun", f"retry.in_allocation={on.rounds}", "retry.no_progress=0")


def warm(on: Bench) -> list[float]:
    """The kit's restart, with ranks that are forked from a process that has imported what the program imports."""
    modules = f"retry.warm={json.dumps(MODULES)}"
    return on.submit("shape=srun", f"retry.in_allocation={on.rounds}", "retry.no_progress=0", modules)


WAYS: dict[str, Callable[[Bench], list[float]]] = {"cold": cold, "warm": warm}
