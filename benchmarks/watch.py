"""Measures what it costs a run to be watched, on an embedded cluster of four nodes.

    python -m benchmarks watch [--turns 24]

The figures are: steps with reports, collector and watch divided by steps without, in turn inside one job, by the clock and by
processor time; one report; the evidence of 64 ranks, with the handler of kit_rank and with py-spy. Needs Slurm on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks._common import Goal, project, report
from kit import shell
from kit.slurm import client
from kit.slurm.embedded import ClusterSize, EmbeddedCluster, down, up

NAME, NODES, RANKS = "bench-watch", 4, 64
_STRETCH_S = 6.0
SIZE = ClusterSize(nodes=NODES, gpus_per_node=1, cpus_per_node=RANKS // NODES, placeholder_gpus=True)
PROFILE = "embedded = true\n[node]\ncpus = 16\ngpus = 1\n"
JOB = """\
name = "watch"
launcher = "ddp"
script = "program.py"
shape = "srun"
python = "/usr/bin/python3"
[resources]
nodes = 1
gpus_per_node = 1
ranks_per_node = 1
[container]
runtime = "bare"
[preflight]
free_disk_gb = 0
"""

# A step is some 50 ms of arithmetic. A stretch of steps is long enough for several looks of the collector. "off": nothing is
# reported, and the collector and the batch script are stopped. "again" is a second stretch like "off": their difference is noise.
TURNS = """\
import os, pathlib, random, signal, time
from kit_rank import progress
run, job = pathlib.Path(os.environ["KIT_RUN_DIR"]), os.environ["SLURM_JOB_ID"]
tick = os.sysconf("SC_CLK_TCK")
watchers = []
for path in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        line, said = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
    except OSError:
        continue
    if f"SLURM_JOB_ID={job}\\0".encode() in said and (b"gpu-monitor.sh" in line or b"slurm_script" in line):
        watchers.append(int(path.name))
assert len(watchers) >= 3, watchers

def spent():
    # Seconds of user and system time of the watchers and their ended children: fields 14 to 17 of proc(5)'s stat.
    total = 0
    for pid in watchers:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(int(field) for field in fields[11:15])
    return total / tick

def step(on, number):
    if on:
        with progress.phase("data"):
            pass
    sum(i * i for i in range(600_000))
    if on:
        with progress.phase("communicate"):
            pass
        progress.step(number)

number = 0
kinds = ["on", "off", "again"]
with open(run / "turns", "w") as out:
    for turn in range(TURNS):
        random.shuffle(kinds)
        for kind in kinds:
            for pid in watchers:
                os.kill(pid, signal.SIGCONT if kind == "on" else signal.SIGSTOP)
            steps, wall, own, theirs = 0, time.perf_counter(), time.process_time(), spent()
            while time.perf_counter() - wall < STRETCH_S:
                number += 1
                steps += 1
                step(kind == "on", number)
            wall, own, theirs = time.perf_counter() - wall, time.process_time() - own, spent() - theirs
            print(turn, kind, wall / steps, (own + theirs) / steps, file=out, flush=True)
for pid in watchers:
    os.kill(pid, signal.SIGCONT)
began = time.perf_counter()
for one in range(20000):
    progress.step(number + one)
(run / "report").write_text(str((time.perf_counter() - began) / 20000))
"""

WAITS = """\
import os, time
from kit_rank import progress
for step in range(5):
    progress.step(step)
while not os.path.exists(os.environ["KIT_RUN_DIR"] + "/finish"):
    time.sleep(0.2)
"""


class Bench:
    """A project on the benchmark's cluster."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path) -> None:
        self.folder, self.env = folder, {**os.environ, **client.environment(cluster.env())}

    def kit(self, *argv: str) -> str:
        """The stdout of a command of the kit."""
        return shell.run([sys.executable, "-m", "kit", *argv], cwd=self.folder, env=self.env, timeout=1200).stdout

    def submit(self, program: str, *words: str) -> Path:
        """Submit a job, and return its run folder."""
        (self.folder / "program.py").write_text(program)
        return Path(self.kit("submit", "--cluster", NAME, *words).splitlines()[0])


def main(arguments: Sequence[str]) -> int:
    """Print the table. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks watch", description=__doc__)
    parser.add_argument("--turns", type=int, default=24, help="of three stretches of 6 s each")
    options = parser.parse_args(arguments)
    with project(NAME, PROFILE, JOB) as folder:
        try:
            on = Bench(up(NAME, SIZE), folder)
            goals = [*paired(on, options.turns), *evidence(on)]
        finally:
            down(NAME)
    return report(goals)


def paired(on: Bench, turns: int) -> list[Goal]:
    """The mean step with everything divided by the mean step without, in the same turn; medians over the turns. And one report.

    Processor time counts the collector and the batch script as part of the rank, as if they all had one core. Other work on the
    machine disturbs it less than the clock.
    """
    run = on.submit(TURNS.replace("range(TURNS)", f"range({turns})").replace("STRETCH_S", str(_STRETCH_S)), "--wait")
    took: dict[tuple[str, str], list[float]] = {}
    for line in (run / "turns").read_text().splitlines():
        _, kind, wall, cpu = line.split()
        took.setdefault((kind, "clock"), []).append(float(wall))
        took.setdefault((kind, "processor time"), []).append(float(cpu))

    def ratio(kind: str, by: str) -> float:
        return statistics.median(a / b for a, b in zip(took[kind, by], took["off", by], strict=True))

    goals = []
    for by in ("processor time", "clock"):
        goals += [
            Goal(name=f"step that is watched / step that is not, {by}", value=ratio("on", by), bound=1.005),
            Goal(name=f"... and what noise makes of two that are not, {by}", value=ratio("again", by)),
        ]
    return [*goals, Goal(name="one report", value=1e6 * float((run / "report").read_text()), bound=50, unit="us")]


def evidence(on: Bench) -> list[Goal]:
    """`kit stacks` of 64 ranks on four nodes, as an alarm collects them: with py-spy, if it is installed, and without."""
    ranks = RANKS // NODES
    words = [f"resources.nodes={NODES}", f"resources.ranks_per_node={ranks}", f"resources.cpus_per_node={ranks}"]
    run = on.submit(WAITS, *(word for text in words for word in ("--set", text)))
    until = time.monotonic() + 300
    while len(_ranks(on, run)) < RANKS and time.monotonic() < until:
        time.sleep(1)
    tool, goals = run / "bin" / "py-spy", []
    for name in ["py-spy", "handler"] if tool.exists() else ["handler"]:
        if name == "handler":
            tool.unlink(missing_ok=True)
        began = time.monotonic()
        files = json.loads(on.kit("stacks", run.name, "--json"))["stacks"]
        took = time.monotonic() - began
        whole = sum("<module>" in text for text in files.values())
        goals.append(
            Goal(name=f"evidence of {RANKS} ranks on {NODES} nodes, by {name}", value=took, bound=20, unit="s")
        )
        goals.append(Goal(name=f"... ranks with a stack, by {name}", value=whole, bound=RANKS, at_least=True))
    (run / "finish").touch()
    on.kit("cancel", run.name)
    return goals


def _ranks(on: Bench, run: Path) -> list[object]:
    found: list[object] = json.loads(on.kit("top", run.name, "--json"))["ranks"]
    return found
