"""Stages: several jobs of one file that follow each other, such as pretrain, convert, evaluate."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from kit.spec.base import Model

AfterStage = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*(:(ok|any|notok))?$", examples=["pretrain:ok"])]


class Stage(Model):
    """One stage: any keys of the job, above those that all stages share, and what it waits for."""

    model_config = ConfigDict(extra="allow", frozen=True)

    after: tuple[AfterStage, ...] = Field(
        default=(), description="Stages to wait for: NAME or NAME:ok, NAME:any, NAME:notok."
    )
