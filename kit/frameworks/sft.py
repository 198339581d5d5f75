"""SFT: `[sft]`, resolved as kit.frameworks.rl resolves `[rl]`, for the trainer alone."""

from __future__ import annotations

from kit.allocation import Allocation
from kit.frameworks import Extra
from kit.frameworks.rl import others, prepared
from kit.spec.job import Job
from kit.spec.launcher import Launcher
from kit.spec.rl import Sft


def prepare(job: Job, allocation: Allocation, *, launcher: Launcher, file: str) -> Extra:
    """The trainer of [sft], and the file of its options."""
    return prepared("sft", job.sft or Sft(), job, allocation, launcher=launcher, file=file)


def nodes(job: Job) -> int:
    """Those of the trainer, and those that the job's own roles have besides."""
    table = job.sft or Sft()
    return table.num_train_nodes + others(job, set(table.tables()))


def gpus_per_node(job: Job) -> int | None:
    """As [sft] says it."""
    return job.sft.gpus_per_node if job.sft else None
