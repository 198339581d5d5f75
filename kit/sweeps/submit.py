"""Submits a sweep: writes its folder, and submits its arrays, one sbatch for each. If one is refused, nothing is left behind.

Every point's record has its place in an array from the start; the job's number is added to all of them.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kit.hosts import whole_folder
from kit.hosts.host import NewArray, NewArrays
from kit.planning.plan import Plan
from kit.record import manifest, secret, unmade_points
from kit.record.manifest import Manifest
from kit.slurm import client
from kit.submission import folder, workspace
from kit.submission import submit as one_run
from kit.submission.folder import Like
from kit.submission.prepare_run import Prepared
from kit.sweeps import lost_arrays, point_templates, record
from kit.sweeps.arrays import Array
from kit.sweeps.point_templates import Template
from kit.sweeps.points.expand import Point
from kit.sweeps.prepare import PreparedSweep
from kit.sweeps.record import RecordedPoint, SentArray, SweepPaths, SweepRecord
from kit.sweeps.search import search_requirements

# Array number -> more options of sbatch, for the jobs that it waits for.
After = Mapping[int, Sequence[str]]


def submit(prepared: PreparedSweep, *, after: After | None = None, now: datetime | None = None) -> SweepRecord:
    """Write the sweep's folder and submit all its arrays."""
    after = after or {}
    now = now or datetime.now(UTC)
    arrays = prepared.arrays()
    _require(prepared, arrays, after)
    writer = RunWriter(prepared, prepared.points[0], _sent(arrays, after), now=now)
    # A point of a search gets its values from the kit before it starts. Files with secrets are removed with their run.
    plain = not prepared.sweep.search and not writer.secrets
    templates = point_templates.find(prepared, arrays, after, writer.manifest_of) if plain else ()
    arrays = point_templates.changed(arrays, templates)
    later = {index for one in templates for index in one.words}
    sweep_record = new_record(prepared, arrays=_sent(arrays, after), now=now)

    def fill(root: Path) -> list[Path]:
        SweepPaths(root).points.mkdir()
        point_templates.write(templates, arrays, root, prepared.folder, fill=writer.write_template)
        writer.write(root, (point for point in prepared.points if point.index not in later))
        write_arrays(arrays, prepared.folder, root)
        sweep_record.write(SweepPaths(root))
        return writer.written

    return _send(prepared, sweep_record, arrays, fill, undo=lambda: whole_folder.remove(prepared.folder))


def resubmit(
    prepared: PreparedSweep, before: SweepRecord, points: Sequence[int], *, now: datetime | None = None
) -> SweepRecord:
    """Submit these points of a sweep in its own folder, again or for the first time. Their earlier output stays.

    before: the sweep's record.
    """
    now = now or datetime.now(UTC)
    paths = SweepPaths(prepared.folder)
    # A submit that was killed may have left an array's folder, and no record of it.
    numbers = (*(a.number for a in before.arrays), *lost_arrays.written_numbers(SweepPaths(prepared.at)))
    arrays = prepared.arrays(points, first=max(numbers, default=-1) + 1)
    again = set(points)
    wanted = [p for p in prepared.points if p.index in again]
    _require(prepared, arrays, {})
    known = {p.index for p in before.points}
    new = [p for p in wanted if p.index not in known]
    sent = _sent(arrays, {})
    points_now = (*before.points, *map(_recorded, sorted(new, key=lambda p: p.index)))
    sweep_record = before.model_copy(update={"points": points_now, "arrays": (*before.arrays, *sent)})
    writer = RunWriter(prepared, wanted[0], sent, now=now)

    def fill(root: Path) -> list[Path]:
        writer.write(root, wanted)
        write_arrays(arrays, prepared.folder, root)
        sweep_record.write(SweepPaths(root))
        return writer.written

    def undo() -> None:
        for leftover in [*(a.folder for a in arrays), *(paths.point(p.index) for p in new)]:
            whole_folder.remove(leftover)
        before.write(paths)

    return _send(prepared, sweep_record, arrays, fill, undo=undo, again=True)


def _require(prepared: PreparedSweep, arrays: Iterable[Array], after: After) -> None:
    """Check images and cluster, once for each image, and ask Slurm about every array before anything is written."""
    first = prepared.first
    if prepared.sweep.search:
        search_requirements.require_kit_on_nodes(first.host)
    places = {kind.image: place for place, kind in enumerate(prepared.kinds)}.values()
    one_run.require_ready(*(prepared.runs[place] for place in places))
    for array in arrays:
        client.test_only(array.text, env=first.env, options=after.get(array.number, ()))
    one_run.keep_code(first)


def _send(
    prepared: PreparedSweep,
    sweep_record: SweepRecord,
    arrays: Sequence[Array],
    fill: Callable[[Path], Sequence[Path]],
    *,
    undo: Callable[[], None],
    again: bool = False,
) -> SweepRecord:
    sweep = NewArrays(
        folder=prepared.folder,
        again=again,
        fill=fill,
        arrays=[
            NewArray(
                number=array.number,
                argv=sent.argv,
                text=array.text,
                note=SweepPaths.submission(array.folder),
            )
            for array, sent in zip(arrays, sweep_record.arrays[-len(arrays) :], strict=True)
        ],
        env=prepared.first.env,
        note=lambda jobs: record.note_jobs(sweep_record.with_jobs(jobs), jobs, prepared.folder),
        undo=undo,
    )
    return sweep_record.with_jobs(prepared.first.host.submit_arrays(sweep))


class RunWriter:
    """Writes the run folders of one submission. Shared facts are gathered once, and equal files are hard links.

    arrays: that run the points. written: the run folders so far.
    """

    def __init__(
        self, prepared: PreparedSweep, first_point: Point, arrays: Iterable[SentArray], *, now: datetime
    ) -> None:
        self._prepared = prepared
        self._tasks = {
            index: {"array_task": task, "argv": array.argv}
            for array in arrays
            for task, index in enumerate(array.members)
        }
        first = prepared.planned(first_point)
        job = first.resolved.job
        self.secrets = secret.gather(job, job_dir=first.resolved.job_dir, job_file=first.resolved.job_file)
        self.written: list[Path] = []
        self._patch = workspace.patch(first.scan)
        self._origin = manifest.origin(
            job_file=prepared.job_file,
            user=getpass.getuser(),
            now=now,
            slurm_version=client.version(env=first.env),
            workspace=workspace.record(first.scan, first.resolved, patch=bool(self._patch)),
        )
        self._like: Like | None = None

    def manifest_of(self, plan: Plan, facts: Mapping[str, object]) -> Manifest:
        """The manifest of a plan, with these fields."""
        return manifest.of_plan(plan, self._origin).model_copy(update=facts)

    def write(self, root: Path, points: Iterable[Point]) -> None:
        """Write the points' run folders under `root`: the sweep's folder, its temporary name, or a copy that is sent."""
        for point in points:
            run = self._prepared.planned(point)
            into = root / run.plan.run_dir.relative_to(self._prepared.folder)
            facts = {"point": dict(point.values), **self._tasks.get(point.index, {})}
            self._fill(run, into, self.manifest_of(run.plan, facts))

    def write_template(self, template: Template, into: Path) -> None:
        """Write the run folder of a template."""
        self._fill(template.prepared, into, template.manifest)

    def _fill(self, run: Prepared, into: Path, made: Manifest) -> None:
        into.mkdir(parents=True, exist_ok=True)
        secret.remove(into)
        folder.fill(into, run.plan, made, secrets=self.secrets, like=self._like, durable=False, patch=self._patch)
        self._like = self._like or Like(run.plan, into)
        self.written.append(into)


def write_arrays(arrays: Sequence[Array], final: Path, root: Path) -> None:
    """Write each array's script. Each task gets a link to its point, unless the array has a list of points instead."""
    for array in arrays:
        into = root / array.folder.relative_to(final)
        into.mkdir(parents=True, exist_ok=True)
        script = into / array.script.name
        script.write_text(array.text, encoding="utf-8")
        script.chmod(0o755)
        if unmade_points.lines(str(into)):
            continue
        for task, index in enumerate(array.members):
            (into / str(task)).symlink_to(Path("../..") / SweepPaths(final).point(index).relative_to(final))


def _sent(arrays: Iterable[Array], after: After) -> tuple[SentArray, ...]:
    """The arrays as the record has them before they are submitted."""
    return tuple(
        SentArray(
            number=array.number,
            job_id=record.NO_JOB,
            members=array.members,
            argv=("sbatch", "--parsable", *after.get(array.number, ()), str(array.script)),
        )
        for array in arrays
    )


def new_record(prepared: PreparedSweep, *, arrays: tuple[SentArray, ...], now: datetime) -> SweepRecord:
    """The record of a new sweep."""
    return SweepRecord(
        sweep_id=prepared.folder.name,
        job_name=prepared.job_name,
        job_file=str(prepared.job_file.resolve()),
        cluster=prepared.first.plan.cluster,
        seed=prepared.first.site.seed,
        submitted_at=now,
        metric=prepared.sweep.metric,
        goal=prepared.sweep.best_is,
        points=tuple(map(_recorded, prepared.points)),
        arrays=arrays,
        search=prepared.sweep if prepared.sweep.search else None,
    )


def _recorded(point: Point) -> RecordedPoint:
    return RecordedPoint(index=point.index, name=point.name, values=dict(point.values))
