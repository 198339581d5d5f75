"""What a run says: a line on standard output and a JSON line in <run folder>/metrics.jsonl, by rank 0; traces; speed."""

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from .checkpoint import Checkpoints
from .ranks import Ranks, total


class Metrics:
    """Appends, so that a restarted run goes on in the same file; `restart` in a record says which start wrote it."""

    def __init__(self, run_dir: Path, here: Ranks | None = None) -> None:
        """here: None for a program that is no group of ranks."""
        self._restart = int(os.environ.get("KIT_RESTART_COUNT") or 0)
        self._file = None
        if here is None or here.is_first:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._file = (run_dir / "metrics.jsonl").open("a", buffering=1, encoding="utf-8")

    def record(self, kind: str, line: str, **values: Any) -> None:
        """Print `line`; write the values. Floats keep all their digits, so that runs can be compared exactly."""
        self.say(line)
        self._write(kind, **values)

    def step(self, step: int, loss: float, speed: "Speed", here: Ranks, **values: float) -> None:
        """The record of a step: its loss as the mean over ranks, and the speed since the last one. Called by all ranks."""
        loss = total(loss, here=here)[0] / here.world_size
        measured = speed.values()
        speed.restart()
        line = f"step {step}  loss {loss:.4f}  {measured['tokens_per_second']:.0f} tokens/s"
        if "mfu" in measured:
            line += f"  MFU {measured['mfu']:.1%}"
        self.record("step", line, step=step, loss=loss, **values, **measured)

    def saved(self, step: int, saves: Checkpoints) -> None:
        """The record of a checkpoint, for the file alone: how long the loop stood still for it."""
        self._write("saved", step=step, seconds=saves.took)

    def final(self, step: int, test_loss: float, here: Ranks) -> None:
        """The last record of a program that trains on text."""
        line = f"done: test loss {test_loss:.4f} after {step} steps, world size {here.world_size} on {here.nodes} nodes"
        shape = {"world_size": here.world_size, "nodes": here.nodes, "backend": here.backend}
        self.record("final", line, step=step, test_loss=test_loss, **shape)

    def say(self, line: str) -> None:
        """A line for people only."""
        if self._file is not None:
            print(line, flush=True)

    def _write(self, kind: str, **values: Any) -> None:
        if self._file is not None:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._file.write(json.dumps({"kind": kind, "time": now, "restart": self._restart, **values}) + "\n")


# Dense bf16 operations a second of one GPU, from its maker's data sheet. The words must all be in the name that the driver gives;
# the first row that fits holds, so the special kind of a card stands before the general one.
PEAK_FLOPS: dict[tuple[str, ...], float] = {
    ("GB200",): 2500e12,
    ("B200",): 2250e12,
    ("GH200",): 990e12,
    ("H200", "NVL"): 835e12,
    ("H200",): 989e12,
    ("H100", "NVL"): 835e12,
    ("H100", "PCIe"): 756e12,
    ("H100",): 989e12,
    ("A100",): 312e12,
    ("L40S",): 362e12,
    ("L40",): 181e12,
    ("L4",): 121e12,
    ("A40",): 150e12,
    ("A30",): 165e12,
    ("A10G",): 70e12,
    ("A10",): 125e12,
}


def peak_flops(name: str, precision: str) -> float | None:
    """Of a GPU by its name; None of one that is not in the table. fp32 multiplies in TF32 (lib/ranks.py), half as fast as bf16."""
    parts = name.replace("-", " ").split()
    found = next((peak for words, peak in PEAK_FLOPS.items() if all(word in parts for word in words)), None)
    return found / 2 if found is not None and precision == "fp32" else found


class Speed:
    """Tokens a second over all ranks, and on a GPU the share of its peak that the model's arithmetic makes (MFU)."""

    def __init__(self, tokens_per_step: int, flops_per_token: float, here: Ranks, precision: str = "bf16") -> None:
        self._tokens_per_step, self._flops_per_token, self._here = tokens_per_step, flops_per_token, here
        name = torch.cuda.get_device_name() if here.device.type == "cuda" else ""
        self._peak = peak_flops(name, precision)
        self.restart()

    def restart(self) -> None:
        """Count from now, for example after a test or a checkpoint."""
        self._began, self._steps = time.perf_counter(), 0

    def step(self) -> None:
        """One more optimizer step is done."""
        self._steps += 1

    def values(self) -> dict[str, float]:
        """tokens_per_second since the last restart; mfu where the GPU's peak is known."""
        if self._here.device.type == "cuda":
            torch.cuda.synchronize()
        rate = self._steps * self._tokens_per_step / (time.perf_counter() - self._began)
        if self._peak is None:
            return {"tokens_per_second": rate}
        mfu = rate * self._flops_per_token / (self._peak * self._here.world_size)
        return {"tokens_per_second": rate, "mfu": mfu}


class Profile:
    """A torch profiler trace of chosen steps on chosen ranks: <run folder>/profile/rank-<n>.json, for chrome://tracing."""

    def __init__(self, run_dir: Path, here: Ranks, steps: tuple[int, int] | None, ranks: set[int]) -> None:
        self._path = run_dir / "profile" / f"rank-{here.rank}.json"
        self._steps = steps if here.rank in ranks else None
        self._profiler: torch.profiler.profile | None = None

    def step(self, step: int) -> None:
        """Call before each optimizer step with its number, counted from 1."""
        if self._steps is None:
            return
        first, last = self._steps
        if self._profiler is None and first <= step <= last:
            self._profiler = torch.profiler.profile(record_shapes=True)
            self._profiler.start()
        elif self._profiler is not None and step > last:
            self.close()

    def close(self) -> None:
        """Write the trace, if one is being taken."""
        if self._profiler is not None:
            self._profiler.stop()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._profiler.export_chrome_trace(str(self._path))
            self._profiler, self._steps = None, None
