"""The last step of a program that reports nothing to the kit, and how far it is beyond the newest checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kit.record import checkpoint_steps, metrics


@dataclass(frozen=True, kw_only=True)
class LastStep:
    """step: by what the program writes for others. at: seconds since the epoch, of the last change of the file that tells it.

    source: that file, and what was read in it. saved: the step of the newest numbered checkpoint; None if there is none.
    """

    step: int
    at: float
    source: str
    saved: int | None

    def words(self, now: float | None = None) -> str:
        """For a sentence. now: seconds since the epoch; None for a run that has ended."""
        if now is None:
            when = f"at {datetime.fromtimestamp(self.at).astimezone().isoformat(timespec='seconds')}"
        else:
            when = f"{max(0.0, now - self.at):.0f} s ago"
        if self.saved is None or self.saved > self.step:
            return f"step {self.step}, {when}"
        return f"step {self.step}, {when}, {self.step - self.saved} after the newest checkpoint (step {self.saved})"


def read_last_step(run_dir: Path) -> LastStep | None:
    """None where the program reports its steps to the kit, or where no file tells one."""
    latest = metrics.latest(run_dir)
    if latest is None or not latest.source:
        return None
    try:
        at = datetime.fromisoformat(latest.time).timestamp()
    except ValueError:
        at = time.time()
    saved = checkpoint_steps.steps(run_dir)
    return LastStep(step=latest.step, at=at, source=latest.source, saved=saved[-1] if saved else None)
