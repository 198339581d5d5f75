"""Measures what the launchers cost a training, on an embedded cluster of two nodes, in the container train-cpu or frameworks-cpu.

    python -m benchmarks launchers [--rounds 3]

Needs Slurm on this machine and both images in the store (`kit build-image frameworks-cpu`). It measures three things: a step of
launchers/ddp/train_gpt.py against a step of a bare loop; how long a checkpoint keeps the ranks from training, written in the
background or not; and how soon the ranks of each start shape meet.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._common import ROOT, Goal, project, report
from kit import shell
from kit.slurm import client
from kit.slurm.embedded import ClusterSize, down, up

NAME = "bench-fw"
PROFILE = """\
embedded = true
[node]
cpus = 4
gpus = 1
[paths]
store = "{data}/images"
[defaults.env]
OMP_NUM_THREADS = "1"
"""
JOB = """\
name = "bench"
seed = 7
[resources]
nodes = 2
gpus_per_node = 1
[monitor]
enabled = false
[preflight]
enabled = false
"""
GPT = {"layers": 4, "dim": 128, "heads": 4, "context": 128, "batch-size": 16}
TRAIN_GPT = "/kit/run/code/train_gpt.py"
WINDOW = 10  # steps between two records of train_gpt.py

# A program as a user would write it: the same model, data, optimizer and clipping, and nothing more. `lib` is launchers/lib.
BARE = """\
import argparse, json, os, pathlib, sys, tempfile, time
import torch
import torch.distributed as dist
from lib import model, options, text
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
steps, window, batch, layers, dim, heads, context = map(int, sys.argv[1:])
dist.init_process_group("gloo")
made = argparse.ArgumentParser()
options.add_text(made)
args = argparse.Namespace(context=context, **vars(made.parse_args([])))
train_set = text.load(args, pathlib.Path(tempfile.mkdtemp()), lambda line: None).train
torch.manual_seed(7)
net = DistributedDataParallel(model.GPT(model.GPTShape(layers=layers, heads=heads, dim=dim, context=context)))
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
sampler = DistributedSampler(train_set, drop_last=True)
took, began = [], time.perf_counter()
batches = iter(DataLoader(train_set, batch // dist.get_world_size(), sampler=sampler, drop_last=True))
for step in range(1, steps + 1):
    tokens, targets = next(batches)
    net(tokens, targets).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % window == 0:
        took.append((time.perf_counter() - began) / window)
        began = time.perf_counter()
if dist.get_rank() == 0:
    open(os.environ["KIT_RUN_DIR"] + "/took.json", "w").write(json.dumps(took))
del net
dist.destroy_process_group()
"""

MEET = """\
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    open(os.environ["KIT_RUN_DIR"] + "/met", "w").write(str(time.time()))
dist.destroy_process_group()
"""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A project on the benchmark's cluster."""

    project: Path
    env: dict[str, str]
    rounds: int

    def submit(self, launcher: str, args: Sequence[object], *sets: str, script: str = "", program: str = "") -> Path:
        """Run a job to its end and return its run folder. ToolError when it fails. program: text of the job's own script."""
        if program:
            script = "program.py"
            (self.project / script).write_text(program)
        head = f'launcher = "{launcher}"\nargs = {json.dumps([str(arg) for arg in args])}\n'
        head += f'script = "{script}"\n' if script else ""
        (self.project / "job.toml").write_text(head + JOB)
        words = [word for text in sets for word in ("--set", text)]
        argv = [sys.executable, "-m", "kit", "submit", "--cluster", NAME, "--wait", *words]
        return Path(shell.run(argv, cwd=self.project, env=self.env).stdout.splitlines()[0])


def main(arguments: Sequence[str]) -> int:
    """Print the tables. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks launchers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("step", "checkpoint", "meet"), help="one of the three")
    options = parser.parse_args(arguments)
    goals: list[Goal] = []
    with bench(options.rounds) as on:
        if options.only in {None, "step"}:
            goals += step(on)
        if options.only in {None, "checkpoint"}:
            goals += checkpoint(on)
        if options.only in {None, "meet"}:
            meet(on)
    return report(goals)


@contextmanager
def bench(rounds: int) -> Iterator[Bench]:
    """The cluster, and a project for its jobs: one rank on each of two nodes."""
    with project(NAME, PROFILE) as folder:
        shutil.copytree(ROOT / "launchers" / "lib", folder / "lib")
        try:
            cluster = up(NAME, ClusterSize(nodes=2, gpus_per_node=1, placeholder_gpus=True))
            yield Bench(project=folder, env=client.environment(cluster.env()), rounds=rounds)
        finally:
            down(NAME)


def step(on: Bench) -> list[Goal]:
    """Time the launcher's program and the bare loop in turn. Uses the lower quartile of windows, which noise disturbs least."""
    steps = 8 * WINDOW
    words = [word for name, value in GPT.items() for word in (f"--{name}", value)]
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(on.rounds):
        shape = [GPT[name] for name in ("batch-size", "layers", "dim", "heads", "context")]
        run = on.submit("ddp", [steps, WINDOW, *shape], "shape=srun", program=BARE)
        bare += json.loads((run / "took.json").read_text())[1:]
        run = on.submit("ddp", ["--steps", steps, *words, "--test-windows", 1], "shape=srun", script=TRAIN_GPT)
        tokens = GPT["batch-size"] * GPT["context"]
        ours += [tokens / one["tokens_per_second"] for one in records(run, "step")][1:]
    low = {name: statistics.quantiles(values, n=4)[0] for name, values in (("bare", bare), ("ours", ours))}
    print(
        f"a step of the bare loop {1000 * low['bare']:.1f} ms, of launchers/ddp/train_gpt.py {1000 * low['ours']:.1f} ms\n"
    )
    return [Goal(name="launcher's step over a bare loop's", value=low["ours"] / low["bare"], bound=1.01)]


# About 13 million parameters, 150 MB with Adam: enough to show the disk.
LARGE = ("--layers", 4, "--dim", 512, "--heads", 8, "--context", 64, "--test-windows", 1)
BATCH = 4
EVERY, SAVES = 8, 5
PROGRAMS: dict[str, tuple[str, str]] = {
    "DDP": ("ddp", TRAIN_GPT),
    "FSDP": ("fsdp", ""),
    "DeepSpeed ZeRO 2": ("deepspeed", ""),
    "Megatron core": ("megatron", ""),
}


def checkpoint(on: Bench) -> list[Goal]:
    """Median seconds for which a save stops each program's loop, written in the background or not."""
    print("| seconds in the loop for a save | in the foreground | in the background |\n|---|---|---|")
    goals = []
    for name, (launcher, script) in PROGRAMS.items():
        took = {}
        for background in ("false", "true"):
            sets = [f"checkpoint.every={EVERY}", "checkpoint.keep=1", f"checkpoint.async={background}"]
            args: list[object] = [*LARGE, "--steps", EVERY * SAVES + 1]
            if launcher == "deepspeed":
                sets += [f"deepspeed.train_batch_size={BATCH}", "deepspeed.zero_optimization.stage=2"]
                sets += ["deepspeed.zero_force_ds_cpu_optimizer=false"]
            else:
                args += ["--batch-size", BATCH]
            run = on.submit(launcher, args, *sets, script=script)
            # Leave out the first save, which allocates the copy, and the last one, which is in the foreground.
            took[background] = statistics.median([one["seconds"] for one in records(run, "saved")][1:-1])
        print(f"| {name} | {took['false']:.3f} | {took['true']:.3f} |")
        ratio = took["true"] / took["false"]
        goals.append(Goal(name=f"{name}: stall in the background / in the foreground", value=ratio, bound=0.2))
    print()
    return goals


def meet(on: Bench) -> None:
    """Seconds from the start of the ranks' step to the end of their first barrier, with two ranks on each node. No bound is set."""
    print("| start shape | start to first barrier, s |\n|---|---|")
    for shape in ("torchrun", "srun"):
        took = []
        for _ in range(on.rounds):
            run = on.submit("ddp", [], f"shape={shape}", "resources.ranks_per_node=2", program=MEET)
            events = [json.loads(line) for line in (run / "state/events.jsonl").read_text().splitlines()]
            began = next(float(one["epoch"]) for one in events if one["event"] == "attempt")
            took.append(float((run / "met").read_text()) - began)
        print(f"| {shape} | {statistics.median(took):.2f} |")
    print()


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind in a run's metrics."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [one for one in lines if one["kind"] == kind]
