"""Measures the seconds from the kill -9 of a rank to the end of the next optimizer step, and where they go.

    python -m benchmarks recovery [--kills 20] [--peer-kills 5] [--nodes 4] [--ranks 2] [--only warm,keep]

Needs Slurm on this machine and .train-venv with torch. Every way trains the same small model with DDP over gloo, on the same ranks
(_recovery_program.py). The last rank kills itself after some steps; the times of the kill and of what rank 0 does after it are
written down. Several kills belong to one job, so that only restarts are measured, not the start of the job.

- step: the kit starts the ranks' whole step again, `retry.in_allocation`. Every rank imports torch again.
- torchrun: torchrun's own restart, `torchrun.max_restarts`. The same imports, and its agents meet anew.
- nvrx: nvidia-resiliency-ext's in-process wrapper, installed into .bench-nvrx, under a plain srun. The survivors continue; a rank
  in reserve, which has imported everything, takes the place of the dead one. A job has two in reserve, so it has two kills.
- warm: `retry.warm`, ranks are forked from a process of their node that has imported what they import.
- keep: `retry.keep`, the survivors live on, and the dead rank alone is forked.

The peers take a quarter of a minute for a kill, so they get fewer kills by default.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import _recovery_times as times
from benchmarks._common import ROOT, Goal, project, report
from kit import shell
from kit.errors import ToolError
from kit.slurm import client
from kit.slurm.embedded import ClusterSize, down, up

NAME = "bench-back"
PYTHON = ROOT / ".train-venv/bin/python"
PROGRAM = Path(__file__).with_name("_recovery_program.py")
NVRX, NVRX_WANTS = ROOT / ".bench-nvrx", Path(__file__).with_name("requirements-nvrx.txt")
PROFILE = "embedded = true\n[node]\ncpus = 8\ngpus = 1\n[defaults.env]\nOMP_NUM_THREADS = '1'\n"
JOB = """\
name = "bench"
launcher = "ddp"
script = "program.py"
python = "{python}"
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
# The task's number is its rank. Those in reserve have the highest.
PLAIN = """\
#!/bin/bash
export MASTER_ADDR=$(scontrol show hostnames | head -n 1) MASTER_PORT=29400 OMP_NUM_THREADS=1 WORLD_SIZE=$SLURM_NTASKS
export PYTHONPATH={nvrx}
srun --kill-on-bad-exit=0 --distribution=block bash -c \
    'LOCAL_RANK=$SLURM_LOCALID RANK=$SLURM_PROCID exec {python} "$PROGRAM" {kills} {way} {world}'
"""
# The last two are imported by torch itself, with the first steps of an optimizer and of DDP.
MODULES = [
    "numpy",
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch._dynamo",
    "torch.distributed._functional_collectives",
]
# A step's p50 beyond the loading of the model, with survivors kept; and with warm ranks in all.
WARM_S, KEEP_S = 2.0, 1.0


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A project on the benchmark's cluster. nodes: of the job; ranks: on each of them."""

    project: Path
    env: dict[str, str]
    nodes: int
    ranks: int

    def submit(self, way: str, kills: int, *sets: str, args: Sequence[str] = ()) -> list[times.Recovery]:
        """Run a job with its kills to its end. ToolError when it fails."""
        words = [
            f"args={json.dumps([str(kills), way, *args])}",
            f"retry.in_allocation={kills}",
            "retry.no_progress=0",
            *sets,
        ]
        argv = [sys.executable, "-m", "kit", "submit", "--cluster", NAME, "--wait"]
        argv += [word for text in words for word in ("--set", text)]
        done = shell.run(argv, cwd=self.project, env=self.env, check=False)
        folder = Path((done.stdout.splitlines() or ["no folder"])[0])
        if done.returncode:
            log = folder / "logs" / "batch.log"
            raise ToolError(f"{way}: {done.stderr[-1000:]}{log.read_text()[-2000:] if log.exists() else ''}")
        return times.read(folder)

    def plainly(self, way: str, kills: int, *, ranks: int) -> list[times.Recovery]:
        """Run the program by sbatch and srun alone, as a user of a peer does. srun does not end the others when a rank dies.

        ranks: with those in reserve, of which each node has as many as another, or one less. ToolError when it fails.
        """
        folder = self.project / "runs" / f"{way}-{time.time_ns()}"
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "batch.sh").write_text(
            PLAIN.format(nvrx=NVRX, python=PYTHON, kills=kills, way=way, world=self.nodes * self.ranks)
        )
        words = [f"--nodes={self.nodes}", f"--ntasks={ranks}", "--time=3", "--output=output", f"--chdir={folder}"]
        env = {**self.env, "KIT_RUN_DIR": str(folder), "PROGRAM": str(self.project / "program.py")}
        done = shell.run(["sbatch", "--wait", *words, "batch.sh"], cwd=folder, env=env, check=False)
        if len((folder / "kills").read_text().splitlines()) < kills or not (folder / "ended").exists():
            raise ToolError(f"{way}: {done.stderr[-1000:]}{(folder / 'output').read_text()[-2000:]}")
        return times.read(folder)


def lacking() -> str:
    """What this machine lacks for the table; empty if nothing."""
    return "" if PYTHON.exists() else f"{PYTHON} is not there: make training makes it"


def main(arguments: Sequence[str]) -> int:
    """Print the tables. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks recovery", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="kills of the kit's own ways, warm and keep")
    parser.add_argument("--peer-kills", type=int, default=5, help="kills of the others")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=2, help="ranks on each node")
    parser.add_argument("--only", help=f"some of {','.join(WAYS)}")
    options = parser.parse_args(arguments)
    chosen = options.only.split(",") if options.only else [*WAYS]
    if unknown := [name for name in chosen if name not in WAYS]:
        parser.error(f"--only: no such way: {unknown[0]}; there are: {', '.join(WAYS)}")
    if problem := lacking():
        parser.error(problem)
    seen: dict[str, list[times.Recovery]] = {}
    with bench(options) as on:
        for name in chosen:
            kills = options.kills if name in {"warm", "keep"} else options.peer_kills
            try:
                seen[name] = WAYS[name](on, kills)
            except (ToolError, OSError) as error:
                # A peer that cannot be installed or does not run here. It has a row, and the others are still measured.
                print(f"{name} was not measured: {error}", file=sys.stderr)
                seen[name] = []
    print(times.table(seen))
    print()
    return report(goals(seen))


def goals(seen: dict[str, list[times.Recovery]]) -> list[Goal]:
    """The p50 of each way, and what the issue asks of the kit's own. A way of the kit's that failed misses its goal."""
    found = [Goal(name=f"{name}, p50", value=middle([r.total for r in one]), unit="s") for name, one in seen.items()]
    if "warm" in seen:
        found.append(Goal(name="warm, p50", value=middle([r.total for r in seen["warm"]]), unit="s", bound=WARM_S))
    if "keep" in seen:
        beyond = middle([r.beyond_load for r in seen["keep"]])
        found.append(Goal(name="keep, p50 beyond the loading of the model", value=beyond, unit="s", bound=KEEP_S))
    return found


def middle(values: Sequence[float]) -> float:
    """The median; nan of nothing."""
    return statistics.median(values) if values else math.nan


@contextmanager
def bench(options: argparse.Namespace) -> Iterator[Bench]:
    """The cluster, and a project for its jobs."""
    words = {"python": PYTHON, "nodes": options.nodes, "ranks": options.ranks}
    with project(NAME, PROFILE, JOB.format(**words)) as folder:
        shutil.copy(PROGRAM, folder / "program.py")
        try:
            cluster = up(NAME, ClusterSize(nodes=options.nodes, gpus_per_node=1, placeholder_gpus=True))
            env = client.environment(cluster.env())
            yield Bench(project=folder, env=env, nodes=options.nodes, ranks=options.ranks)
        finally:
            down(NAME)


def step(on: Bench, kills: int) -> list[times.Recovery]:
    """The kit's restart of the whole step."""
    return on.submit("plain", kills, "shape=srun")


def torchrun(on: Bench, kills: int) -> list[times.Recovery]:
    """torchrun's own restart."""
    return on.submit("plain", kills, "shape=torchrun", f"torchrun.max_restarts={kills}")


def nvrx(on: Bench, kills: int) -> list[times.Recovery]:
    """nvidia-resiliency-ext's in-process wrapper. Each job has one rank more on every other node, as its reserve."""
    install_nvrx()
    found: list[times.Recovery] = []
    reserve = max(1, on.nodes // 2)
    while len(found) < kills:
        # As many in reserve as are needed: at the end, one that was not needed kept the others from leaving (0.4.1, seen).
        here = min(reserve, kills - len(found))
        found += on.plainly("nvrx", here, ranks=on.nodes * on.ranks + here)
    return found


def warm(on: Bench, kills: int) -> list[times.Recovery]:
    """Ranks that are forked from a process that has imported what the program imports."""
    return on.submit("plain", kills, "shape=srun", f"retry.warm={json.dumps(MODULES)}")


def keep(on: Bench, kills: int) -> list[times.Recovery]:
    """The same, with survivors that live on."""
    return on.submit("keep", kills, "shape=srun", f"retry.warm={json.dumps(MODULES)}", "retry.keep=true")


def install_nvrx() -> None:
    """Install it at the versions of requirements-nvrx.txt, unless it is there."""
    stamp = NVRX / NVRX_WANTS.name
    if stamp.exists() and stamp.read_text() == NVRX_WANTS.read_text():
        return
    shutil.rmtree(NVRX, ignore_errors=True)
    shell.run(
        [
            str(PYTHON),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(NVRX),
            "--requirement",
            str(NVRX_WANTS),
        ]
    )
    shutil.copy(NVRX_WANTS, stamp)


WAYS: dict[str, Callable[[Bench, int], list[times.Recovery]]] = {
    "step": step, "torchrun": torchrun, "nvrx": nvrx, "warm": warm, "keep": keep,
}  # fmt: skip
