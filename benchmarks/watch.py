"""What it costs a run to be watched, on an embedded cluster of four nodes.

    python -m benchmarks watch [--pairs 40]

Steps with reports, collector and watch over steps without, in turn inside one job; one report; the evidence of 64 ranks,
by the handler of kit_rank and by py-spy. Needs Slurm on this machine.
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

# A step is some 50 ms of arithmetic. Off: nothing is reported, and collector and batch script are stopped.
PAIRS = """\
import os, pathlib, signal, statistics, sys, time
from kit_rank import progress
run, job = pathlib.Path(os.environ["KIT_RUN_DIR"]), os.environ["SLURM_JOB_ID"]
watchers = []
for path in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        line, said = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
    except OSError:
        continue
    if f"SLURM_JOB_ID={job}\\0".encode() in said and (b"gpu-monitor.sh" in line or b"slurm_script" in line):
        watchers.append(int(path.name))
assert len(watchers) >= 3, watchers

def step(on, number):
    began = time.perf_counter()
    if on:
        with progress.phase("data"):
            pass
    sum(i * i for i in range(600_000))
    if on:
        with progress.phase("communicate"):
            pass
        progress.step(number)
    return time.perf_counter() - began

number = 0
with open(run / "pairs", "w") as out:
    for pair in range(PAIRS):
        for on in ((True, False) if pair % 2 else (False, True)):
            for pid in watchers:
                os.kill(pid, signal.SIGCONT if on else signal.SIGSTOP)
            times = []
            for _ in range(30):
                number += 1
                times.append(step(on, number))
            print("on" if on else "off", statistics.median(times), file=out, flush=True)
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
        """stdout of a command of the kit."""
        return shell.run([sys.executable, "-m", "kit", *argv], cwd=self.folder, env=self.env, timeout=1200).stdout

    def submit(self, program: str, *words: str) -> Path:
        """The run's folder."""
        (self.folder / "program.py").write_text(program)
        return Path(self.kit("submit", "--cluster", NAME, *words).splitlines()[0])


def main(arguments: Sequence[str]) -> int:
    """Print the table; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks watch", description=__doc__)
    parser.add_argument("--pairs", type=int, default=40)
    options = parser.parse_args(arguments)
    with project(NAME, PROFILE, JOB) as folder:
        try:
            on = Bench(up(NAME, SIZE), folder)
            goals = [*paired(on, options.pairs), *evidence(on)]
        finally:
            down(NAME)
    return report(goals)


def paired(on: Bench, pairs: int) -> list[Goal]:
    """The median step with all of it over the median step without, in pairs of one job; and one report."""
    run = on.submit(PAIRS.replace("range(PAIRS)", f"range({pairs})"), "--wait")
    took: dict[str, list[float]] = {"on": [], "off": []}
    for line in (run / "pairs").read_text().splitlines():
        took[line.split()[0]].append(float(line.split()[1]))
    ratio = statistics.median(a / b for a, b in zip(took["on"], took["off"], strict=True))
    return [
        Goal(name="step that is watched / step that is not, paired", value=ratio, bound=1.005),
        Goal(name="one report", value=1e6 * float((run / "report").read_text()), bound=50, unit="us"),
    ]


def evidence(on: Bench) -> list[Goal]:
    """`kit stacks` of 64 ranks on four nodes, which is what an alarm gathers; with py-spy where it is installed, and without."""
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
        files = json.loads(on.kit("stacks", run.name, "--json"))
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
