"""JobSize: another size at which a job may run. The `[[when]]` tables of job.toml, read by `kit when`."""

from __future__ import annotations

from pydantic import Field, model_validator

from kit.schema.schema_base import Model, Name, SbatchWord, TimeLimit
from kit.schema.wrong_value_messages import Invalid


class JobSize(Model):
    """Another acceptable size. A missing key keeps its value from the rest of the job."""

    nodes: int | None = Field(default=None, ge=1, description="Number of nodes.")
    time: TimeLimit | None = Field(default=None, description="Wall-clock limit.")
    qos: Name | None = Field(default=None, description="A row of the cluster's QOS table.", examples=["high"])
    partition: SbatchWord | None = Field(default=None, description="Slurm's partition.")
    pieces: int | None = Field(
        default=None,
        ge=2,
        le=1000,
        description="Number of jobs of this size that replace the one job. They are tasks of an array and may run at the "
        "same time.",
    )

    @model_validator(mode="after")
    def _says_something(self) -> JobSize:
        if not self.model_fields_set:
            raise Invalid(
                "this choice sets no key, so it is the same as the job itself", hint='nodes = 4, time = "2:00:00"'
            )
        return self
