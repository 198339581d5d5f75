"""Runs every training program once on this machine's GPUs, and prints a table: which worked, how fast, in how much memory.

    make gpu-check                              all of them, in .train-venv's Python, or PYTHON=/opt/venv/bin/python
    make gpu-check ARGS="--only fsdp"           programs whose names begin with this
    make gpu-check ARGS="--device cpu"          a small version on this machine's CPUs: whether the programs start

Each program gets as many ranks as there are GPUs, under torchrun, and a model of GPT-2's size (12 layers of 768, 1024 tokens).
The last line names the folder of its output. Exit code: 0, all that could run succeeded; 1, one failed; 69, no GPU, or a
Python without torch.
"""

import argparse
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.record import metrics

LAUNCHERS = Path(__file__).resolve().parents[1] / "launchers"
NOTHING_TO_RUN_ON = 69  # EX_UNAVAILABLE of sysexits.h
GPT = {
    "cuda": "--layers 12 --dim 768 --heads 12 --context 1024 --steps 20 --warmup 5 --log-every 5 --test-windows 64",
    "cpu": "--layers 2 --dim 32 --heads 2 --context 32 --steps 2 --warmup 1 --log-every 1 --test-windows 4",
}
# Sequences in a step, for each rank.
BATCH = {"cuda": 8, "cpu": 4}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program with options. needs: a module that it imports besides torch. even: runs only on an even number of ranks.

    zero: DeepSpeed's stage, for its configuration. gpt: it takes the options of the GPT programs.
    """

    name: str
    program: str
    options: str = ""
    needs: str = "numpy"
    even: bool = False
    zero: int | None = None
    gpt: bool = True
    gpu_only: bool = False


CASES = (
    Case(name="ddp-images", program="ddp/train.py", options="--epochs 1 --log-every 5", needs="sklearn", gpt=False),
    Case(name="ddp fp32", program="ddp/train_gpt.py"),
    Case(name="ddp bf16", program="ddp/train_gpt.py", options="--precision bf16"),
    Case(name="ddp bf16 compiled", program="ddp/train_gpt.py", options="--precision bf16 --compile", gpu_only=True),
    Case(name="ddp fp16", program="ddp/train_gpt.py", options="--precision fp16", gpu_only=True),
    Case(name="fsdp fp32", program="fsdp/train.py"),
    Case(name="fsdp bf16", program="fsdp/train.py", options="--precision bf16"),
    Case(name="fsdp bf16 compiled", program="fsdp/train.py", options="--precision bf16 --compile", gpu_only=True),
    Case(
        name="fsdp bf16 recompute, async",
        program="fsdp/train.py",
        options="--precision bf16 --recompute --checkpoint-async",
    ),
    Case(name="fsdp bf16 offload", program="fsdp/train.py", options="--precision bf16 --cpu-offload"),
    Case(name="fsdp bf16 hsdp", program="fsdp/train.py", options="--precision bf16 --replicate 2", even=True),
    Case(name="deepspeed zero 2", program="deepspeed/train.py", needs="deepspeed", zero=2),
    Case(name="deepspeed zero 3", program="deepspeed/train.py", needs="deepspeed", zero=3),
    Case(
        name="megatron dp",
        program="megatron/train.py",
        options="--precision bf16 --distributed-optimizer",
        needs="megatron",
    ),
    Case(
        name="megatron tp 2",
        program="megatron/train.py",
        options="--precision bf16 --tp 2",
        needs="megatron",
        even=True,
    ),
    Case(
        name="megatron pp 2",
        program="megatron/train.py",
        options="--precision bf16 --pp 2",
        needs="megatron",
        even=True,
    ),
    Case(
        name="megatron tp 2 with its engine",
        program="megatron/train.py",
        options="--precision bf16 --tp 2 --transformer-engine --sequence-parallel",
        needs="transformer_engine",
        even=True,
        gpu_only=True,
    ),
    Case(name="diloco 4 bits", program="diloco/train.py", options="--sync-every 2 --bits 4", needs="torchft"),
    Case(
        name="muloco fsdp bf16",
        program="diloco/train.py",
        options="--sync-every 2 --inner muon --inside fsdp --precision bf16",
        needs="torchft",
    ),
    Case(name="sft", program="sft/train.py", options="--max-steps 10 --log-every 5 --test-rollouts 1", gpt=False),
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine that the programs run on. gpus: names, by the driver."""

    python: str
    device: str
    ranks: int
    gpus: tuple[str, ...]

    def lacks(self, module: str) -> bool:
        """Whether the machine's Python lacks the module."""
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        return subprocess.run([self.python, "-c", code], check=False, capture_output=True).returncode != 0


def looked_at(python: str, device: str, ranks: int | None) -> Machine | None:
    """The machine as torch sees it. None, with a message, where no program can run."""
    code = "import json, torch; print(json.dumps([torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]))"
    try:
        seen = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"gpu-check: {python} cannot import torch: {error}", file=sys.stderr)
        return None
    gpus = tuple(json.loads(seen.stdout.splitlines()[-1]))
    if device == "cuda" and not gpus:
        print("gpu-check: torch sees no GPU here. `--device cpu` runs the programs in small on CPUs.", file=sys.stderr)
        return None
    return Machine(python=python, device=device, ranks=ranks or (len(gpus) if device == "cuda" else 2), gpus=gpus)


def command(case: Case, machine: Machine, folder: Path) -> list[str]:
    """The command that starts the program."""
    words = [str(LAUNCHERS / case.program), "--device", machine.device]
    if case.gpt:
        words += GPT[machine.device].split()
    if case.zero is not None:
        config = {
            "train_micro_batch_size_per_gpu": BATCH[machine.device],
            "gradient_clipping": 1.0,
            "bf16": {"enabled": True},
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": case.zero},
        }
        (folder / "ds_config.json").write_text(json.dumps(config), encoding="utf-8")
        words += ["--ds-config", str(folder / "ds_config.json")]
    elif case.gpt:
        words += ["--batch-size", str(BATCH[machine.device] * machine.ranks)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={machine.ranks}"]
    return [machine.python, *torchrun, *words, *case.options.split()]


def run(case: Case, machine: Machine, folder: Path, limit: float) -> list[str]:
    """The case's row of the table: its name, then `ok`, `skipped` or `FAILED`."""
    if case.gpu_only and machine.device == "cpu":
        return [case.name, "skipped", "for GPUs"]
    if case.even and machine.ranks % 2:
        return [case.name, "skipped", f"{machine.ranks} ranks are odd"]
    if machine.lacks(case.needs):
        return [case.name, "skipped", f"no {case.needs}"]
    folder.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("KIT_", "SLURM_", "TORCHFT_"))}
    env |= {"PYTHONPATH": str(LAUNCHERS), "KIT_RUN_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    code = ended(command(case, machine, folder), env, folder / "output.log", limit)
    seconds = f"{time.monotonic() - began:.0f}"
    if code != 0:
        return [case.name, "FAILED", "no end in time" if code is None else f"code {code}", *[""] * 4, seconds]
    losses = [record["loss"] for record in metrics.records(folder) if record.get("kind") == "step"]
    if not losses or not all(map(math.isfinite, losses)):
        return [case.name, "FAILED", "no loss" if not losses else f"loss {losses[-1]}", *[""] * 4, seconds]
    last = metrics.latest(folder)
    values = last.values if last else {}
    rate = values.get("tokens_per_second", values.get("images_per_second", 0.0))
    mfu = f"{values['mfu']:.1%}" if "mfu" in values else ""
    memory = f"{values.get('memory_bytes', 0) / 2**30:.2f}"
    return [case.name, "ok", "", f"{losses[0]:.3f} to {losses[-1]:.3f}", f"{rate:,.0f}", mfu, memory, seconds]


def ended(words: Sequence[str], env: dict[str, str], log: Path, limit: float) -> int | None:
    """The exit code of a program, or None where the limit ended it. No process of it is left."""
    with log.open("wb") as output:
        process = subprocess.Popen(words, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


HEAD = ["program", "", "why", "loss", "tokens/s", "MFU", "GiB a rank", "s"]


def table(rows: list[list[str]]) -> str:
    """The rows as columns under HEAD, each as wide as its longest cell."""
    whole = [HEAD, *([*row, *[""] * (len(HEAD) - len(row))] for row in rows)]
    widths = [max(len(row[place]) for row in whole) for place in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in whole
    )


def main() -> int:
    """Run the programs, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has torch and the frameworks")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=int, help="default: as many as GPUs; of --device cpu 2")
    parser.add_argument("--only", default="", metavar="PREFIX,...", help="names that begin with one of these")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="for one program")
    args = parser.parse_args()
    machine = looked_at(args.python, args.device, args.ranks)
    if machine is None:
        return NOTHING_TO_RUN_ON
    chosen = [case for case in CASES if case.name.startswith(tuple(args.only.split(",")))]
    if not chosen:
        parser.error(f"--only {args.only}: no such program; there are {', '.join(case.name for case in CASES)}")
    kinds = ", ".join(sorted(set(machine.gpus))) if machine.device == "cuda" else "CPUs"
    folder = Path(tempfile.mkdtemp(prefix="gpu-check-"))
    print(f"{machine.ranks} ranks on {kinds}, {machine.python}", flush=True)
    rows = []
    for number, case in enumerate(chosen, 1):
        rows.append(run(case, machine, folder / case.name.replace(" ", "-"), args.limit))
        print(f"[{number}/{len(chosen)}] {' '.join(rows[-1][:3])}", file=sys.stderr, flush=True)
    print(table(rows))
    print(f"what each printed: {folder}/*/output.log")
    return int(any(row[1] == "FAILED" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
