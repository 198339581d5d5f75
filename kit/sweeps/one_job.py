"""One job of a job file with a `[sweep]`: one of its points, or the job without the sweep. Each becomes a run of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kit import config
from kit.config import Resolved, Sources, program_arguments
from kit.errors import ConfigError, UsageError
from kit.schema.sweep import Sweep
from kit.submission import prepare_run
from kit.submission.prepare_run import Prepared
from kit.sweeps.points.expand import Point, expand
from kit.sweeps.points.grouped_faults import clash, of_points
from kit.sweeps.points.point_keys import clashes, job_keys, words_clash
from kit.sweeps.points.table_lookup import Tables

# The number of a point, as `kit sweep --dry-run` shows it, or the job without the sweep.
Part = int | Literal["base"]


def prepare_point(
    job_file: Path,
    part: Part,
    *,
    cluster: str | None,
    overrides: Sequence[str] = (),
    containers: bool = True,
    debug: bool = False,
) -> Prepared:
    """Plan one point of a sweep, or its base. UsageError if the job has no sweep, or the sweep no such point."""
    sources = config.read_job(job_file, cluster=cluster, overrides=overrides)
    base = sources.resolve()
    if base.job.sweep is None:
        raise UsageError(
            f"{base.job_file}: it has no [sweep], so it has no points and no base", hint=f"kit submit {job_file}"
        )
    one = base if part == "base" else _point(sources, base, base.job.sweep, part)
    return prepare_run.prepare_single(
        replace(one, job=one.job.model_copy(update={"sweep": None})), job_file, containers=containers, debug=debug
    )


def _point(sources: Sources, base: Resolved, sweep: Sweep, number: int) -> Resolved:
    """The job of a point."""
    if sweep.search is not None:
        raise UsageError(
            f"{base.job_file}: the search chooses the values of a point when it starts",
            hint="--base submits the job without the sweep; --set gives it values",
        )
    expansion = expand(sweep, base=sources.merged(), tables=Tables(base.project), file=base.job_file)
    if number >= len(expansion.points):
        raise UsageError(
            f"{base.job_file}: its sweep has no point {number}: the last is {len(expansion.points) - 1}",
            hint="'kit sweep --dry-run' shows the points with their numbers",
        )
    point = expansion.points[number]
    _require_free(point, sources, base.job_file)
    label = f"{of_points(base.job_file)} point {number}"
    return sources.resolve(job_keys(point, sources.merged().get("args", [])), label=label)


def _require_free(point: Point, sources: Sources, file: str) -> None:
    """ConfigError if the command line sets a key that the point sets too."""
    faults = [clash(key, file) for key in clashes(point, sources.set_here)]
    faults += [clash(key, file, program_arguments.PLACE) for key in words_clash(point, sources.words)]
    if faults:
        raise ConfigError.of(*faults)
