"""Measures a rank's memory while FSDP builds the model: it holds its shard and one block, and not the whole model.

    python -m benchmarks memory --python .train-venv/bin/python
    python -m benchmarks memory --layers 10 --dim 1280 --heads 20    where there is less memory

A rank's figure is the peak of its process (VmHWM of /proc/PID/status) until its first step, less the same rank's peak with a model
of a few kilobytes, which covers Python, torch and the process group. The model has a billion float32 parameters over eight ranks:
the shards take 4 GB in all, and eight whole models would take 33 GB. It needs torch and 7 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._common import ROOT, Goal, report

TINY = {"layers": 1, "dim": 16, "heads": 1}
RANKS = 8


def main(words: list[str]) -> int:
    """Print the table. Returns 1 when a rank had more than its shard and a block."""
    made = argparse.ArgumentParser(prog="benchmarks memory", description=__doc__)
    made.add_argument("--python", default=sys.executable)
    for name, value in {"layers": 20, "dim": 1792, "heads": 28}.items():
        made.add_argument(f"--{name}", type=int, default=value)
    args = made.parse_args(words)
    if subprocess.run([args.python, "-c", "import torch, numpy"], capture_output=True, check=False).returncode:
        print(f"memory: SKIPPED: {args.python} has no torch (--python)", file=sys.stderr)
        return 0
    shape = {name: getattr(args, name) for name in TINY}
    _, base = _peaks(args.python, TINY)
    parameters, peaks = _peaks(args.python, shape)
    own = [peak - before for peak, before in zip(sorted(peaks), sorted(base), strict=True)]
    whole = 4 * parameters
    # The parameters of a block: attention and MLP have 16 dim² (launchers/lib/model.py), without the norms.
    bound = whole / RANKS + 4 * 16 * args.dim**2
    print(f"{parameters:,} parameters in float32 over {RANKS} ranks; MiB of each: {[one >> 20 for one in own]}")
    print(f"without a model: {[one >> 20 for one in sorted(base)]}")
    return report(
        [
            Goal(name="a whole model", value=whole / 2**20, unit="MiB"),
            Goal(name="a shard", value=whole / RANKS / 2**20, unit="MiB"),
            Goal(name="a block", value=4 * 16 * args.dim**2 / 2**20, unit="MiB"),
            Goal(name="a rank's most, the largest / shard and block", value=max(own) / bound, bound=1.0),
            Goal(name="a rank's most, the largest / a whole model", value=max(own) / whole),
        ]
    )


def _peaks(python: str, shape: dict[str, int]) -> tuple[int, list[int]]:
    """The parameters of a model, and the peak bytes of each rank once all have built it."""
    with tempfile.TemporaryDirectory(prefix="kit-bench-memory-") as name, socket.socket() as probe:
        folder = Path(name)
        (folder / "text").mkdir()
        for number in range(20):
            (folder / "text" / f"{number}.txt").write_text(f"the quick brown fox {number} " * 500, encoding="utf-8")
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        words = [word for key, value in shape.items() for word in (f"--{key}", str(value))]
        words += [
            "--context",
            "8",
            "--batch-size",
            str(RANKS),
            "--steps",
            "1000",
            "--device",
            "cpu",
            "--validation",
            "0.4",
        ]
        argv = [python, str(ROOT / "launchers/fsdp/train.py"), "--data", str(folder / "text"), *words]
        env = {key: value for key, value in os.environ.items() if not key.startswith(("KIT_", "SLURM_"))}
        env |= {"PYTHONPATH": str(ROOT / "launchers"), "OMP_NUM_THREADS": "1", "KIT_RUN_DIR": name, "NODE_RANK": "0"}
        env |= {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        with (folder / "log").open("wb") as log:
            ranks = [
                subprocess.Popen(argv, env={**env, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=log, stderr=log)
                for rank in range(RANKS)
            ]
        try:
            while not (found := _start(folder / "metrics.jsonl")):
                if any(rank.poll() is not None for rank in ranks):
                    raise SystemExit((folder / "log").read_text(errors="replace")[-3000:])
                time.sleep(0.01)
            # By then all ranks have passed a collective after building the model.
            return found, [_most(rank.pid) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def _start(path: Path) -> int:
    """The number of parameters in the record `start`; 0 before the record exists."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return next((int(one["parameters"]) for one in map(json.loads, lines) if one["kind"] == "start"), 0)


def _most(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return int(found[1]) * 1024 if found else 0
