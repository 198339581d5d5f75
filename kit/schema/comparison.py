"""Schema of `kit diff --json`: the differences of two runs. `kit schema comparison` prints it; docs/guides/diff.md is its page."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from kit.schema.schema_base import Model

Change = Literal["added", "removed", "changed"]


class ComparedRun(Model):
    """One of the two runs, and how it ended."""

    run: str = Field(description="Its id.")
    run_dir: str
    job_id: int | str | None = Field(description="Of Slurm; a point of a sweep has ARRAY_TASK. null: it never had one.")
    state: str = Field(description="Slurm's word.")
    exit_code: int | None = Field(description="Of the run; null while it has none.")
    verdict: str = Field(description="Of `kit why`.")
    rule: str = Field(description="Of `kit why`.")
    why: str = Field(description="The first line of `kit why`.")
    submitted_at: str
    step: int | None = Field(description="The last step that its metrics have.")


class ValueDifference(Model):
    """One recorded value that differs. null: this run has none."""

    name: str
    a: str | None
    b: str | None


class Parting(Model):
    """The first step at which a reported number of the two runs differs. If a run reported a step twice, the last value counts."""

    metric: str
    rank: int | None = Field(default=None, description="The rank that reported it; null where records name none.")
    replica: int | None = Field(default=None, description="The replica group, of DiLoCo.")
    step: int = Field(description="The first step with different values.")
    a: float
    b: float
    by: float = Field(description="b - a at that step.")
    equal_steps: int = Field(description="Steps before it that both reported, to the last bit the same.")
    last_step: int = Field(description="The last step that both reported.")
    last_a: float
    last_b: float


class MetricsDifference(Model):
    """The comparison of both runs' metrics.jsonl. Rates, times and memory always differ, so they are not compared step by step."""

    compared: int = Field(description="Steps that both reported.")
    last_a: int | None = Field(description="The last step of the first run; null: it reported none.")
    last_b: int | None
    parted: tuple[Parting, ...] = Field(description="Losses first; within a metric the rank that parted first.")
    equal: tuple[str, ...] = Field(description="Metrics that are the same at every step that both reported.")
    only_a: tuple[str, ...] = Field(description="Metrics that only the first run reported.")
    only_b: tuple[str, ...]
    speed: tuple[ValueDifference, ...] = Field(description="Medians of rates.")


class KeyDifference(Model):
    """A key of the resolved job. set_by: the layer that set it; null: not recorded. A value of null: the key is missing."""

    key: str
    a: Any
    b: Any
    set_by_a: str | None
    set_by_b: str | None


class FileDifference(Model):
    """A file that differs. patch: a unified diff; empty if `note` says why there is none."""

    path: str
    change: Change
    note: str = Field(default="", description="Such as 'binary', 'mode', 'too large to show'.")
    patch: str = ""


class CodeDifference(Model):
    """The workspaces: the trees of the snapshots, and their commits. null: not recorded."""

    tree_a: str | None
    tree_b: str | None
    commit_a: str | None
    commit_b: str | None
    files: tuple[FileDifference, ...]


class ImageDifference(Model):
    """The images. lines: `+` only in the second, `-` only in the first, `~` different in the two."""

    a: str = Field(description="Name and digest; empty without a container.")
    b: str
    packages: tuple[str, ...]
    rest: tuple[str, ...] = Field(description="Base, environment, working directory, tools, options.")


class Comparison(Model):
    """The differences of two runs, the most telling first. An empty list means that no difference of this kind was found."""

    schema_version: Literal[1] = 1
    conclusion: str = Field(description="One sentence.")
    a: ComparedRun
    b: ComparedRun
    outcome: tuple[ValueDifference, ...]
    metrics: MetricsDifference
    keys: tuple[KeyDifference, ...]
    code: CodeDifference
    image: ImageDifference
    scripts: tuple[FileDifference, ...] = Field(
        description="What the kit wrote into the run folders, without the runs' own names."
    )
    kit: tuple[ValueDifference, ...]
    cluster: tuple[ValueDifference, ...]
    nodes: tuple[ValueDifference, ...]
    environment: tuple[ValueDifference, ...] = Field(
        description="Versions other than the kit's, and those that programs report."
    )
    unknown: tuple[str, ...] = Field(description="What is not recorded, or is gone: it may differ.")
