"""Chain: several Slurm jobs, one after the other, for a run that is longer than a time limit. The `[chain]` table of job.toml."""

from __future__ import annotations

from pydantic import Field

from kit.schema.schema_base import Model


class Chain(Model):
    """Several jobs, one after another. Each continues from the checkpoint of the job before it, in the same run folder. The chain
    ends early when the program has finished or failed.
    """

    times: int = Field(ge=2, le=1000, description="Maximum number of jobs in the chain.")
