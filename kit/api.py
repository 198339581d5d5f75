"""The Python API: what the command line does, for scripts and notebooks.

    from kit import Job, plan, submit

    job = Job(name="digits", launcher="ddp", image="train-cpu", args=("--epochs", "12"))
    print(plan(job, cluster="local").text_of("batch.sh"))
    run = submit(job, cluster="local")
    print(run.wait().state, run.metrics()["accuracy"])

A job is a `Job`, or the path of a job file or of its folder. Errors are those of kit.errors; nothing is printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kit import config, data_folders
from kit.config import Sources
from kit.errors import UsageError
from kit.planning.plan import Plan
from kit.runs import find_runs, prepare_run, status, unmade_points, which_slurm
from kit.runs import metrics as reported
from kit.runs import rerun as repeating
from kit.runs import submit as one_run
from kit.runs.cancel import cancel
from kit.runs.manifest import IN_PYTHON, Manifest, read
from kit.runs.prepare_run import Prepared
from kit.runs.status import Status
from kit.spec.job import Job
from kit.spec.metric_goals import Goal
from kit.spec.run_paths import RunPaths
from kit.sweeps import find, prepare, record, wait
from kit.sweeps import submit as sending
from kit.sweeps.results import Results, gather
from kit.sweeps.run_metrics_cache import Reduce, metrics_of
from kit.workflow import dependencies


@dataclass(frozen=True)
class Run:
    """A run: one folder with all its data."""

    folder: Path

    @property
    def manifest(self) -> Manifest:
        """The record of the submission: image digest, seed, versions, job id."""
        unmade_points.make(self.folder)
        return read(RunPaths(self.folder).manifest)

    def status(self) -> Status:
        """Its state; Slurm is asked once."""
        (one,) = status.of([self.folder], queue=which_slurm.queue())
        return one

    def wait(self) -> Status:
        """Wait for the end. The exit code is in the status; a failed run raises no exception."""
        return status.wait(self.folder, queue=which_slurm.queue(), on_poll=lambda _: None)

    def cancel(self) -> None:
        """Cancel the run, as `kit cancel` does. SlurmError when Slurm does not know it."""
        one = self.status()
        cancel([one], env=which_slurm.env_of(one.facts.cluster))

    def rerun(
        self,
        *,
        overrides: Sequence[str] = (),
        cluster: str | None = None,
        from_step: int | None = None,
        live: bool = False,
    ) -> Run:
        """Submit a repetition of the run, as `kit rerun` does: the same code, image, job and seed.

        RunError and LockError, with the exact reason, if something of the run is missing.
        """
        unmade_points.make(self.folder)
        ready = repeating.prepare(self.folder, cluster=cluster, overrides=overrides, from_step=from_step, live=live)
        one_run.submit(ready)
        return Run(ready.plan.run_dir)

    def metrics(self, *, reduce: Reduce = "last") -> dict[str, float]:
        """The numbers that the program reported, by name."""
        return metrics_of(self.folder, reduce=reduce)

    def records(self) -> list[dict[str, object]]:
        """All records that the program has written so far. Records of several replica groups are merged by time."""
        return reported.records(self.folder)


@dataclass(frozen=True)
class SweepRun:
    """A submitted sweep: a folder with a run for each point."""

    folder: Path

    @property
    def runs(self) -> list[Run]:
        """The points' runs, in order."""
        paths = record.SweepPaths(self.folder)
        return [Run(paths.point(point.index)) for point in record.read(self.folder).points]

    def wait(self) -> list[Run]:
        """Wait for all points; return the runs of those that did not end well."""
        paths = record.SweepPaths(self.folder)
        failed = wait.wait(self.folder, queue=which_slurm.queue(), on_poll=lambda _: None)
        return [Run(paths.point(index)) for index in failed]

    def cancel(self) -> None:
        """Cancel all points that wait or run, as `kit cancel` does."""
        active = find.active(self.folder, queue=which_slurm.queue())
        if active:
            cancel(active, env=which_slurm.env_of(active[0].facts.cluster))

    def results(self, *, metric: str | None = None, goal: Goal | None = None, reduce: Reduce = "last") -> Results:
        """All points with their metrics, the best first."""
        return gather(self.folder, queue=which_slurm.queue(), metric=metric, goal=goal, reduce=reduce)


def plan(
    job: Job | str | Path,
    *,
    cluster: str | None = None,
    overrides: Sequence[str] = (),
    folder: Path | None = None,
    containers: bool = True,
) -> Plan:
    """The files and commands of `submit`; nothing is written. The options are those of `submit`."""
    return _prepared(job, cluster, overrides, folder, containers).plan


def submit(
    job: Job | str | Path,
    *,
    cluster: str | None = None,
    overrides: Sequence[str] = (),
    folder: Path | None = None,
    containers: bool = True,
    after: Sequence[str | Run] = (),
) -> Run:
    """Write the run folder and submit it, as `kit submit` does.

    cluster: a name of clusters/, default 'local'. overrides: 'resources.nodes=4' each; after '--', words for the program. folder:
    relative paths of a `Job` start here, default the working folder. after: runs to wait for, in the form of `--after`; a Run
    means `RUN:ok`.
    """
    ready = _prepared(job, cluster, overrides, folder, containers)
    if after:
        texts = [one.folder.name if isinstance(one, Run) else one for one in after]
        folders = find_runs.folders(ready.resolved.project)
        ready = dependencies.with_dependency(ready, texts, folders, queue=which_slurm.queue())
    one_run.submit(ready)
    return Run(ready.plan.run_dir)


def sweep(
    job: Job | str | Path,
    *,
    cluster: str | None = None,
    overrides: Sequence[str] = (),
    folder: Path | None = None,
    containers: bool = True,
) -> SweepRun:
    """Submit every point of a job's `[sweep]`, as `kit sweep` does."""
    made = prepare.prepare_sources(_sources(job, cluster, overrides, folder), containers=containers)
    sending.submit(made)
    return SweepRun(made.folder)


def results(name: str | None = None, *, metric: str | None = None, goal: Goal | None = None) -> Results:
    """The results of a sweep, given by its id, the start of its id, or its folder; by default of the newest."""
    found = find.find_one(name, find_runs.folders(data_folders.project()))
    return SweepRun(found).results(metric=metric, goal=goal)


def _prepared(
    job: Job | str | Path, cluster: str | None, overrides: Sequence[str], folder: Path | None, containers: bool
) -> Prepared:
    sources = _sources(job, cluster, overrides, folder)
    resolved = sources.resolve()
    if resolved.job.sweep is not None:
        raise UsageError(
            f"{resolved.job_file}: it has a [sweep], and this call takes a single job",
            hint="kit.sweep() submits its points",
        )
    if resolved.job.stages:
        raise UsageError(
            f"{resolved.job_file}: it has [stages], and this call takes a single job",
            hint="'kit submit' submits all stages",
        )
    return prepare_run.prepare_resolved(resolved, sources.job_file, containers=containers)


def _sources(job: Job | str | Path, cluster: str | None, overrides: Sequence[str], folder: Path | None) -> Sources:
    if isinstance(job, Job):
        here = (folder or Path.cwd()).resolve()
        written = job.model_dump(mode="json", exclude_unset=True)
        return config.job_of(written, here / IN_PYTHON, cluster=cluster, overrides=overrides)
    path = Path(job)
    return config.read_job(config.job_path(path), cluster=cluster, overrides=overrides)
