"""Writes a sweep's folder and submits its arrays, one sbatch for each. If one is refused, nothing is left behind."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from kit.errors import SlurmError, UnconfirmedError
from kit.files import atomic_write, hold_signals
from kit.hosts import link_py_spy, output_folders, submission, whole_folder
from kit.hosts.ssh import SshHost
from kit.planning.plan import Plan
from kit.record import manifest, secret, unmade_points
from kit.record.manifest import Manifest
from kit.record.unmade_points import MADE, ArrayPaths
from kit.schema.run_paths import RunPaths
from kit.slurm import client
from kit.submission import folder, workspace
from kit.submission import submit as one_run
from kit.submission.folder import Like
from kit.submission.prepare_run import Prepared
from kit.sweeps import lost_arrays, point_templates
from kit.sweeps.arrays import Array
from kit.sweeps.point_templates import Template
from kit.sweeps.points.expand import Point
from kit.sweeps.prepare import PreparedSweep
from kit.sweeps.record import RecordedPoint, SentArray, SweepPaths, SweepRecord

# Array number -> more options of sbatch, for the jobs that it waits for.
After = Mapping[int, Sequence[str]]


def submit(prepared: PreparedSweep, *, after: After | None = None, now: datetime | None = None) -> SweepRecord:
    """Write the sweep's folder and submit all its arrays."""
    after = after or {}
    now = now or datetime.now(UTC)
    arrays = prepared.arrays()
    require_ready(prepared)
    if isinstance(prepared.first.host, SshHost):
        from kit.sweeps import submit_over_ssh

        return submit_over_ssh.submit(prepared, prepared.first.host, arrays, after=after, now=now)
    ask(arrays, prepared.first.env, after)
    with whole_folder.make_whole(prepared.folder) as partial:
        at = SweepPaths(partial)
        at.points.mkdir()
        writer = _RunWriter(prepared, partial, prepared.points[0], now=now)
        # A point of a search gets its values from the kit before it starts. Files with secrets are removed with their run.
        plain = not prepared.sweep.search and not writer.secrets
        templates = point_templates.find(prepared, arrays, after, writer.manifest_of) if plain else ()
        arrays = point_templates.changed(arrays, templates)
        later = {index for one in templates for index in one.words}
        point_templates.write(templates, arrays, partial, prepared.folder, fill=writer.write_template)
        writer.write(point for point in prepared.points if point.index not in later)
        write_arrays(arrays, prepared.folder, partial)
        unsent = unsent_record(prepared, now=now)
        unsent.write(at)
    sent: list[SentArray] = []
    try:
        _send(arrays, prepared.first.env, after, sent)
    except UnconfirmedError:
        # The sweep stays. Whether Slurm has the array is found out by its script (lost_arrays.py).
        note(unsent.model_copy(update={"arrays": tuple(sent)}), sent, prepared.folder)
        raise
    except BaseException:
        whole_folder.remove(prepared.folder)
        raise
    record = unsent.model_copy(update={"arrays": tuple(sent)})
    note(record, sent, prepared.folder)
    return record


def resubmit(
    prepared: PreparedSweep, record: SweepRecord, points: Sequence[int], *, now: datetime | None = None
) -> SweepRecord:
    """Submit these points of a sweep in its own folder, again or for the first time. Their earlier output stays."""
    now = now or datetime.now(UTC)
    paths = SweepPaths(prepared.folder)
    # An array without an answer of sbatch is in no record.
    numbers = (*(a.number for a in record.arrays), *lost_arrays.arrays(paths, record))
    arrays = prepared.arrays(points, first=max(numbers, default=-1) + 1)
    again = set(points)
    wanted = [p for p in prepared.points if p.index in again]
    require_ready(prepared)
    if isinstance(prepared.first.host, SshHost):
        from kit.sweeps import submit_over_ssh

        return submit_over_ssh.resubmit(prepared, prepared.first.host, record, arrays, wanted, now=now)
    ask(arrays, prepared.first.env, {})
    known = {p.index for p in record.points}
    new = [p for p in wanted if p.index not in known]
    points_now = (*record.points, *map(recorded, sorted(new, key=lambda p: p.index)))
    sent: list[SentArray] = []
    try:
        write_runs(prepared, wanted, prepared.folder, now=now)
        write_arrays(arrays, prepared.folder, prepared.folder)
        _send(arrays, prepared.first.env, {}, sent)
    except UnconfirmedError:
        note(record.model_copy(update={"points": points_now, "arrays": (*record.arrays, *sent)}), sent, prepared.folder)
        raise
    except BaseException:
        for leftover in [*(a.folder for a in arrays), *(paths.point(p.index) for p in new)]:
            whole_folder.remove(leftover)
        raise
    record = record.model_copy(update={"points": points_now, "arrays": (*record.arrays, *sent)})
    note(record, sent, prepared.folder)
    return record


def require_ready(prepared: PreparedSweep) -> None:
    """Check images and cluster, once for each image."""
    places = {kind.image: place for place, kind in enumerate(prepared.kinds)}.values()
    one_run.require_ready(*(prepared.runs[place] for place in places))


def ask(arrays: Iterable[Array], env: dict[str, str], after: After) -> None:
    """Ask Slurm about every array before anything is written."""
    for array in arrays:
        client.test_only(array.text, env=env, options=after.get(array.number, ()))


def write_runs(
    prepared: PreparedSweep,
    points: Sequence[Point],
    root: Path,
    *,
    now: datetime,
    facts: Mapping[int, Mapping[str, object]] | None = None,
) -> None:
    """Write the points' run folders under `root`, the sweep's folder or its temporary name.

    facts: more fields for a point's manifest, by its number, for a folder that is sent elsewhere.
    """
    _RunWriter(prepared, root, points[0], now=now, facts=facts).write(points)


class _RunWriter:
    """Writes the run folders of one submission. Shared facts are gathered once, and equal files are hard links."""

    def __init__(
        self,
        prepared: PreparedSweep,
        root: Path,
        first_point: Point,
        *,
        now: datetime,
        facts: Mapping[int, Mapping[str, object]] | None = None,
    ) -> None:
        self._prepared, self._root, self._facts = prepared, root, facts
        first = prepared.planned(first_point)
        job = first.resolved.job
        self.secrets = secret.gather(job, job_dir=first.resolved.job_dir, job_file=first.resolved.job_file)
        self._patch = workspace.patch(first.scan)
        self._origin = manifest.origin(
            job_file=prepared.job_file,
            user=getpass.getuser(),
            now=now,
            slurm_version=client.version(env=first.env),
            workspace=workspace.record(first.scan, first.resolved, patch=bool(self._patch)),
        )
        if facts is None:
            workspace.keep(first.scan, first.plan)
        self._like: Like | None = None

    def manifest_of(self, plan: Plan, facts: Mapping[str, object]) -> Manifest:
        """The manifest of a plan, with these fields."""
        return manifest.of_plan(plan, self._origin).model_copy(update=facts)

    def write(self, points: Iterable[Point]) -> None:
        """Write the points' run folders."""
        for point in points:
            run = self._prepared.planned(point)
            into = self._root / run.plan.run_dir.relative_to(self._prepared.folder)
            facts = (self._facts or {}).get(point.index, {})
            self._fill(run, into, self.manifest_of(run.plan, {"point": dict(point.values), **facts}))

    def write_template(self, template: Template, into: Path) -> None:
        """Write the run folder of a template."""
        self._fill(template.prepared, into, template.manifest)

    def _fill(self, run: Prepared, into: Path, record: Manifest) -> None:
        into.mkdir(parents=True, exist_ok=True)
        secret.remove(into)
        folder.fill(into, run.plan, record, secrets=self.secrets, like=self._like, durable=False, patch=self._patch)
        if self._facts is None:
            link_py_spy.link(into, self._prepared.folder.parent)
        self._like = self._like or Like(run.plan, into)


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


def _send(arrays: Sequence[Array], env: dict[str, str], after: After, sent: list[SentArray]) -> None:
    """Run one sbatch for each array, and add it to `sent`. When one is refused, those before it are cancelled.

    UnconfirmedError if it is not known whether Slurm has taken an array: those before it stay, those after it are not submitted.
    """
    try:
        with output_folders.folders(array.text for array in arrays):
            for array in arrays:
                argv = ("sbatch", "--parsable", *after.get(array.number, ()), str(array.script))
                note = SweepPaths.submission(array.folder)
                # A Ctrl-C is delayed until the array is in the list, and then cancels it with the others.
                with hold_signals.uninterrupted():
                    job_id = submission.submit(argv, env=env, note=note)
                    sent.append(SentArray(number=array.number, job_id=job_id, members=array.members, argv=argv))
                    submission.confirmed(note)
    except UnconfirmedError:
        raise
    except BaseException:
        for earlier in sent:
            with contextlib.suppress(SlurmError):
                client.cancel(earlier.job_id, env=env)
        raise


def note(record: SweepRecord, sent: Iterable[SentArray], root: Path) -> None:
    """Record the arrays' job numbers in the sweep's record and in the manifest of each point that has a run folder."""
    paths = SweepPaths(root)
    record.write(paths)
    for array in sent:
        folder_of = paths.arrays / str(array.number)
        listed = unmade_points.lines(str(folder_of))
        if listed:
            atomic_write.write(Path(ArrayPaths(folder_of).job), f"{array.job_id}\n")
        for task, index in enumerate(array.members):
            if listed and listed[task][1] != MADE:
                continue
            path = RunPaths(paths.point(index)).manifest
            facts = {"job_id": array.job_id, "array_task": task, "argv": array.argv}
            made: Manifest = manifest.read(path).model_copy(update=facts)
            made.write(path, durable=False)


def unsent_record(prepared: PreparedSweep, *, now: datetime) -> SweepRecord:
    return SweepRecord(
        sweep_id=prepared.folder.name,
        job_name=prepared.job_name,
        job_file=str(prepared.job_file.resolve()),
        cluster=prepared.first.plan.cluster,
        seed=prepared.first.site.seed,
        submitted_at=now,
        metric=prepared.sweep.metric,
        goal=prepared.sweep.best_is,
        points=tuple(map(recorded, prepared.points)),
        arrays=(),
        search=prepared.sweep if prepared.sweep.search else None,
    )


def recorded(point: Point) -> RecordedPoint:
    return RecordedPoint(index=point.index, name=point.name, values=dict(point.values))
