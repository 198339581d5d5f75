"""TensorBoard and Weights & Biases, where the job asks for them: `[metrics] tensorboard = true`, `wandb = { project = "..." }`.

Read here: KIT_TENSORBOARD, and KIT_WANDB with WANDB_RUN_ID. The kit sets those and wandb's own variables (WANDB_PROJECT,
WANDB_MODE, WANDB_RESUME, ...), so a user's own wandb.init() joins the same run. The run keeps one id over every requeue, restart
and resume.
"""

import os
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Sends a run's metrics to a tracking tool."""

    def describe(self, told: dict[str, Any]) -> None:
        """Send the run's description. Called at each start of the run."""

    def points(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        """Send the numbers of a record at a step."""


class TensorBoardTracker:
    """Writes event files below <run folder>/tensorboard, one for each start. `tensorboard --logdir` shows them as one run."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - only where it is asked for
        except ImportError:
            raise SystemExit("metrics.tensorboard is true, but the package tensorboard is not installed.") from None
        self._made, self._folder = SummaryWriter, str(folder)
        self._writer: Any = None

    def describe(self, told: dict[str, Any]) -> None:
        """Do nothing: TensorBoard has no description that a later start could change."""

    def points(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        """Draw curves named `kind/name`."""
        if self._writer is None:  # purge_step hides points that an earlier start drew before it was killed
            self._writer = self._made(self._folder, purge_step=step)
        for name, number in numbers.items():
            self._writer.add_scalar(f"{kind}/{name}", number, step)
        self._writer.flush()


class WandBTracker:
    """Logs to the run WANDB_RUN_ID at Weights & Biases. With WANDB_MODE=offline: to files below WANDB_DIR, for `wandb sync`."""

    def __init__(self, part: str) -> None:
        """part: the name of a part that reports by itself, such as a replica group; else empty."""
        try:
            import wandb  # noqa: PLC0415 - only where it is asked for
        except ImportError:
            raise SystemExit("the job has metrics.wandb, but the package wandb is not installed.") from None
        of_run = os.environ["WANDB_RUN_ID"]
        parts = {"id": f"{of_run}-{part}", "name": f"{of_run} {part}", "group": of_run} if part else {"id": of_run}
        # wandb's console capture would take the output that makes up the rank logs.
        self._run = wandb.init(**parts, resume="allow", settings=wandb.Settings(console="off"))
        # wandb refuses a step number that an earlier, killed start has used. So the records' own step is the axis.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def describe(self, told: dict[str, Any]) -> None:
        """Set the run's configuration."""
        self._run.config.update(told, allow_val_change=True)

    def points(self, kind: str, step: int, numbers: dict[str, float]) -> None:
        """Draw curves named `kind/name` over `step`."""
        self._run.log({"step": step, **{f"{kind}/{name}": number for name, number in numbers.items()}})


def asked_for(run_dir: Path) -> list[Tracker]:
    """The trackers that the job asks for. run_dir: the folder that the program reports into."""
    found: list[Tracker] = []
    if os.environ.get("KIT_TENSORBOARD") == "1":
        found.append(TensorBoardTracker(run_dir / "tensorboard"))
    if os.environ.get("KIT_WANDB") == "1":
        whole = Path(os.environ.get("KIT_RUN_DIR") or run_dir)
        found.append(WandBTracker("" if run_dir == whole else run_dir.name))
    return found
