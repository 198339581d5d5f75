"""Measures the goodput of a training in a storm of faults, beside that of the same training without faults.

    python -m benchmarks storm [--minutes 5] [--every 60] [--nodes 4] [--ranks 2] [--no-keep] [--seed 1]

Needs Slurm on this machine and .train-venv with torch. Both runs train launchers/ddp/train_gpt.py with DDP over gloo, with warm
ranks (`retry.warm`, `retry.keep`) and checkpoints in memory (`checkpoint.memory_every`), for the same time. In the storm, a rank
that a seed chooses is killed by -9 every minute. The goodput is that of the ledger (`kit time`): the share of the rank-seconds
since submit in steps that were kept. The table also shows the steps that a fault cost, and compares the losses of the two runs
step by step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks._common import ROOT, Goal, project, report
from kit import shell
from kit.errors import ToolError
from kit.record import metrics, run_facts
from kit.slurm import client
from kit.slurm.embedded import ClusterSize, down, up

NAME = "bench-storm"
PYTHON = ROOT / ".train-venv/bin/python"
PROFILE = "embedded = true\n[node]\ncpus = 8\ngpus = 1\n[defaults.env]\nOMP_NUM_THREADS = '1'\n"
EVERY = 5
# Modules of the program that take long to import. Its own modules report for one rank, and cannot be warm.
MODULES = [
    "numpy", "torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo", "torch.utils.data", "torch.distributed.fsdp",
    "torch.distributed.tensor", "torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict",
]  # fmt: skip
JOB = """\
name = "storm"
launcher = "ddp"
script = "/kit/run/code/train_gpt.py"
shape = "srun"
python = "{python}"
args = ["--steps", "1000000", "--log-every", "1", "--test-windows", "8", "--device", "cpu"]
seed = 7
[resources]
nodes = {nodes}
gpus_per_node = 1
ranks_per_node = {ranks}
time = "{limit}"
[container]
runtime = "bare"
[preflight]
enabled = false
[checkpoint]
memory_every = {every}
[retry]
in_allocation = 10000
no_progress = 0
warm = {modules}
keep = {keep}
"""
# Longest wait for a step on a busy machine, seconds.
WAIT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run. goodput: the ledger's. losses: by step. lost: steps that each fault cost. waits: seconds from each fault to the next
    step. sources: where each start continued."""

    goodput: float
    losses: dict[int, float]
    lost: list[int]
    waits: list[float]
    sources: list[str]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A project on the benchmark's cluster. seconds: of each run, from its first step on."""

    project: Path
    env: dict[str, str]
    seconds: float
    draw: random.Random
    ranks: int

    def train(self, *, between: float | None) -> Outcome:
        """Train for the time, with a fault every `between` seconds if it is given, and cancel the run."""
        run = Path(self._kit("submit", "--cluster", NAME).splitlines()[0])
        _wait(lambda: _furthest(run) >= EVERY, run)
        faults: list[float] = []
        began = time.time()
        while (now := time.time()) < began + self.seconds:
            if between is not None and now >= began + (len(faults) + 1) * between:
                faults.append(self._kill(run))
            time.sleep(0.2)
        self._kit("cancel", run.name)
        _wait(lambda: run_facts.read_facts(run).last_event == "end", run)
        told = json.loads(self._kit("time", run.name, "--json"))
        return _outcome(run, told, faults)

    def _kill(self, run: Path) -> float:
        """Kill a rank. Returns the time."""
        while True:
            rank = self.draw.randrange(self.ranks)
            for pid in _programs(run, rank):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return time.time()
            time.sleep(0.05)  # all ranks are between two starts

    def _kit(self, *words: str) -> str:
        return shell.run([sys.executable, "-m", "kit", *words], cwd=self.project, env=self.env).stdout


def lacking() -> str:
    """What this machine lacks for the table; empty if nothing."""
    return "" if PYTHON.exists() else f"{PYTHON} is not there: make training makes it"


def main(arguments: Sequence[str]) -> int:
    """Print the table. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks storm", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of each of the two runs")
    parser.add_argument("--every", type=float, default=60.0, help="seconds from one fault to the next")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2, help="ranks on each node")
    parser.add_argument(
        "--keep", action=argparse.BooleanOptionalAction, default=True, help="whether the surviving ranks live on"
    )
    parser.add_argument("--seed", type=int, default=1, help="chooses the ranks that are killed")
    options = parser.parse_args(arguments)
    if problem := lacking():
        parser.error(problem)
    with bench(options) as on:
        calm = on.train(between=None)
        storm = on.train(between=options.every)
    return report([*_goals(calm, storm)])


def _goals(calm: Outcome, storm: Outcome) -> Iterator[Goal]:
    yield Goal(name="goodput without faults, of the ledger", value=calm.goodput)
    yield Goal(name=f"goodput in the storm of {len(storm.lost)} faults", value=storm.goodput)
    yield Goal(name="the storm's goodput by the other", value=storm.goodput / calm.goodput, bound=0.95, at_least=True)
    yield Goal(name="steps of the storm by those of the other", value=max(storm.losses) / max(calm.losses))
    yield Goal(name="steps that a fault cost, p50", value=statistics.median(storm.lost or [0]))
    yield Goal(name="steps that a fault cost, at most", value=max(storm.lost, default=0), bound=EVERY)
    yield Goal(name="seconds from a fault to the next step, p50", value=statistics.median(storm.waits or [0]), unit="s")
    files = sum(source == "file" for source in storm.sources)
    yield Goal(name="starts that read a checkpoint file", value=files, bound=0)
    unlike = sum(loss != calm.losses[step] for step, loss in storm.losses.items() if step in calm.losses)
    yield Goal(name="steps with another loss than without faults", value=unlike, bound=0)


@contextmanager
def bench(options: argparse.Namespace) -> Iterator[Bench]:
    """The cluster, and a project for its jobs."""
    limit = f"{int(options.minutes) + 30}:00"
    words = {"python": PYTHON, "nodes": options.nodes, "ranks": options.ranks, "every": EVERY, "limit": limit}
    words["keep"] = json.dumps(options.keep)
    with project(NAME, PROFILE, JOB.format(**words, modules=json.dumps(MODULES))) as folder:
        try:
            cluster = up(NAME, ClusterSize(nodes=options.nodes, gpus_per_node=1, placeholder_gpus=True))
            yield Bench(
                project=folder,
                env=client.environment(cluster.env()),
                seconds=60 * options.minutes,
                draw=random.Random(options.seed),
                ranks=options.nodes * options.ranks,
            )
        finally:
            down(NAME)


def _outcome(run: Path, told: dict[str, Any], faults: list[float]) -> Outcome:
    steps = [record for record in metrics.records(run) if record.get("kind") == "step"]
    lost, waits, reached = [], [], 0
    for before, record in itertools.pairwise(steps):
        reached = max(reached, before["step"])
        if record["restart"] == before["restart"]:
            continue
        lost.append(reached - (record["step"] - 1))
        waits += [_time(record) - at for at in faults if _time(before) - 1 <= at < _time(record)][-1:]
    return Outcome(
        goodput=told["goodput"],
        losses={record["step"]: record["loss"] for record in steps},
        lost=lost,
        waits=waits,
        sources=[str(event.get("source")) for event in run_facts.events(run) if event["event"] == "resumed"],
    )


def _time(record: dict[str, Any]) -> float:
    return datetime.fromisoformat(record["time"]).timestamp()


def _furthest(run: Path) -> int:
    return max((record["step"] for record in metrics.records(run) if record.get("kind") == "step"), default=0)


def _wait(condition: Callable[[], bool], run: Path) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise ToolError(f"{run}: not there after {WAIT_S:.0f} s", hint=f"read {run}/logs/batch.log")
        time.sleep(0.5)


def _programs(run: Path, rank: int) -> Iterator[int]:
    """The process of a rank's program: neither the shells around it nor the client of a warm process."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            variables = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        mine = {b"RANK=%d" % rank, f"KIT_RUN_DIR={run}".encode()} <= {*variables}
        if mine and b"train_gpt.py" in words and b"warm_client.py" not in words:
            yield int(path.name)
