"""Measures one DiLoCo training on two embedded clusters with 20 Mbit/s and 100 ms between them, and the loss of one of them.

    python -m benchmarks two_clusters [--steps 5000] [--rate 20] [--round-trip 100]

Needs root, Slurm and the image frameworks-cpu in the store. The nodes of the second cluster reach the relay only by a slow line
(tests/cluster/slow_link.py). Bytes are those that crossed it from submit to end: weights, quorums, heartbeats and TCP's own. Three
trainings with the same seed and tokens: on one cluster, on both, and on both while the second cluster is preempted and comes back.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks._common import Goal, project, report
from kit import shell
from kit.errors import RunError
from kit.record import metrics
from kit.slurm.embedded import ClusterSize, EmbeddedCluster, down, up
from tests.cluster.slow_link import SlowLink, slow_link

NAMES = ("bench-a", "bench-b")
PROFILE = """\
embedded = true
[relay]
host = "{relay}"
ports = "29650-29699"
[node]
cpus = 4
[paths]
store = "{{data}}/images"
[defaults.resources]
time = "01:00:00"
[defaults.env]
OMP_NUM_THREADS = "1"
"""
BATCH, CONTEXT = 64, 64
MODEL = (
    *("--layers", "2", "--dim", "48", "--heads", "2", "--warmup", "20", "--log-every", "1"),
    *("--batch-size", str(BATCH), "--context", str(CONTEXT)),
)
JOB = """\
name = "bench"
launcher = "diloco"
image = "frameworks-cpu"
seed = 7
[resources]
nodes = 2
[diloco]
across = true
sync_every = 10
outer_lr = 1.0
outer_momentum = 0.0
timeout = 30
[checkpoint]
every = 5
[slurm]
requeue = true
"""
_PATIENCE_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The clusters, the project, and the line to the second one."""

    clusters: tuple[EmbeddedCluster, EmbeddedCluster]
    folder: Path
    steps: int
    line: SlowLink

    def submit(self, *options: str) -> list[Path]:
        """Submit the training; the run folders."""
        args = json.dumps([*MODEL, "--steps", str(self.steps)])
        words = [sys.executable, "-m", "kit", "submit", "--set", f"args={args}", *options]
        return [Path(line) for line in shell.run(words, cwd=self.folder, timeout=300).stdout.split()]

    def finish(self, *runs: Path) -> None:
        """Wait for the end of runs, which must be a success."""
        for run in runs:
            wait(partial(_has_ended, run), run)
            if ended(run) != 0:
                raise RunError(f"{run}: exit code {ended(run)}")

    def slurm(self, cluster: EmbeddedCluster, *argv: str) -> None:
        """One of Slurm's commands."""
        shell.run(argv, env=cluster.env(), timeout=60, check=False)


def main(arguments: Sequence[str]) -> int:
    """Print the tables. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks two_clusters", description=__doc__)
    parser.add_argument("--steps", type=int, default=5000, help="inner steps of each training; a multiple of 10")
    parser.add_argument("--rate", type=float, default=20, help="Mbit/s, in each direction")
    parser.add_argument("--round-trip", type=float, default=100, help="ms")
    asked = parser.parse_args(arguments)
    with bench(asked.steps, rate_bit_s=asked.rate * 1e6, delay_s=asked.round_trip / 2000) as on:
        one = alone(on)
        return report([*undisturbed(on, one), *preempted(on, one)])


@contextmanager
def bench(steps: int, *, rate_bit_s: float, delay_s: float) -> Iterator[Bench]:
    """Two clusters of one node each, and the line."""
    with project(NAMES[0], "") as folder:
        (folder / "job.toml").write_text(JOB)
        try:
            first, second = (up(name, ClusterSize(nodes=1, gpus_per_node=0)) for name in NAMES)
            init = second.nodes[0].init
            if init is None:
                raise RunError("the nodes have no network of their own", hint="run as root")
            with slow_link(init.pid, rate_bit_s=rate_bit_s, delay_s=delay_s) as line:
                for name, relay in zip(NAMES, (first.controller_address, line.here), strict=True):
                    (folder / "clusters" / f"{name}.toml").write_text(PROFILE.format(relay=relay))
                yield Bench(clusters=(first, second), folder=folder, steps=steps, line=line)
        finally:
            for name in NAMES:
                down(name)


def alone(on: Bench) -> float:
    """The test loss of the same training on one cluster, with both groups on its node."""
    keys = ("resources.nodes=1", "diloco.replicas_per_node=2", "diloco.across=false")
    (run,) = on.submit("--cluster", NAMES[0], *(word for key in keys for word in ("--set", key)))
    on.finish(run)
    return float(records(run, "final")[0]["test_loss"])


def undisturbed(on: Bench, one: float) -> list[Goal]:
    """Loss, bytes and times of the training on both clusters."""
    before = on.line.carried
    runs = on.submit("--cluster", ",".join(NAMES))
    on.finish(*runs)
    carried, outer = on.line.carried - before, records(runs[0], "outer")
    finals = [records(run, "final")[0] for run in runs]
    return [
        Goal(name="both: loss against one cluster, %", value=100 * abs(finals[0]["test_loss"] / one - 1), bound=2),
        Goal(name="both: halves with other parameters", value=len({one["sha256"] for one in finals}) - 1, bound=0),
        Goal(name="both: bytes a token on the line, both ways", value=carried / (on.steps * BATCH * CONTEXT)),
        Goal(name="both: packets dropped by the line's queue", value=on.line.dropped),
        Goal(
            name="both: an average's wait, median",
            value=statistics.median(o["seconds_average"] for o in outer),
            unit="s",
        ),
        Goal(name="both: a round of 10 steps, median", value=statistics.median(rounds(outer)), unit="s"),
    ]


def preempted(on: Bench, one: float) -> list[Goal]:
    """The same while the second cluster is preempted in the middle, and comes back."""
    runs = on.submit("--cluster", ",".join(NAMES))
    stays, goes = runs
    third = on.steps // 30
    wait(lambda: len(records(stays, "outer")) >= third, stays)
    number = json.loads((goes / "manifest.json").read_text())["job_id"]
    on.slurm(on.clusters[1], "scontrol", "requeue", str(number))
    left = time.time()
    wait(lambda: groups(stays) == [0], stays)
    wait(lambda: len(records(stays, "outer")) >= 2 * third, stays)
    on.slurm(on.clusters[1], "scontrol", "release", str(number))
    # Slurm holds a requeued job back for a while.
    on.slurm(on.clusters[1], "scontrol", "update", f"JobId={number}", "StartTime=now")
    wait(lambda: groups(stays) == [0, 1] or ended(stays) is not None, stays)
    away = time.time() - left
    on.finish(*runs)
    outer, steps = records(stays, "outer"), records(stays, "step")
    single = [record for record in outer if record["groups"] == [0]]
    numbers, inner = [record["outer_step"] for record in outer], [record["step"] for record in steps]
    # The first of these rounds is the one in which the quorum noticed; in the last, the group that is back gets the state.
    noticed = numbers.index(single[0]["outer_step"])
    back = next(
        (index for index, record in enumerate(outer) if index > noticed and record["groups"] == [0, 1]), len(outer)
    )
    times = rounds(outer)
    after = [*times[noticed : back - 1], *times[back:]]
    final = records(stays, "final")[0]
    return [
        Goal(name="one away: seconds", value=away, unit="s"),
        Goal(name="one away: averages alone", value=len(single), bound=1, at_least=True),
        Goal(name="one away: back before the end", value=float(back < len(outer)), bound=1, at_least=True),
        Goal(name="one away: averages lost or done twice", value=abs(len(numbers) - on.steps // 10), bound=0),
        Goal(
            name="one away: inner steps lost or done twice",
            value=len(inner) - len(set(inner)) + on.steps - len(set(inner)),
            bound=0,
        ),
        Goal(name="one away: loss against one cluster, %", value=100 * abs(final["test_loss"] / one - 1), bound=2),
        Goal(name="one away: the round that noticed", value=times[noticed - 1], unit="s"),
        Goal(
            name="one away: the round that took it back", value=times[back - 1] if back < len(outer) else 0.0, unit="s"
        ),
        Goal(
            name="one away: longest other round after that / median",
            value=max(after) / statistics.median(after),
            bound=2,
        ),
    ]


def rounds(outer: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds between each average and the one before."""
    at = [datetime.fromisoformat(record["time"]).timestamp() for record in outer]
    return [later - earlier for earlier, later in pairwise(at)]


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    """The records of group 0, or of the only group of a cluster."""
    found = [record for record in metrics.records(run) if record["kind"] == kind]
    return [record for record in found if record.get("replica") == found[0].get("replica")]


def groups(run: Path) -> list[int]:
    """The groups of the newest average."""
    quorum = metrics.quorum(run)
    return [*quorum.groups] if quorum else []


def ended(run: Path) -> int | None:
    """A run's exit code, once it has ended for good."""
    lines = (
        (run / "state" / "events.jsonl").read_text().splitlines() if (run / "state" / "events.jsonl").exists() else []
    )
    last = json.loads(lines[-1]) if lines else {}
    return int(last["exit_code"]) if last.get("event") == "end" else None


def _has_ended(run: Path) -> bool:
    return ended(run) is not None


def wait(there: Callable[[], bool], run: Path) -> None:
    """Wait for something of a run; RunError with its last lines after half an hour."""
    until = time.monotonic() + _PATIENCE_S
    while not there():
        if time.monotonic() > until:
            raise RunError(f"{run}: it took more than {_PATIENCE_S:.0f} s")
        time.sleep(0.3)
