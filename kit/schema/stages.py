"""Stages: several jobs of one file that follow each other, such as pretrain, convert, evaluate."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from kit.schema.schema_base import Model
from kit.schema.wrong_value_messages import Form

AfterStage = Annotated[
    str,
    Form(
        pattern=r"[a-z0-9][a-z0-9._-]*(:(ok|any|notok))?",
        what="a stage to wait for",
        how="its name, and :ok, :any or :notok for how it has to end",
        example="pretrain:ok",
        nearest=lambda text: f"{text.partition(':')[0].lower()}:any",
    ),
]


class Stage(Model):
    """One stage. It may set any key of the job. Its keys override those that all stages share."""

    model_config = ConfigDict(extra="allow", frozen=True)

    after: tuple[AfterStage, ...] = Field(
        default=(),
        description="Stages to wait for. NAME or NAME:ok: until it has ended with 0. NAME:any: until it has ended. "
        "NAME:notok: until it has failed.",
    )
