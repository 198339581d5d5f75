"""Chain: several Slurm jobs, one after the other, for a run that is longer than a time limit. The `[chain]` table of job.toml."""

from __future__ import annotations

from pydantic import Field

from kit.spec.schema_base import Model


class Chain(Model):
    """Each link continues from the previous link's checkpoint, in the same run folder. The chain ends when the program does."""

    times: int = Field(ge=2, le=1000, description="How many jobs at most.")
