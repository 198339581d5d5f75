"""Compares `kit when` with Slurm: 500 jobs in the shape of a public workload trace, on two embedded clusters with backfill.

    python -m benchmarks when [--jobs 500] [--nodes 32] [--seed 20] [--share 1.0] [--json FILE]
    python -m benchmarks when --simulated [--seeds 5]

Both clusters get the same jobs at the same times. On one, each job is submitted as its user wrote it. On the other, its user would
also accept a quarter, half or twice the nodes, with a matching limit, and gets the size that `kit when` names first. Before each
submit, the kit and `sbatch --test-only` estimate the start. Slurm's own record has the true start.

`--simulated` plays the same jobs without Slurm, in minutes, for several seeds. With `--share 0.2` a fifth of the users choose, and
the figures are those of their jobs.

The jobs sleep. On n times the nodes they sleep n ** 0.9 times shorter, because parallel work has a cost. Needs Slurm and 20
minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory

from benchmarks._common import Goal, report
from benchmarks._simulated_queue import SimulatedCluster, SimulatedJob
from benchmarks._workload import TraceJob, jobs
from kit import shell
from kit.forecast.backfill import NodeRequest
from kit.forecast.starts import Queue
from kit.slurm import client, embedded, queue_snapshot
from kit.slurm.queue_snapshot import Amount, QueueSnapshot

_CPUS = 4
_SCALE, _LOAD = 240.0, 1.0
_OTHER_SIZES = (0.25, 0.5, 2.0)
_SPEED_UP = 0.9
# A minute of the trace is a quarter of a second here, so Slurm's rounding and its waits are scaled, too.
_BACKFILL = "batch_sched_delay=0,sched_interval=2,bf_interval=2,bf_resolution=1,bf_continue"
# A wait that is shorter than Slurm's own cycle does not count as a wait.
_WAITED_S = 5.0


@dataclass(kw_only=True)
class Sent:
    """A job as it was submitted. Times are seconds since the epoch. Estimates are those before the submit.

    late: seconds by which this machine submitted it after its time in the trace.
    """

    job_id: int
    nodes: int
    late: float
    submitted: float
    by_limits: float | None
    likely: float | None
    slurms: float | None
    started: float = 0.0
    ended: float = 0.0

    @property
    def wait(self) -> float:
        """The wait in seconds. Slurm records whole seconds, so a start in the second of the submit may seem to be before it."""
        return max(0.0, self.started - self.submitted)


def main(options: Sequence[str]) -> int:
    """Return 1 when the mean wait is not 30 % shorter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--scale", type=float, default=_SCALE, help="seconds of the trace for each of here")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of the users who choose; the figures are theirs"
    )
    parser.add_argument("--simulated", action="store_true", help="without Slurm and without its clock")
    parser.add_argument("--seeds", type=int, default=5, help="number of simulated seeds, from --seed on")
    parser.add_argument("--json", type=Path, help="write every job of both clusters here")
    asked = parser.parse_args(options)
    if asked.simulated:
        return _simulated(asked)
    trace, choosing = _trace(asked, asked.seed)
    print(
        f"{len(trace)} jobs over {trace[-1].at / 60:.0f} min on {asked.nodes} nodes, seed {asked.seed}", file=sys.stderr
    )
    with ThreadPoolExecutor(2) as both:
        arms = [
            both.submit(run, name, trace, asked.nodes, choosing if name == "chosen" else frozenset())
            for name in ("fixed", "chosen")
        ]
        fixed, chosen = ([arm.result()[number] for number in sorted(choosing)] for arm in arms)
    if asked.json:
        asked.json.write_text(json.dumps({"fixed": [*map(asdict, fixed)], "chosen": [*map(asdict, chosen)]}))
    return report(goals(fixed, chosen))


def goals(fixed: Sequence[Sent], chosen: Sequence[Sent]) -> list[Goal]:
    """The figures, in seconds."""
    waits = [fmean(one.wait for one in arm) for arm in (fixed, chosen)]
    spans = [fmean(one.ended - one.submitted for one in arm) for arm in (fixed, chosen)]
    found = [
        Goal(name="mean wait, as written", value=waits[0], unit="s"),
        Goal(name="mean wait, chosen by kit when", value=waits[1], unit="s"),
        Goal(name="wait saved", value=1 - waits[1] / waits[0], bound=0.3, at_least=True),
        Goal(name="submit to end, as written", value=spans[0], unit="s"),
        Goal(name="submit to end, chosen", value=spans[1], unit="s"),
    ]
    for name, arm in (("as written", fixed), ("chosen", chosen)):
        found.append(
            Goal(name=f"submitted after its time, mean, {name}", value=fmean(one.late for one in arm), unit="s")
        )
        waited = [one for one in arm if one.wait > _WAITED_S]
        found.append(Goal(name=f"jobs that waited over {_WAITED_S:.0f} s, {name}", value=len(waited)))
        if not waited:
            continue
        found.append(Goal(name=f"median of their waits, {name}", value=median(one.wait for one in waited), unit="s"))
        for guess in ("likely", "by_limits", "slurms"):
            for whose, some in (("of those", waited), ("all jobs", arm)):
                missed = [abs(at - one.started) for one in some if (at := getattr(one, guess)) is not None]
                if missed:
                    found.append(Goal(name=f"median error of {guess}, {name}, {whose}", value=median(missed), unit="s"))
    return found


def _trace(asked: argparse.Namespace, seed: int) -> tuple[list[TraceJob], frozenset[int]]:
    """The jobs, and the indices of those whose users choose."""
    draw = random.Random(seed)
    choosing = frozenset(number for number in range(asked.jobs) if draw.random() < asked.share)
    return jobs(asked.jobs, nodes=asked.nodes, load=_LOAD, scale=asked.scale, seed=seed), choosing


def _simulated(asked: argparse.Namespace) -> int:
    found = []
    for seed in range(asked.seed, asked.seed + asked.seeds):
        trace, choosing = _trace(asked, seed)
        arms = [_play(trace, asked.nodes, some) for some in (frozenset[int](), choosing)]
        waits, spans = (
            [fmean(getattr(arm[number], what) for number in choosing) for arm in arms] for what in ("wait", "span")
        )
        found.append((*waits, *spans))
        words = (
            f"{what} {was:.1f} s as written, {now:.1f} s chosen"
            for what, was, now in (("wait", *waits), ("submit to end", *spans))
        )
        print(f"seed {seed}: {'; '.join(words)}", file=sys.stderr, flush=True)
    wait, chosen_wait, span, chosen_span = (fmean(column) for column in zip(*found, strict=True))
    return report(
        [
            Goal(name=f"mean wait, as written, {asked.seeds} seeds", value=wait, unit="s"),
            Goal(name="mean wait, chosen by kit when", value=chosen_wait, unit="s"),
            Goal(name="wait saved", value=1 - chosen_wait / wait, bound=0.3, at_least=True),
            Goal(name="wait saved, the worst seed", value=min(1 - now / was for was, now, *_ in found)),
            Goal(name="submit to end, as written", value=span, unit="s"),
            Goal(name="submit to end, chosen", value=chosen_span, unit="s"),
            Goal(name="submit to end saved, the worst seed", value=min(1 - now / was for *_, was, now in found)),
        ]
    )


def _play(trace: Sequence[TraceJob], nodes: int, choosing: frozenset[int]) -> list[SimulatedJob]:
    """All jobs, in the order of the trace, at the end of a simulation."""
    chooses = {id(job): number in choosing for number, job in enumerate(trace)}

    def choose(job: TraceJob, seen: QueueSnapshot) -> TraceJob:
        if not chooses[id(job)]:
            return job
        queue = Queue(seen)
        return min(_sizes(job, nodes), key=lambda one: queue.start(_request(one)).rank)

    cluster = SimulatedCluster(nodes, cpus=_CPUS)
    cluster.play(trace, choose)
    return sorted(cluster.done, key=lambda one: one.submitted)


def run(name: str, trace: Sequence[TraceJob], nodes: int, choosing: frozenset[int]) -> list[Sent]:
    """Run all jobs on a cluster, each with its times by Slurm's record. choosing: the jobs whose users choose."""
    size = embedded.ClusterSize(
        nodes=nodes,
        gpus_per_node=0,
        cpus_per_node=_CPUS,
        conf={"SchedulerParameters": _BACKFILL, "MaxJobCount": "20000"},
    )
    with TemporaryDirectory(prefix="kit-when-") as folder:
        cluster = embedded.up(f"when-{name}", size, folder=Path(folder) / "cluster", pyxis="none", say=lambda _: None)
        try:
            env = client.environment(cluster.env())
            began = time.time()
            sent = []
            for number, job in enumerate(trace):
                time.sleep(max(0.0, began + job.at - time.time()))
                sent.append(_submit(job, nodes, env, due=began + job.at, chosen=number in choosing))
            return _ended(sent, env)
        finally:
            embedded.down(f"when-{name}", folder=Path(folder) / "cluster")


def _sizes(job: TraceJob, most: int) -> list[TraceJob]:
    """The job as written, then at the other sizes."""
    found = [job]
    for factor in _OTHER_SIZES:
        nodes = int(job.nodes * factor)
        if 1 <= nodes <= most:
            longer = (job.nodes / nodes) ** _SPEED_UP
            limit = max(1, math.ceil(job.limit * longer))
            found.append(TraceJob(at=job.at, nodes=nodes, run=job.run * longer, limit=limit))
    return found


def _submit(job: TraceJob, most: int, env: Mapping[str, str], *, due: float, chosen: bool) -> Sent:
    queue = Queue(queue_snapshot.read_queue(env=env))
    # Plan all sizes on both clusters: planning takes time, and jobs must arrive at the same times on both.
    sizes = [(one, queue.start(_request(one))) for one in _sizes(job, most)]
    best, start = min(sizes, key=lambda one: one[1].rank) if chosen else sizes[0]
    options = ["--exclusive", f"--nodes={best.nodes}", f"--time={best.limit}", "--output=/dev/null"]
    script = f"#!/bin/sh\nsleep {best.run:.3f}\n"
    submitted = time.time()
    told = client.test_only(script, env=env, options=options)
    with TemporaryDirectory(prefix="kit-when-") as folder:
        path = Path(folder) / "job.sh"
        path.write_text(script)
        job_id = client.submit(["sbatch", "--parsable", *options, str(path)], env=env)
    return Sent(
        job_id=job_id,
        nodes=best.nodes,
        late=submitted - due,
        submitted=submitted,
        by_limits=start.by_limits,
        likely=start.likely,
        slurms=told.time if told else None,
    )


def _request(job: TraceJob) -> NodeRequest:
    return NodeRequest(nodes=job.nodes, each=Amount(cpus=1), limit=60.0 * job.limit, whole_nodes=True)


def _ended(sent: list[Sent], env: Mapping[str, str]) -> list[Sent]:
    """The jobs with their times, once all have ended."""
    argv = ["squeue", "--noheader", "--states=all", "--Format=JobID:|,StateCompact:|,StartTime:|,EndTime:|"]
    while True:
        text = shell.run(argv, env={**env, "SLURM_TIME_FORMAT": "%s"}, timeout=60).stdout
        rows = {int(number): rest for number, *rest in (line.split("|") for line in text.splitlines())}
        # On a busy machine, a job whose run time equals its limit may reach the limit.
        if all(rows[one.job_id][0] in {"CD", "TO"} for one in sent):
            break
        if bad := {rows[one.job_id][0] for one in sent} - {"CD", "TO", "R", "PD", "CG", "CF"}:
            raise SystemExit(f"jobs ended as {', '.join(sorted(bad))}")
        time.sleep(2)
    for one in sent:
        one.started, one.ended = float(rows[one.job_id][1]), float(rows[one.job_id][2])
    return sent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
