"""Schema 1 of a line of metrics.jsonl, used by all of the kit's programs. Your own programs may write more keys, or fewer.

`kit schema metrics` prints it; docs/guides/metrics.md is its page. Rates and counts are over all ranks. Each replica group of
DiLoCo reports separately.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

SCHEMA = 1


class _Record(BaseModel):
    """Keys of all kinds of records. Programs may add others."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    time: datetime = Field(description="When it was written, with its zone.")
    restart: int = Field(ge=0, description="Which start of the run wrote it: KIT_RESTART_COUNT.")
    replica: int | None = Field(default=None, ge=0, description="The replica group, of DiLoCo.")


class _OfStep(_Record):
    step: int = Field(ge=0, description="Optimizer steps done; of DiLoCo inner ones.")


class Start(_Record):
    """A start of the program, with the units for the rates in other records."""

    kind: Literal["start"]
    schema_version: Literal[1] = Field(alias="schema", description="Of the records that follow.")
    program: str = Field(description="The program, as below launchers/.")
    world_size: int = Field(ge=1)
    nodes: int = Field(ge=1)
    backend: str = Field(description="nccl or gloo.")
    device: str = Field(description="The GPU, by its driver's name; cpu.")
    precision: Literal["fp32", "tf32", "fp16", "bf16", "fp8"] = Field(description="What is multiplied.")
    peak_flops: float | None = Field(description="Of one device at this precision, a second; null: not known.")
    flops_per_token: float | None = Field(description="Forward and backward; null: not counted.")
    tokens_per_step: int | None = Field(default=None, description="null: steps differ.")
    parameters: int = Field(ge=1, description="Of the whole model.")
    built_bytes: int | None = Field(
        default=None, description="Host memory that building the model took at most on any rank; of FSDP."
    )
    seed: int


class StepRecord(_OfStep):
    """A training record, written every --log-every optimizer steps."""

    kind: Literal["step"]
    loss: float = Field(description="Of this step, the mean over ranks; of SFT over tokens; of RL the policy's.")
    lr: float = Field(ge=0, description="The learning rate that the step was made with.")
    gradient_norm: float = Field(ge=0, description="Before clipping.")
    tokens: int | None = Field(default=None, ge=0, description="Trained on since the run's beginning.")
    tokens_per_second: float | None = Field(default=None, ge=0, description="Since the record before.")
    images_per_second: float | None = Field(default=None, ge=0, description="The same of a program of images.")
    mfu: float | None = Field(default=None, ge=0, description="Share of peak_flops; where that is known.")
    memory_bytes: int = Field(
        ge=0,
        description="The most of any rank: of tensors on its GPU since the record before, or of the process on a CPU.",
    )


class Evaluation(_OfStep):
    """A validation, every --eval-every steps. In RL the orchestrator writes it, with a reward instead of a loss."""

    kind: Literal["eval"]
    eval_loss: float | None = Field(default=None, description="Mean over the validation windows.")
    best: bool | None = Field(default=None, description="No earlier one had a smaller loss; this step was saved.")
    seconds: float | None = Field(default=None, ge=0, description="That it took.")
    reward: float | None = None
    accuracy: float | None = None


class Epoch(_OfStep):
    """The end of an epoch, in a program that trains on images."""

    kind: Literal["epoch"]
    epoch: int = Field(ge=1)
    train_loss: float
    test_loss: float
    accuracy: float = Field(ge=0, le=1)
    images_per_second: float = Field(ge=0)


class Saved(_OfStep):
    """A checkpoint of this step."""

    kind: Literal["saved"]
    seconds: float = Field(ge=0, description="That the loop stood still for.")


class Resumed(_OfStep):
    """The program continues from a checkpoint."""

    kind: Literal["resumed"]
    path: str


class Stopped(_OfStep):
    """The program stopped on request, after saving."""

    kind: Literal["stopped"]
    signal: int


class Final(_OfStep):
    """The last record of a run that finished."""

    kind: Literal["final"]
    world_size: int = Field(ge=1)
    nodes: int = Field(ge=1)
    backend: str
    test_loss: float | None = Field(default=None, description="Of the validation windows; of images the test set.")
    accuracy: float | None = Field(default=None, ge=0, le=1)
    reward: float | None = None


class Outer(_OfStep):
    """An average over replica groups (docs/guides/diloco.md)."""

    kind: Literal["outer"]
    outer_step: int = Field(ge=0)
    groups: tuple[int, ...]
    averaged: int = Field(ge=0)
    bytes_sent: float = Field(ge=0, description="By this group.")


class Other(_Record):
    """`changed` (options that differ from the checkpoint's), `rollouts`, `test`, `no-quorum`, `memory`."""

    kind: Literal["changed", "rollouts", "test", "no-quorum", "memory"]


class MetricsRecord(
    RootModel[
        Annotated[
            Start | StepRecord | Evaluation | Epoch | Saved | Resumed | Stopped | Final | Outer | Other,
            Field(discriminator="kind"),
        ]
    ]
):
    """A line of metrics.jsonl."""

    model_config = ConfigDict(frozen=True, defer_build=True)
