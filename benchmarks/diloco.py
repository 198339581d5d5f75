"""Measures what DiLoCo saves and what its faults cost, on an embedded cluster of four nodes with one replica group on each.

    python -m benchmarks diloco [--steps 120] [--only traffic|death|manager]

Needs root (for the nodes' own links), Slurm and the image frameworks-cpu in the store. DDP is the same program with all four ranks
in one group. Bytes are those that left the nodes' interfaces from submit to end, with rendezvous, quorums and heartbeats.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks._common import Goal, project, report
from kit import Job, submit
from kit.api import Run
from kit.config import merge
from kit.errors import RunError
from kit.files import json_lines
from kit.record import metrics
from kit.slurm.embedded import ClusterSize, EmbeddedCluster, down, node_links, up

NAME, NODES = "bench-diloco", 4
PROFILE = """\
embedded = true
[node]
cpus = 8
gpus = 1
[paths]
store = "{data}/images"
[defaults.env]
OMP_NUM_THREADS = "1"
"""
MODEL = ("--layers", "2", "--dim", "64", "--context", "64", "--batch-size", "32", "--warmup", "10", "--log-every", "1")
TOKENS_A_STEP = 32 * 64
JOB: Mapping[str, Any] = {
    "name": "bench",
    "launcher": "diloco",
    "image": "frameworks-cpu",
    "seed": 7,
    "resources": {"nodes": NODES, "gpus_per_node": 1},
    "checkpoint": {"every": 0},
    "diloco": {"outer_lr": 1.0, "outer_momentum": 0.0, "timeout": 10},
}

# A training step next to a manager server, as in launchers/diloco, and the same step without one, in turn.
OVERHEAD = """\
import datetime, os, pathlib, statistics, time
import torch
from torch.distributed import TCPStore
from torchft.coordination import LighthouseServer, ManagerServer

torch.set_num_threads(1)
net = torch.nn.Sequential(*(torch.nn.Linear(384, 384) for _ in range(6)))
optimizer = torch.optim.AdamW(net.parameters())
batch = torch.randn(64, 384)

def block():
    began = time.perf_counter()
    for _ in range(20):
        net(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - began

second = datetime.timedelta(seconds=60)
lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
block()
ratios = []
for number in range(60):
    alone = block()
    server = ManagerServer(
        replica_id=f"{number}", lighthouse_addr=f"http://127.0.0.1:{lighthouse.address().rpartition(':')[2]}",
        hostname="127.0.0.1", bind="0.0.0.0:0", store_addr=f"127.0.0.1:{store.port}", world_size=1,
        heartbeat_interval=datetime.timedelta(milliseconds=100), connect_timeout=second, quorum_retries=0,
    )
    ratios.append(block() / alone)
    server.shutdown()
pathlib.Path(os.environ["KIT_RUN_DIR"], "overhead").write_text(str(statistics.median(ratios)))
os._exit(0)
"""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A project on the benchmark's cluster. steps: inner steps of a run."""

    cluster: EmbeddedCluster
    folder: Path
    steps: int

    def start(self, steps: int, **more: Any) -> Run:
        """Submit a training of `steps` inner steps, with more keys of the job file."""
        job = merge({**JOB, "args": [*MODEL, "--steps", str(steps)]}, more)
        return submit(Job.model_validate(job), cluster=NAME, folder=self.folder)

    def finish(self, run: Run) -> Run:
        """Wait for the run's end, which must be a success."""
        status = run.wait()
        if status.exit_code != 0:
            raise RunError(f"{run.folder}: {status.state}, exit code {status.exit_code}")
        return run


def main(arguments: Sequence[str]) -> int:
    """Print the tables. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks diloco", description=__doc__)
    parser.add_argument("--steps", type=int, default=120, help="inner steps of each run; a multiple of 30")
    parser.add_argument("--only", choices=tuple(PARTS), help="one of the three")
    options = parser.parse_args(arguments)
    with bench(options.steps) as on:
        return report([goal for name, part in PARTS.items() if options.only in {None, name} for goal in part(on)])


@contextmanager
def bench(steps: int) -> Iterator[Bench]:
    """The cluster, and a project on it."""
    with project(NAME, PROFILE) as folder:
        try:
            cluster = up(NAME, ClusterSize(nodes=NODES, gpus_per_node=1, placeholder_gpus=True))
            yield Bench(cluster=cluster, folder=folder, steps=steps)
        finally:
            down(NAME)


def traffic(on: Bench) -> list[Goal]:
    """Bytes over the links per token: those of DDP divided by those of each program."""
    programs: dict[str, dict[str, Any]] = {
        "DDP": {"nodes_per_replica": NODES, "sync_every": on.steps},
        "DiLoCo, H 10": {"sync_every": 10},
        "DiLoCo, H 30": {"sync_every": 30},
        "DiLoCo, H 30, 8 bits": {"sync_every": 30, "bits": 8},
        "DiLoCo, H 30, 2 bits": {"sync_every": 30, "bits": 2},
        "MuLoCo, H 30, 2 bits": {"sync_every": 30, "bits": 2, "inner": "muon"},
    }
    print("| program | bytes a token | DDP / this | test loss |\n|---|---|---|---|")
    each: dict[str, float] = {}
    for name, keys in programs.items():
        before = node_links.sent(on.cluster)
        loss = on.finish(on.start(on.steps, diloco=keys)).metrics()["test_loss"]
        each[name] = (node_links.sent(on.cluster) - before) / (on.steps * TOKENS_A_STEP)
        print(f"| {name} | {each[name]:.1f} | {each['DDP'] / each[name]:.1f} | {loss:.3f} |", flush=True)
    print()
    plain = each["DDP"] / each["DiLoCo, H 30"]
    least = {"DiLoCo, H 10": 9.0, "DiLoCo, H 30": 27.0, "DiLoCo, H 30, 8 bits": plain, "DiLoCo, H 30, 2 bits": plain}
    return [
        Goal(name=f"bytes a token, DDP / {name}", value=each["DDP"] / each[name], bound=bound, at_least=True)
        for name, bound in least.items()
    ]


def death(on: Bench) -> list[Goal]:
    """kill -9 of one of four groups: the steps that the others lose, and the time until the group is back."""
    run = on.start(10 * on.steps, diloco={"sync_every": 10}, checkpoint={"every": 1})
    while (quorum := metrics.quorum(run.folder)) is None or quorum.outer_step < 5:
        time.sleep(0.05)
    killed = time.time()
    os.kill(rank_of(2), signal.SIGKILL)
    on.finish(run)
    done = Counter(one["step"] for one in records(run, "step", group=0))
    meetings = records(run, "outer", group=0)
    back = next(at for at in map(when, records(run, "outer", group=2)) if at > killed)
    waited = max(one["seconds_blocked"] for one in meetings if killed < when(one) <= back)
    usual = statistics.median(one["seconds_blocked"] for one in meetings)
    amiss = sum(done[step] != 1 for step in range(1, 10 * on.steps + 1))
    return [
        Goal(name="inner steps that a survivor left out or did again", value=amiss, bound=0),
        Goal(name="a survivor's longest outer step until then", value=waited, unit="s"),
        Goal(name="its outer step otherwise, median", value=usual, unit="s"),
        Goal(name="from the death of a group to its next outer step", value=back - killed, unit="s"),
    ]


def records(run: Run, kind: str, *, group: int) -> list[json_lines.Record]:
    """The records of one kind that a group wrote."""
    return [one for one in metrics.records(run.folder / f"replica-{group}") if one["kind"] == kind]


def when(record: json_lines.Record) -> float:
    """The time of a record, in seconds since 1970."""
    return datetime.fromisoformat(record["time"]).timestamp()


def rank_of(group: int) -> int:
    """The process of a group's rank, below its torchrun. Only one job runs on the cluster."""
    wanted = {f"SLURM_CLUSTER_NAME={NAME}".encode(), f"REPLICA_GROUP_ID={group}".encode(), b"LOCAL_RANK=0"}
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            words = (proc / "cmdline").read_bytes().split(b"\0")
            environ = set((proc / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if b"python" in words[0] and any(word.endswith(b"code/train.py") for word in words) and wanted <= environ:
            return int(proc.name)
    raise RunError(f"group {group} has no rank that runs")


def manager(on: Bench) -> list[Goal]:
    """A step next to torchft's manager server, divided by a step without it. Between outer steps nothing calls torchft."""
    (on.folder / "overhead.py").write_text(OVERHEAD)
    one_rank = {
        "launcher": "ddp",
        "shape": "srun",
        "script": "overhead.py",
        "resources": {"nodes": 1, "gpus_per_node": 1},
    }
    job = {key: value for key, value in JOB.items() if key != "diloco"} | one_rank
    run = on.finish(submit(Job.model_validate(job), cluster=NAME, folder=on.folder))
    ratio = float((run.folder / "overhead").read_text())
    return [Goal(name="inner step beside torchft's manager / without", value=ratio, bound=1.02)]


PARTS = {"traffic": traffic, "death": death, "manager": manager}
