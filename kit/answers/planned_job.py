"""A job that is planned first and submitted later, exactly as planned: a change of its inputs in between is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit import config
from kit.config import Sources
from kit.errors import PlanChangedError, RunError, UsageError
from kit.files import untrusted_files
from kit.planning.plan import Plan
from kit.record.manifest import IN_PYTHON
from kit.schema.job import Job
from kit.submission import prepare_run
from kit.submission.prepare_run import Prepared


@dataclass(frozen=True, kw_only=True)
class JobToPlan:
    """What `plan` and `submit` were asked for. folder: relative paths of a `Job` start there; None for the working folder."""

    job: Job | Path
    cluster: str | None = None
    overrides: tuple[str, ...] = ()
    folder: Path | None = None
    containers: bool = True

    def sources(self) -> Sources:
        """The job's file, cluster and overrides, as they are now."""
        if isinstance(self.job, Job):
            here = (self.folder or Path.cwd()).resolve()
            written = self.job.model_dump(mode="json", exclude_unset=True)
            return config.job_of(written, here / IN_PYTHON, cluster=self.cluster, overrides=self.overrides)
        return config.read_job(config.job_path(self.job), cluster=self.cluster, overrides=self.overrides)

    def prepared(self, *, run_id: str | None = None, seed: int | None = None) -> Prepared:
        """The single job, planned. run_id, seed: those of an earlier plan, to compare with it."""
        sources = self.sources()
        resolved = sources.resolve()
        for table, hint in (("sweep", "kit.sweep() submits its points"), ("stages", "'kit submit' submits all stages")):
            if getattr(resolved.job, table):
                raise UsageError(
                    f"{resolved.job_file}: it has a [{table}], and this call takes a single job", hint=hint
                )
        return prepare_run.prepare_resolved(
            resolved, sources.job_file, containers=self.containers, run_id=run_id, seed=seed
        )


@dataclass(frozen=True, kw_only=True)
class PlannedJob(Plan):
    """A plan that `kit.submit` takes. inputs: name of each thing that decides what the run does -> the hash of its content.

    These are the job file as it was read, the workspace, the locks of the images, the command and every file of the run folder.
    The files hold all that the job, the cluster, the launcher and the overrides resolve to.
    """

    asked: JobToPlan
    prepared: Prepared
    inputs: Mapping[str, str]

    @property
    def digest(self) -> str:
        """One hash over all inputs."""
        return _hash(json.dumps(self.inputs, sort_keys=True))


def plan_job(asked: JobToPlan) -> PlannedJob:
    """Plan a single job; nothing is written."""
    ready = asked.prepared()
    shown = {field.name: getattr(ready.plan, field.name) for field in dataclasses.fields(Plan)}
    return PlannedJob(**shown, asked=asked, prepared=ready, inputs=dict(_inputs(ready)))


def as_planned(planned: PlannedJob) -> Prepared:
    """What `planned` submits. PlanChangedError if planning again gives another result; RunError if it was submitted already."""
    before = planned.prepared
    if before.folder.exists():
        raise RunError(f"{planned.run_id}: this plan was submitted already", hint="plan again for another run")
    now = dict(_inputs(planned.asked.prepared(run_id=planned.run_id, seed=before.site.seed)))
    changed = [name for name in sorted({*planned.inputs, *now}) if planned.inputs.get(name) != now.get(name)]
    if changed:
        raise PlanChangedError(
            f"{before.resolved.job_file}: changed since {planned.run_id} was planned: {', '.join(changed)}",
            hint="plan again, and submit the new plan",
        )
    return before


def _inputs(ready: Prepared) -> Iterator[tuple[str, str]]:
    plan = ready.plan
    if ready.job_file.is_file():
        yield "job file", hashlib.sha256(untrusted_files.read_bytes(ready.job_file)).hexdigest()
    if ready.scan is not None:
        yield "workspace", plan.decisions.site.snapshot.tree if plan.decisions.site.snapshot else ""
    for pinned in plan.decisions.pins.distinct:
        yield f"image {pinned.image}", pinned.digest
    yield "command", _hash("\0".join(plan.argv))
    for file in plan.files:
        yield file.name, _hash(f"{file.mode:o} {file.text}")
    for source, name in plan.copies:
        yield name, _hash("\0".join(_listing(source)))


def _listing(folder: Path) -> Sequence[str]:
    """Each file of a folder with the hash of its content."""
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else [folder]
    return [f"{path.relative_to(folder)} {_digest(path)}" for path in files]


def _digest(path: Path) -> str:
    with untrusted_files.open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
