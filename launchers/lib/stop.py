"""Stops on request: after TERM or USR1 all ranks leave the loop after the same step, save, and exit.

The exit code of a saved stop is 128 + the signal's number, as a shell would report it: 143 for TERM, 138 for USR1. It
is neither success (0) nor a failure of the program (1), so the batch script can requeue the job. torchrun hides this code:
it reports 1 for such a rank, and also for a TERM of its own. So rank 0 also writes <run folder>/state/stopped.json
when the checkpoint is on disk: {"signal": 15, "step": 120, "restart": 0}. The next start removes it.
"""

import json
import os
import signal
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from .ranks import Ranks

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Asks at each step whether any rank got a signal. All ranks get the same answer at the same step.

    The answer is one step old: the all-reduce of the flag runs while the step computes, so that no rank waits for it.
    """

    def __init__(self, run_dir: Path, world: Ranks) -> None:
        self._world, self._control = world, world.control
        self._report = run_dir / "state" / "stopped.json"
        if world.is_main_process:
            self._report.parent.mkdir(parents=True, exist_ok=True)
            self._report.unlink(missing_ok=True)
        self._received = 0
        self._flag = torch.zeros(1, dtype=torch.int32)
        self._pending: dist.Work | None = None
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received = max(self._received, number)

    def agreed(self) -> int:
        """The signal that some rank had received when the previous step ended; 0 where there was none."""
        answer = self.close()
        self._flag.fill_(self._received)
        self._pending = dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, group=self._control, async_op=True)
        return answer

    def close(self) -> int:
        """Wait for the pending all-reduce, if any, and return its value."""
        if self._pending is None:
            return 0
        self._pending.wait()
        self._pending = None
        return int(self._flag.item())

    def finish(self, number: int, step: int) -> int:
        """Report that the checkpoint of `step` is saved and the stop is done. Returns the program's exit code."""
        if self._world.is_main_process:
            report = {"signal": number, "step": step, "restart": int(os.environ.get("KIT_RESTART_COUNT") or 0)}
            new = self._report.with_suffix(".new")
            new.write_text(json.dumps(report) + "\n", encoding="utf-8")
            new.replace(self._report)
        return 128 + number
