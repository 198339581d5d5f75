"""manifest.json: the record of a run. It is written at submit and completed with the job id, and explains the run even months
later.

A key that an older kit did not write has a default, so that its runs can be read in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field, ValidationError, model_validator

from kit import git
from kit.errors import RunError, ToolError
from kit.files import atomic_write, untrusted_files
from kit.files.safe_text import clean
from kit.record import prepared_data
from kit.schema.schema_base import Model
from kit.schema.set_by import SetBy
from kit.schema.sweep import Value
from kit.schema.world_size_text import PLAIN
from kit.slurm.client import JobId
from kit.version import __version__

if TYPE_CHECKING:
    from kit.planning.plan import Plan

_Model = TypeVar("_Model", bound=Model)

# The name in place of a job file's, in faults and in the record, for a job of `kit run` and for one made in Python.
BY_KIT_RUN, IN_PYTHON = "kit run", "Job(...)"
# The newest version of the file's form that this kit understands.
_VERSION = 1


class Git(Model):
    """The commit of the job's folder. dirty: whether tracked files differed from it."""

    commit: str
    branch: str = Field(description="Its branch; '(detached)' where none is checked out.")
    dirty: bool


class Workspace(Model):
    """The source of the run's /workspace: a snapshot or the live folder."""

    folder: str = Field(description="The job's folder.")
    tree: str | None = Field(
        default=None, description="Hash of the snapshot; none: the run works in the folder itself."
    )
    files: int = 0
    bytes: int = 0
    patch: bool = Field(default=False, description="Whether workspace.patch says how it differs from the commit.")

    def __str__(self) -> str:
        if self.tree is None:
            return f"live folder {self.folder}"
        return f"snapshot {self.tree[:12]} of {self.folder}, {self.files} files"


class Imported(Model):
    """The origin of an imported run. index: sha256 of its archive's index."""

    at: datetime
    index: str


class Manifest(Model):
    """One run. Unknown keys are refused, so that a manifest of a newer kit is not misunderstood."""

    schema_version: int = _VERSION
    run_id: str
    job_name: str
    launcher: str
    shape: str
    cluster: str
    runtime: str
    image: str = Field(description="Path or reference of the image; empty without a container.")
    image_name: str | None
    image_digest: str
    nodes: int
    world_sizes: dict[str, int] = Field(description="Role -> its world size; without roles that of 'train'.")
    seed: int
    job_file: str
    argv: tuple[str, ...]
    submitted_at: datetime
    user: str
    git: Git | None
    versions: dict[str, str]
    workspace: Workspace | None = Field(default=None, description="None for a run of an older kit: the live folder.")
    data: dict[str, str] = Field(
        default={}, description="Prepared data that --data of its arguments names -> its digest."
    )
    set_by: tuple[SetBy, ...] = Field(
        default=(), description="Which layer set each key of job.toml; a key of no layer has the kit's own value."
    )
    records: dict[str, str] = Field(
        default={},
        description="Files that say what the run was made from (job, cluster, launcher, locks of images) -> their sha256.",
    )
    rerun_of: str | None = Field(default=None, description="The run that this one repeats.")
    from_step: int | None = Field(default=None, description="The step of that run's checkpoint that it began at.")
    imported: Imported | None = Field(
        default=None, description="Brought in by `kit import`: Slurm here knows no job of it."
    )
    shell_argv: tuple[str, ...] = ()
    earlier_job_ids: tuple[int, ...] = Field(default=(), description="Jobs of this run before it was resumed.")
    job_id: int | None = None
    array_task: int | None = Field(
        default=None, description="Which task of the array job_id; none for a job of its own."
    )
    links: tuple[int, ...] = Field(default=(), description="The jobs of a chain after job_id.")
    partner: str | None = Field(
        default=None, description="The run on another cluster that is one training with this one."
    )
    point: dict[str, Value] = Field(default={}, description="The values of a point of a sweep.")
    interactive: bool = Field(
        default=False, description="Made by `kit shell`: no batch script, and never the default run."
    )

    @model_validator(mode="before")
    @classmethod
    def _one_world(cls, given: Any) -> Any:
        """Convert the world size of a run that was submitted before world sizes were recorded by role."""
        if isinstance(given, dict) and "world_size" in given:
            given = {**given, "world_sizes": {PLAIN: given["world_size"]}}
            for key in ("world_size", "ranks_per_node"):
                given.pop(key, None)
        return given

    @property
    def slurm_id(self) -> JobId | None:
        """The job's number in Slurm's commands; None before it is submitted."""
        if self.job_id is None or self.array_task is None:
            return self.job_id
        return f"{self.job_id}_{self.array_task}"

    def layer_of(self, key: str) -> SetBy | None:
        """The layer that set a key of the resolved job, such as 'resources.nodes'; None if no layer did, or if the kit did not
        record it.
        """
        return next((one for one in self.set_by if key in one.keys), None)

    def write(self, path: Path, *, durable: bool = True) -> None:
        """Write atomically. durable: as in atomic_write.write; False if one of many runs need not wait for the disk."""
        atomic_write.write(path, self.model_dump_json(indent=2) + "\n", durable=durable)


def load(model: type[_Model], path: Path | str, *, absent: Callable[[], RunError]) -> _Model:
    """Read a JSON file of a run or sweep.

    Raises `absent()` if it is missing, RunError with a one-line reason if it cannot be read.
    """
    try:
        return model.model_validate_json(untrusted_files.read_bytes(path))
    except FileNotFoundError:
        raise absent() from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise RunError(f"{path}: {problem(error)}") from None


def read_manifest(path: Path | str) -> Manifest:
    """The manifest of a run; RunError, with a one-line reason, if it is missing, damaged, or of a newer kit."""
    made = load(Manifest, path, absent=lambda: _absent(Path(path)))
    if made.schema_version > _VERSION:
        raise RunError(
            f"{path}: a newer kit wrote it (schema_version {made.schema_version})", hint="use a kit that is as new"
        )
    return made


def _absent(path: Path) -> RunError:
    return RunError(f"{path.parent}: no manifest.json: not a run folder", hint="'kit runs' lists the runs")


def problem(error: ValidationError) -> str:
    """The first fault of a file that the kit wrote, on one line, without the value, which may be long or malicious."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"unknown key '{clean(key)[:80]}': a newer kit wrote it, or it is damaged"
    return f"damaged: {clean(': '.join(filter(None, [key, first['msg']])))[:200]}"


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Fields that have the same value in all manifests of one submission."""

    job_file: Path
    user: str
    submitted_at: datetime
    git: Git | None
    versions: dict[str, str]
    workspace: Workspace | None = None


def origin(
    *, job_file: Path, user: str, now: datetime, slurm_version: str, workspace: Workspace | None = None
) -> Origin:
    """Collect the shared fields of a submission. git is asked once, here."""
    import platform
    from importlib.metadata import version

    job_file = job_file.resolve()
    return Origin(
        job_file=job_file,
        user=user,
        submitted_at=now,
        git=git_state(job_file.parent),
        versions={
            "kit": __version__,
            "python": platform.python_version(),
            "pydantic": version("pydantic"),
            "slurm": slurm_version,
        },
        workspace=workspace,
    )


def make_manifest(
    plan: Plan, *, job_file: Path, user: str, now: datetime, slurm_version: str, workspace: Workspace | None = None
) -> Manifest:
    """The manifest of a plan that is about to be submitted."""
    made = origin(job_file=job_file, user=user, now=now, slurm_version=slurm_version, workspace=workspace)
    return of_plan(plan, made)


def of_plan(plan: Plan, where_from: Origin) -> Manifest:
    """The manifest of one plan. where_from: the fields that it shares with the other plans of the submission."""
    pin = plan.decisions.pin
    return Manifest(
        run_id=plan.run_id,
        job_name=plan.job.name,
        launcher=plan.job.launcher,
        shape=plan.job.shape or "",
        cluster=plan.cluster,
        runtime=plan.job.container.runtime,
        image=pin.stored or pin.image,
        image_name=plan.job.image_name,
        image_digest=pin.digest,
        nodes=plan.allocation.nodes,
        world_sizes=plan.world_sizes,
        seed=plan.job.seed or 0,
        data=prepared_data.digests(plan.decisions),
        set_by=plan.decisions.resolved.set_by,
        records={file.name: hashlib.sha256(file.text.encode()).hexdigest() for file in plan.records},
        job_file=str(where_from.job_file),
        argv=plan.argv,
        shell_argv=plan.shell_argv,
        submitted_at=where_from.submitted_at,
        user=where_from.user,
        git=where_from.git,
        versions=where_from.versions,
        workspace=where_from.workspace,
    )


def git_state(folder: Path) -> Git | None:
    """The git commit of `folder`; None outside a repository, before its first commit, or without git."""
    # One call gives everything; format: git-status(1), "Porcelain Format Version 2".
    words = ("--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=dirty")
    try:
        done = git.run(folder, "status", *words, check=False, filters=True)
    except ToolError:
        return None
    lines = done.stdout.splitlines()
    headers = dict(line.removeprefix("# branch.").split(" ", 1) for line in lines if line.startswith("# branch."))
    if done.returncode != 0 or headers["oid"] == "(initial)":
        return None
    changed = any(not line.startswith("#") for line in lines)
    return Git(commit=headers["oid"], branch=headers["head"], dirty=changed)
