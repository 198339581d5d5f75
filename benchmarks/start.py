"""Measures the seconds from submit to the first rank, and of the first `import torch`, beside what one would use without the kit.

    python -m benchmarks start [--rounds 3] [--only submit,import] [--ranks 1,4,8]

Needs root, Slurm with Pyxis, squashfuse and the image train-cpu in the store.

- submit: `kit submit` to the first line of the first rank, against `sbatch` of a script with one `srun --container-image` of the
  same image and the same program. 2 nodes, 2 ranks on each, in turn.
- import: `import torch` in 1, 4 and 8 processes at once from one mount: by the kernel, by squashfuse as it is, and as the kit
  mounts. And the first one after a mount: with the image's file in memory, without it, and without it but with the hot pages read
  ahead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._common import ROOT, Goal, project, report
from benchmarks._mounted_import import WAYS
from kit import data_folders, render, shell
from kit.images import image_lock
from kit.slurm import client
from kit.slurm.embedded import ClusterSize, down, up

NAME = "bench-start"
RANKS = 4
PROFILE = "embedded = true\n[node]\ncpus = 8\ngpus = 1\n"
JOB = """\
name = "bench"
launcher = "ddp"
script = "program.py"
image = "train-cpu"
shape = "srun"
[resources]
nodes = 2
gpus_per_node = 1
ranks_per_node = 2
[container]
runtime = "pyxis"
"""
# The first line of a rank. The environment has the folder under another name in each way.
PROGRAM = """\
import os, pathlib, time
now = time.time()
pathlib.Path(os.environ.get("KIT_RUN_DIR") or os.environ["OUT"], f"first-{os.environ['SLURM_PROCID']}").write_text(str(now))
"""
PLAIN = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=2 --output={out}/log
echo $EPOCHREALTIME >{out}/batch
export OUT={out}
srun --mpi=none --cpus-per-task=2 --container-image={image} --container-mounts={out}:{out},{folder}:{folder} \\
    --no-container-mount-home /opt/venv/bin/python {folder}/program.py
"""
KIT_WAYS = [name for name in WAYS if name.startswith("kit")]


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """Seconds of one submit: until the command returned, the job started, the ranks were launched, the first rank's first line."""

    accepted: float
    started: float
    launched: float
    first: float


def image() -> Path:
    """The file of train-cpu in the store."""
    locked = image_lock.read_lock(ROOT / "containers/train-cpu/image.lock")
    return data_folders.user_data() / "images/sha256" / f"{locked.sha256}.sqsh"


def lacking() -> str:
    """What this machine lacks for the table; empty if nothing."""
    there = not os.geteuid() and image().exists()
    return "" if there else "needs root, and train-cpu in the store (kit build-image train-cpu)"


def main(arguments: Sequence[str]) -> int:
    """Print the tables. Returns 1 when a goal is missed, 2 where something that it needs is missing."""
    parser = argparse.ArgumentParser(prog="benchmarks start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="submit,import")
    parser.add_argument("--ranks", default="1,4,8", help="numbers of processes that import at once")
    options = parser.parse_args(arguments)
    if problem := lacking():
        print(f"start: {problem}", file=sys.stderr)
        return 2
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores\n")
    goals = []
    if "submit" in options.only:
        goals += submits(options.rounds)
    if "import" in options.only:
        goals += imports(options.rounds, [int(word) for word in options.ranks.split(",")])
    print()
    return report(goals)


def submits(rounds: int) -> list[Goal]:
    """Submit in turn, the peer first, and compare the medians. The first round of each is a warm-up."""
    with project(NAME, PROFILE, JOB) as folder:
        (folder / "program.py").write_text(PROGRAM)
        try:
            cluster = up(NAME, ClusterSize(nodes=2, gpus_per_node=1, placeholder_gpus=True))
            if not cluster.has_pyxis:
                print("start: submit is left out: Pyxis is not on this machine", file=sys.stderr)
                return []
            env = client.environment(cluster.env())
            took = {"plain": [plain(folder, env)], "kit": [by_kit(folder, env)]}
            for _ in range(rounds):
                took["plain"].append(plain(folder, env))
                took["kit"].append(by_kit(folder, env))
        finally:
            down(NAME)
    print(
        "| submit to first rank, s | command | queue | batch script | step, container, rank | all |\n|---|---|---|---|---|---|"
    )
    medians = {}
    for name, found in took.items():
        one = Submitted(**{key: statistics.median(getattr(each, key) for each in found[1:]) for key in vars(found[0])})
        medians[name] = one
        parts = (
            one.accepted,
            one.started - one.accepted,
            one.launched - one.started,
            one.first - one.launched,
            one.first,
        )
        print(f"| {name} | {' | '.join(f'{part:.2f}' for part in parts)} |")
    print()
    return [
        Goal(name="submit to first rank, kit / srun", value=medians["kit"].first / medians["plain"].first, bound=1.5)
    ]


def plain(folder: Path, env: dict[str, str]) -> Submitted:
    """sbatch of a script with one srun."""
    out = Path(tempfile.mkdtemp(dir=folder))
    (out / "job.sh").write_text(PLAIN.format(out=out, image=image(), folder=folder))
    began = time.time()
    shell.run(["sbatch", str(out / "job.sh")], env=env)
    accepted = time.time()
    first = first_rank(out)
    started = float((out / "batch").read_text())
    idle(env)
    return Submitted(accepted=accepted - began, started=started - began, launched=started - began, first=first - began)


def by_kit(folder: Path, env: dict[str, str]) -> Submitted:
    """kit submit of the same program."""
    began = time.time()
    argv = [sys.executable, "-m", "kit", "submit", "--cluster", NAME]
    run = Path(shell.run(argv, cwd=folder, env=env).stdout.splitlines()[0])
    accepted = time.time()
    first = first_rank(run)
    events = [json.loads(line) for line in (run / "state/events.jsonl").read_text().splitlines()]
    at = {event["event"]: float(event["epoch"]) for event in reversed(events)}
    idle(env)
    return Submitted(
        accepted=accepted - began, started=at["start"] - began, launched=at["attempt"] - began, first=first - began
    )


def first_rank(folder: Path) -> float:
    """When the first of the ranks wrote its line, once all have. SystemExit after two minutes."""
    for _ in range(1200):
        found = [text for path in folder.glob("first-*") if (text := path.read_text())]
        if len(found) == RANKS:
            return min(map(float, found))
        time.sleep(0.1)
    raise SystemExit(f"start: no ranks in {folder}")


def idle(env: dict[str, str]) -> None:
    """Wait until the queue is empty: the next job must not wait for this one."""
    while shell.run(["squeue", "--noheader"], env=env).stdout.strip():
        time.sleep(0.2)


def imports(rounds: int, ranks: Sequence[int]) -> list[Goal]:
    """Import in turn in every way."""
    with tempfile.TemporaryDirectory(prefix="kit-bench-") as name:
        folder = Path(name)
        make_run(folder)
        listed = folder / "runs/.hot-pages" / image().stem
        one_import(folder, "kernel", 1, "again")
        one_import(folder, KIT_WAYS[0], 1, "again", str(listed))
        hot = sum(int(line.split()[1]) for line in listed.read_text().splitlines()[1:])
        print(f"hot pages: {hot / 1e6:.0f} of {image().stat().st_size / 1e6:.0f} MB\n")
        cells: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
        wanted = [(way, count, "warm") for count in ranks for way in WAYS]
        wanted += [
            (way, 1, state)
            for state in ("again", "cold", "ahead")
            for way in WAYS
            if state != "ahead" or way != "squashfuse"
        ]
        for _ in range(rounds):
            for cell in wanted:
                cells.setdefault(cell, []).append(one_import(folder, *cell))
    print("| import torch | ranks at once | file in memory | wall s | CPU s |\n|---|---|---|---|---|")
    states = {"warm": "yes, mounted before", "again": "yes", "cold": "no", "ahead": "no, hot pages read ahead"}
    wall, cpu = ({cell: statistics.median(one[i] for one in found) for cell, found in cells.items()} for i in (0, 1))
    for cell in wanted:
        print(f"| {cell[0]} | {cell[1]} | {states[cell[2]]} | {wall[cell]:.2f} | {cpu[cell]:.2f} |")
    return [*together(wall, cpu, ranks), *cold(wall)]


Figures = dict[tuple[str, int, str], float]


def together(wall: Figures, cpu: Figures, ranks: Sequence[int]) -> list[Goal]:
    """FUSE against the kernel's mount, for the largest number of ranks at once. CPU time is the same on a busy machine."""
    most, kernel = max(ranks), ("kernel", max(ranks), "warm")
    goals = []
    for way in (name for name in WAYS if name != "kernel"):
        bound = 1.3 if way in KIT_WAYS else None
        cell = (way, most, "warm")
        goals.append(Goal(name=f"{most} ranks at once, {way} / kernel", value=wall[cell] / wall[kernel], bound=bound))
        goals.append(Goal(name=f"{most} ranks at once, {way} / kernel, CPU", value=cpu[cell] / cpu[kernel]))
    return goals


def cold(wall: Figures) -> list[Goal]:
    """The first import on a node without the file in memory, against one with it, both right after the mount."""
    goals = []
    for way in ("kernel", *KIT_WAYS):
        warm = wall[way, 1, "again"]
        goals.append(Goal(name=f"cold / warm, {way}, not read ahead", value=wall[way, 1, "cold"] / warm))
        goals.append(Goal(name=f"cold / warm, {way}", value=wall[way, 1, "ahead"] / warm, bound=1.2))
    return goals


def make_run(folder: Path) -> None:
    """What read-ahead.sh finds beside its own place: a run's programs, and the folder of the lists."""
    (folder / "runs/run").mkdir(parents=True)
    (folder / "runs/.hot-pages").mkdir(mode=0o700)
    render.write_all(folder / "runs/run")


def one_import(folder: Path, way: str, count: int, state: str, *learn: str) -> tuple[float, float]:
    """Wall and CPU seconds of one measurement, in a mount namespace of its own."""
    place = folder / "mnt"
    place.mkdir(exist_ok=True)
    argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "benchmarks._mounted_import"]
    done = shell.run([*argv, str(image()), str(place), way, str(count), state, *learn], cwd=ROOT)
    wall, cpu = done.stdout.splitlines()[-1].split()
    return float(wall), float(cpu)
