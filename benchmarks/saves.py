"""Measures what a checkpoint of 1 GB costs: how long it keeps each program's loop from training, and how fast it is written.

    python -m benchmarks saves [--python .train-venv/bin/python] [--disk FOLDER] [--gigabytes 1] [--programs ddp,fsdp]

Needs a Python with torch, DeepSpeed, megatron-core and torchft, 12 GB of memory and 4 GB in /dev/shm. No Slurm, no container: the
ranks are processes of this machine, one thread each. One rank saves to /dev/shm, two ranks save to a disk (--disk). In one process,
in turn, the same state is also saved by torch.distributed.checkpoint (DCP) and by torch.save.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._common import ROOT, Goal, report

MEMORY = Path("/dev/shm")
SAVES = 4  # in the background; the first one, which allocates the copy, is left out
STEPS = 4  # between two saves
OUTER = 2  # outer steps between two saves of DiLoCo: it stops after an outer step, which must not always be one that it saves
ATTEMPTS = 5
STALL = 1 / 24  # DCP's published stall is 1/23.6 of a save in the foreground, of 7B parameters
PATIENCE_S = 240.0

# State in float32: weights and two moments. Batches are as small as they can be: the copy has little to hide behind.
GPT = ("--heads", 8, "--layers", 6, "--context", 16, "--test-windows", 1, "--steps", 100_000)
POLICY = ("--heads", 8, "--layers", 6, "--max-steps", 100_000, "--test-rollouts", 1)
PYTHON = ROOT / ".train-venv/bin/python"
PROGRAMS: dict[str, tuple[str, tuple[object, ...]]] = {
    "ddp": ("ddp/train_gpt.py", (*GPT, "--batch-size", 2)),
    "ddp-images": ("ddp/train.py", ("--batch-size", 2, "--epochs", 1)),
    "fsdp": ("fsdp/train.py", (*GPT, "--batch-size", 2)),
    "deepspeed": ("deepspeed/train.py", GPT),
    "megatron": ("megatron/train.py", (*GPT, "--batch-size", 2, "--distributed-optimizer")),
    "diloco": ("diloco/train.py", (*GPT, "--batch-size", 2, "--sync-every", STEPS)),
    "sft": ("sft/train.py", (*POLICY, "--batch-size", 2)),
    "rl": ("rl/trainer.py", (*POLICY, "--updates", 1, "--form-steps", 0, "--max-tokens", 2)),
}
PEERS = Path(__file__).with_name("_saves_peers.py")


@dataclass(frozen=True, kw_only=True)
class Bench:
    """The Python of the programs, the bytes of a state, and where the ranks save: 1 -> memory, 2 -> disk."""

    python: Path
    state_bytes: int
    disk: Path

    def place(self, ranks: int) -> Path:
        return MEMORY if ranks == 1 else self.disk


def lacking(python: Path = PYTHON) -> str:
    """What this machine lacks for the table; empty if nothing."""
    return "" if python.exists() else f"{python} is not there: make training makes it"


def main(arguments: Sequence[str]) -> int:
    """Print the tables. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks saves", description=__doc__)
    parser.add_argument("--python", type=Path, default=PYTHON)
    parser.add_argument("--disk", type=Path, default=ROOT, help="a folder on a disk")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of weights and optimizer state")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="some of them")
    parser.add_argument("--ranks", default="1,2", help="1: to /dev/shm, 2: to the disk")
    options = parser.parse_args(arguments)
    chosen = [name for name in options.programs.split(",") if name]
    if unknown := [name for name in chosen if name not in PROGRAMS]:
        parser.error(f"--programs: no such program: {unknown[0]}; there are: {', '.join(PROGRAMS)}")
    if problem := lacking(options.python):
        print(f"saves: SKIPPED: {problem}", file=sys.stderr)
        return 0
    on = Bench(python=options.python.absolute(), state_bytes=int(options.gigabytes * 1e9), disk=options.disk.absolute())
    counts = [int(word) for word in options.ranks.split(",")]
    return report([*stalls(on, chosen, counts), *peers(on, counts)])


def stalls(on: Bench, programs: Sequence[str], counts: Sequence[int]) -> list[Goal]:
    """Seconds in each program's loop for a save: in the background (median) and in the foreground (the last one)."""
    print(
        "| program | ranks, place | GB | foreground, s | background, s | GB/s |\n|---|---|---|---|---|---|", flush=True
    )
    goals = []
    for ranks in counts:
        for name in programs:
            size, sync, stall = measured(on, name, ranks)
            place = f"{ranks}, {on.place(ranks)}"
            print(
                f"| {name} | {place} | {size / 1e9:.2f} | {sync:.2f} | {stall:.4f} | {size / 1e9 / sync:.2f} |",
                flush=True,
            )
            goals.append(
                Goal(name=f"{name}, {ranks} ranks: background / foreground", value=stall / sync, bound=round(STALL, 4))
            )
    print()
    return goals


def measured(on: Bench, name: str, ranks: int) -> tuple[int, float, float]:
    """Bytes of a checkpoint, seconds of its save in the foreground, and the median of those in the background."""
    for _ in range(ATTEMPTS):
        size, seconds, last = stopped(on, name, ranks)
        # Where the stop came at a step that had just been saved in the background, nothing was left to save.
        if last % between(name):
            return size, seconds[-1], statistics.median(seconds[1:-1])
    raise RuntimeError(f"{name}: each of {ATTEMPTS} stops came at a step that had just been saved")


def between(name: str) -> int:
    """From one save in the background to the next, as checkpoints are numbered: DiLoCo's by inner and outer steps together."""
    return OUTER * (STEPS + 1) if name == "diloco" else STEPS


def stopped(on: Bench, name: str, ranks: int) -> tuple[int, list[float], int]:
    """Bytes of the last checkpoint of a run that is stopped, the seconds of all its saves, and the last one's step."""
    with tempfile.TemporaryDirectory(prefix="kit-bench-saves-", dir=on.place(ranks)) as work:
        folder = Path(work)
        with started(on, name, ranks, folder) as processes:
            wait_for(lambda: saves_done(folder, name) >= SAVES, processes, folder)
            for process in processes:
                process.send_signal(signal.SIGTERM)  # the programs then save in the foreground, and end
            for process in processes:
                process.wait(PATIENCE_S)
        saved = records(folder, name, "saved")
        newest = max(checkpoints(folder, name).glob("step-*"))
        size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    return size, [one["seconds"] for one in saved], saved[-1]["step"]


@contextlib.contextmanager
def started(on: Bench, name: str, ranks: int, folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The ranks of a program, which save in the background until they are stopped."""
    script, words = PROGRAMS[name]
    common = ["--device", "cpu", "--log-every", 0, "--checkpoint-keep", 1, "--checkpoint-async"]
    every = ["--checkpoint-every", OUTER if name == "diloco" else STEPS]
    argv = [on.python, ROOT / "launchers" / script, *words, *sized(on, name), *common, *every]
    if "--context" in words:  # a short text, which is read at once
        texts = [json.dumps({"text": f"Text {number}, which is short and read at once. " * 20}) for number in range(40)]
        (folder / "text.jsonl").write_text("\n".join(texts))
        argv += ["--data", folder / "text.jsonl", "--validation", 0.3]
    if name == "deepspeed":
        (folder / "ds.json").write_text(json.dumps(zero_2(ranks)))
        argv += ["--ds-config", folder / "ds.json"]
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "NODE_RANK": "0"}
    env = {key: value for key, value in os.environ.items() if not key.startswith(("KIT_", "SLURM_"))} | shared
    env |= {"PYTHONPATH": str(ROOT / "launchers"), "OMP_NUM_THREADS": "1", "KIT_RUN_DIR": str(folder), "KIT_SEED": "7"}
    processes: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as stack:
        try:
            with (folder / "log").open("wb") as log:
                for rank in range(ranks):
                    own = env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                    processes.append(
                        subprocess.Popen([str(word) for word in argv], env=own, stdout=log, stderr=log, cwd=folder)
                    )
            if name == "rl":
                stack.enter_context(rollouts(folder))
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.wait()


def sized(on: Bench, name: str) -> list[object]:
    """The options that give a program's state its bytes: so many for each parameter, in weights, copies of them and moments."""
    each = {"deepspeed": 16, "megatron": 16, "diloco": 20}.get(name, 12)
    parameters = on.state_bytes / each
    if name == "ddp-images":
        return ["--width", round((parameters / 54) ** 0.5)]  # two convolutions of 3 x 3: 54 width^2
    return ["--dim", round((parameters / 96) ** 0.5 / 16) * 16]  # six blocks of 16 dim^2


def zero_2(ranks: int) -> dict[str, Any]:
    """DeepSpeed's configuration: one sequence for each rank."""
    sizes = {"train_batch_size": ranks, "train_micro_batch_size_per_gpu": 1}
    return {**sizes, "zero_optimization": {"stage": 2}, "zero_force_ds_cpu_optimizer": False, "gradient_clipping": 1.0}


@contextlib.contextmanager
def rollouts(folder: Path) -> Iterator[None]:
    """Write the batches that the orchestrator of launchers/rl would write for its trainer."""
    pointer = folder / "broadcast" / "latest.json"
    deadline = time.monotonic() + PATIENCE_S
    while not pointer.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    batches = folder / "rollouts" / json.loads(pointer.read_text())["start"]
    batches.mkdir(parents=True)
    one = {"prompt": [49, 43, 49, 61], "tokens": [50, 10], "logprobs": [-5.5, -5.5], "reward": 1.0, "version": 0}
    for step in range(1, 10 * SAVES * STEPS):
        listed = [{**one, "advantage": advantage} for advantage in (1.0, -1.0)]
        (batches / f"step-{step:08d}.json").write_text(json.dumps({"rollouts": listed}))
    yield


def peers(on: Bench, counts: Sequence[int]) -> list[Goal]:
    """The same sharded state saved by DCP, by torch.save (one rank alone) and by the kit, in turn, in one process a rank."""
    print(
        "| a save of one state | ranks, place | foreground, s | GB/s | background: in the loop, s |\n|---|---|---|---|---|"
    )
    goals = []
    for ranks in counts:
        with tempfile.TemporaryDirectory(prefix="kit-bench-saves-", dir=on.place(ranks)) as work:
            found = compared(on, ranks, Path(work))
        for way, one in found["ways"].items():
            rate = found["bytes"] / 1e9 / one["seconds"]
            shown = f"{one['stall']:.4f}" if one["stall"] else ""
            print(f"| {way} | {ranks}, {on.place(ranks)} | {one['seconds']:.2f} | {rate:.2f} | {shown} |", flush=True)
        ways = found["ways"]
        ratio = ways["DCP"]["seconds"] / ways["kit, sharded"]["seconds"]
        goals.append(Goal(name=f"GB/s of the kit / of DCP, {ranks} ranks", value=ratio, bound=1.0, at_least=True))
        bare = ways["DCP without its crc32"]["seconds"] / ways["kit, sharded"]["seconds"]
        goals.append(Goal(name=f"GB/s of the kit / of DCP without its crc32, {ranks} ranks", value=bare))
        stalled = ways["DCP"]["stall"] / ways["DCP"]["seconds"]
        goals.append(Goal(name=f"DCP's async_save / its save, {ranks} ranks", value=stalled))
    print()
    return goals


def compared(on: Bench, ranks: int, folder: Path) -> dict[str, Any]:
    """What _saves_peers.py found."""
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    env = os.environ | shared | {"PYTHONPATH": str(ROOT / "launchers"), "OMP_NUM_THREADS": "1"}
    argv = [str(on.python), str(PEERS), str(folder), str(on.state_bytes)]
    processes = [
        subprocess.Popen(argv, env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)
    ]
    try:
        for process in processes:
            process.wait(PATIENCE_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def saves_done(folder: Path, name: str) -> int:
    """The number of saves that are recorded, once the newest is on disk."""
    steps = [one["step"] for one in records(folder, name, "saved")]
    pointer = checkpoints(folder, name) / "latest"
    done = pointer.exists() and steps and pointer.read_text().strip() == f"step-{steps[-1]:08d}"
    return len(steps) if done else 0


def wait_for(ready: Any, processes: Sequence[subprocess.Popen[bytes]], folder: Path) -> None:
    """Wait until ready(). RuntimeError, with the end of the log, where a process ends or takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        if time.monotonic() > deadline or any(process.poll() is not None for process in processes):
            raise RuntimeError((folder / "log").read_text(errors="replace")[-3000:])
        time.sleep(0.02)


def records(folder: Path, name: str, kind: str) -> list[dict[str, Any]]:
    """The records of one kind in a run's metrics."""
    path = folder / ("replica-0" if name == "diloco" else "") / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [one for one in map(json.loads, lines) if one["kind"] == kind]


def checkpoints(folder: Path, name: str) -> Path:
    """The folder of a run's checkpoints."""
    return folder / "checkpoints" / ("replica-0" if name == "diloco" else "")


def free_port() -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
