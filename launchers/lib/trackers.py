"""TensorBoard and Weights & Biases, where the job asks for them: `[metrics] tensorboard = true`, `wandb = { project = "..." }`.

Read here: KIT_TENSORBOARD, and KIT_WANDB with WANDB_RUN_ID. The kit sets those and wandb's own variables (WANDB_PROJECT,
WANDB_MODE, WANDB_RESUME, ...), so that a user's own wandb.init() is the same run too: one id over every requeue, restart and
resume.
"""

import os
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Draws what a run reports."""

    def describe(self, told: dict[str, Any]) -> None:
        """What the run is, at each of its starts."""

    def points(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        """The numbers of a record, at a step."""


class TensorBoard:
    """Event files below <run folder>/tensorboard, one for each start; `tensorboard --logdir` shows them as one run."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - only where it is asked for
        except ImportError:
            raise SystemExit("metrics.tensorboard is true, but the package tensorboard is not installed.") from None
        self._made, self._folder = SummaryWriter, str(folder)
        self._writer: Any = None

    def describe(self, told: dict[str, Any]) -> None:
        """Nothing: TensorBoard has no place for it that a later start could change."""

    def points(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        """As curves `kind/name`."""
        if self._writer is None:  # from its first step on this start replaces what an earlier one, killed later, drew
            self._writer = self._made(self._folder, purge_step=step)
        for name, number in numbers.items():
            self._writer.add_scalar(f"{kind}/{name}", number, step)
        self._writer.flush()


class WandB:
    """The run WANDB_RUN_ID at Weights & Biases; with WANDB_MODE=offline files below WANDB_DIR, for `wandb sync` later."""

    def __init__(self, part: str) -> None:
        """part: of a run whose parts report each for themselves (a replica group), its name; else empty."""
        try:
            import wandb  # noqa: PLC0415 - only where it is asked for
        except ImportError:
            raise SystemExit("the job has metrics.wandb, but the package wandb is not installed.") from None
        of_run = os.environ["WANDB_RUN_ID"]
        parts = {"id": f"{of_run}-{part}", "name": f"{of_run} {part}", "group": of_run} if part else {"id": of_run}
        # Its console capture would take the lines that rank logs are made of.
        self._run = wandb.init(**parts, resume="allow", settings=wandb.Settings(console="off"))
        # wandb's own count of steps refuses one that a killed start made before: the records' step is the axis instead.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def describe(self, told: dict[str, Any]) -> None:
        """As the run's configuration."""
        self._run.config.update(told, allow_val_change=True)

    def points(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        """As curves `kind/name` over `step`."""
        self._run.log({"step": step, **{f"{kind}/{name}": number for name, number in numbers.items()}})


def asked_for(run_dir: Path) -> list[Tracker]:
    """The trackers of the program that reports into `run_dir`."""
    found: list[Tracker] = []
    if os.environ.get("KIT_TENSORBOARD") == "1":
        found.append(TensorBoard(run_dir / "tensorboard"))
    if os.environ.get("KIT_WANDB") == "1":
        whole = Path(os.environ.get("KIT_RUN_DIR") or run_dir)
        found.append(WandB("" if run_dir == whole else run_dir.name))
    return found
