"""Models of what commands about images, models, checkpoints and data print with --json."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kit.schema.schema_base import Model


class BuiltImage(Model):
    """An image that was built or imported."""

    name: str
    digest: str
    size: int = Field(description="Bytes.")
    path: str
    lock: str
    built: bool = Field(description="false: nothing had changed.")
    method: str
    changes: list[str] = Field(description="Changes of the lock, in words.")
    seconds: float


class StoredImage(Model):
    """An image of the store, or of a lock."""

    name: str
    digest: str
    size: int | None = Field(description="Bytes.")
    made: float | None = Field(description="Seconds since 1970.")
    present: bool
    locks: list[str]
    runs: list[str]


class StoreProblems(Model):
    """What others could change in a store: `kit images --doctor`."""

    store: str
    problems: list[str]


class KeptImage(Model):
    """An image that could not be removed."""

    path: str
    reason: str


class PrunedImages(Model):
    """Images and cached layers that were removed."""

    dry_run: bool
    removed: list[str]
    kept: list[KeptImage]


class ModelSizes(Model):
    """The size of a model, and what its training takes."""

    parameters: int
    non_embedding: int
    tokens: int
    steps: int
    operations: float
    needs_sharding: bool
    local_batch: int


class ComparedCheckpoint(Model):
    """A checkpoint on disk beside the prediction, in bytes."""

    path: str
    files: int
    on_disk: int
    predicted: int
    difference: int


class CheckpointSizes(Model):
    """Predicted sizes of a checkpoint in bytes."""

    parameters: int
    weights: int
    master: int
    moments: int
    total: int
    disk: int = Field(description="What all kept checkpoints take, and the one that is being written.")
    largest_rank: int = Field(default=0, description="With several ranks only.")
    compare: ComparedCheckpoint | None = Field(default=None, description="With --compare only.")


class ConvertedCheckpoint(Model):
    """A checkpoint that was converted."""

    source: str
    target: str
    to: str
    tensors: int
    bytes: int
    files: list[str]
    model_config_: dict[str, Any] = Field(alias="model_config", description="The model's shape.")


class PreparedText(Model):
    """Data that were tokenized."""

    target: str
    seconds: float
    digest: str
    documents: dict[str, int] = Field(description="read, train, validation, empty, bad, and other counts.")
    tokens: dict[str, int] = Field(description="train, validation.")
    vocabulary: int
    bytes: int
