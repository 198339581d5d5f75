"""Reports metrics from rank 0: a line on standard output, a JSON line in <run folder>/metrics.jsonl, and the trackers.

The records follow schema 1, which is the same for all programs. docs/guides/metrics.md and docs/schema/metrics.schema.json describe
each kind. kit/record/metrics.py reads them.
"""

import json
import os
import re
import resource
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from . import trackers
from .peaks import peak_flops
from .ranks import Ranks, largest, total

SCHEMA = 1
# Kinds of records whose numbers are points of a curve over steps.
_CURVES = {"step", "eval", "epoch", "outer", "rollouts", "test", "final"}


class MetricsFile:
    """Appends records, so that a restarted run continues in the same file. `restart` in a record is the number of the start."""

    def __init__(self, run_dir: Path, world: Ranks | None = None) -> None:
        """world: None for a program that is not a group of ranks."""
        self._restart = int(os.environ.get("KIT_RESTART_COUNT") or 0)
        self._file = None
        self._trackers: list[trackers.Tracker] = []
        if world is None or world.is_main_process:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._file = (run_dir / "metrics.jsonl").open("a", buffering=1, encoding="utf-8")
            self._trackers = trackers.asked_for(run_dir)

    def started(self, program: str, world: Ranks, speed: "Speed", **values: Any) -> None:
        """Write the first record of a start to the file and the trackers: the device, its peak, and what else the rates need."""
        told = {"program": program, "world_size": world.ddp_world_size, "nodes": world.nodes, "backend": world.backend}
        told |= speed.described() | values
        self._write("start", schema=SCHEMA, **told)
        for tracker in self._trackers:
            tracker.describe(told)

    def record(self, kind: str, line: str, **values: Any) -> None:
        """Print `line` and write the values. Floats keep all their digits, so that runs can be compared exactly."""
        self.say(line)
        self._write(kind, **values)

    def step(self, step: int, loss: float, speed: "Speed", world: Ranks, *, said: str = "", **values: float) -> None:
        """Record a step: its loss as the mean over ranks, and the speed since the last record. Called by all ranks.

        said: text to add to the line.
        """
        loss = total(loss, world=world)[0] / world.ddp_world_size
        measured = speed.values()
        speed.restart()
        line = f"step {step}  loss {loss:.4f}  {measured[speed.rate]:.0f} {speed.unit}/s"
        if "mfu" in measured:
            line += f"  MFU {measured['mfu']:.1%}"
        self.record("step", line + said, step=step, loss=loss, **values, **measured)

    def evaluated(self, step: int, loss: float, *, best: bool, seconds: float, **values: float) -> None:
        """Record a validation. best: no earlier validation had a smaller loss."""
        line = f"step {step}  validation loss {loss:.4f}" + ("  the best so far" if best else "")
        self.record("eval", line, step=step, eval_loss=loss, best=best, seconds=seconds, **values)

    def saved(self, step: int, seconds: float) -> None:
        """Record a checkpoint, in the file only: for how many seconds it kept the loop from training."""
        self._write("saved", step=step, seconds=seconds)

    def final(self, step: int, test_loss: float, world: Ranks) -> None:
        """Write the last record of a program that trains on text."""
        line = f"done: test loss {test_loss:.4f} after {step} steps, world size {world.ddp_world_size} on {world.nodes} nodes"
        shape = {"world_size": world.ddp_world_size, "nodes": world.nodes, "backend": world.backend}
        self.record("final", line, step=step, test_loss=test_loss, **shape)

    @property
    def writes(self) -> bool:
        """Whether this rank writes the records."""
        return self._file is not None

    def say(self, line: str) -> None:
        """Print a line for people. It is not recorded."""
        if self._file is not None:
            print(line, flush=True)

    def _write(self, kind: str, **values: Any) -> None:
        if self._file is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._file.write(json.dumps({"kind": kind, "time": now, "restart": self._restart, **values}) + "\n")
        if kind in _CURVES:
            numbers = {
                name: float(value)
                for name, value in values.items()
                if isinstance(value, int | float) and name not in {"step", "world_size", "nodes"}
            }
            for tracker in self._trackers:
                tracker.points(kind, values.get("step", 0), numbers)


def resident() -> int:
    """The host memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()


def most_resident() -> int:
    """The peak host memory of this process, in bytes. getrusage(2) would also count the parent's memory when it forked."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


class Speed:
    """Measures tokens per second over all ranks, memory, and on a GPU the model FLOPs utilization (MFU)."""

    def __init__(
        self,
        tokens_per_step: int | None,
        flops_per_token: float | None,
        world: Ranks,
        precision: str = "bf16",
        *,
        unit: str = "tokens",
    ) -> None:
        """tokens_per_step: over all ranks; None where steps differ and step() gets the number. unit: the word for what counts."""
        self._tokens_per_step, self._flops_per_token, self._world = tokens_per_step, flops_per_token, world
        self.unit, self.rate = unit, f"{unit}_per_second"
        self._on_gpu = world.device.type == "cuda"
        self._device = torch.cuda.get_device_name() if self._on_gpu else "cpu"
        # lib/ranks.py lets a GPU multiply float32 matrices as TF32. Then the TF32 peak is the one to compare with.
        multiplied_as_tf32 = precision == "fp32" and torch.get_float32_matmul_precision() != "highest"
        self._precision = "tf32" if self._on_gpu and multiplied_as_tf32 else precision
        self._peak = peak_flops(self._device, self._precision)
        self.restart()

    def described(self) -> dict[str, Any]:
        """The facts behind the rates: the device and its peak, operations for each token, tokens in a step."""
        return {
            "device": self._device,
            "precision": self._precision,
            "peak_flops": self._peak,
            "flops_per_token": self._flops_per_token,
            f"{self.unit}_per_step": self._tokens_per_step,
        }

    def restart(self) -> None:
        """Count from now, for example after a test or a checkpoint."""
        self._began, self._tokens = time.perf_counter(), 0

    def step(self, tokens: int | None = None) -> None:
        """Count one more optimizer step. tokens: of this step, over all ranks; None: tokens_per_step."""
        self._tokens += tokens if tokens is not None else self._tokens_per_step or 0

    def values(self) -> dict[str, int | float]:
        """Since the last restart: tokens_per_second, memory_bytes, and mfu where the GPU's peak is known. Called by all ranks."""
        if self._on_gpu:
            torch.cuda.synchronize()
        rate = self._tokens / (time.perf_counter() - self._began)
        found = {self.rate: rate, "memory_bytes": int(largest(self._memory(), world=self._world)[0])}
        if self._peak is not None and self._flops_per_token is not None:
            found["mfu"] = rate * self._flops_per_token / (self._peak * self._world.ddp_world_size)
        return found

    def _memory(self) -> int:
        """Peak memory in bytes: of the tensors on this rank's GPU since the last call, or without a GPU of this process so far."""
        if not self._on_gpu:
            return most_resident()
        most = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return most


class ProfilerTrace:
    """Writes a torch profiler trace of chosen steps on chosen ranks: <run folder>/profile/rank-<n>.json, for chrome://tracing."""

    def __init__(self, run_dir: Path, world: Ranks, steps: tuple[int, int] | None, ranks: set[int]) -> None:
        self._path = run_dir / "profile" / f"rank-{world.ddp_rank}.json"
        self._steps = steps if world.ddp_rank in ranks else None
        self._profiler: torch.profiler.profile | None = None

    def step(self, step: int) -> None:
        """Call before each optimizer step. step: its number, counted from 1."""
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
