"""kit sweep: the points of a job, as a table and as Slurm arrays."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.job_options import AfterPoints, ClusterName, Containers, JobFile, Overrides
from kit.cli.print_json import print_json
from kit.cli.submit_messages import show_arguments, show_left_behind, show_warnings

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping

    from kit.sweeps.arrays import Array
    from kit.sweeps.prepare import PreparedSweep
    from kit.sweeps.record import SweepRecord

# A submit shows at most this many points; --dry-run shows all.
_SHOWN = 20


DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the points without submitting them.")]
Retry = Annotated[
    bool,
    typer.Option(
        "--retry", help="Submit the points that failed, that were never submitted, or that are new in the job file."
    ),
]
Of = Annotated[
    str | None,
    typer.Option(
        "--of",
        metavar="SWEEP",
        help="With --retry: the sweep to complete; default: the newest sweep of the job file.",
        autocompletion=completion_candidates.sweeps,
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until all points have ended. The exit code is 1 if a point failed.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the points and the arrays as JSON.")]


def sweep(
    job: JobFile = Path("job.toml"),
    cluster: ClusterName = None,
    containers: Containers = True,
    set_: Overrides = None,
    dry_run: DryRun = False,
    after: AfterPoints = None,
    retry: Retry = False,
    of: Of = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Submit all points of a job's sweep table. Points with the same sbatch options form one Slurm array."""
    from kit import config
    from kit.errors import UsageError
    from kit.sweeps import prepare
    from kit.sweeps import submit as sending

    if retry and after:
        raise UsageError("--after and --retry cannot be used together", hint="--after delays a new sweep")
    if of is not None and not retry:
        raise UsageError("--of works only together with --retry", hint="'kit sweep' without --of submits a new sweep")
    job_file = config.job_path(job)
    into = _recorded(job_file, of) if retry else None
    prepared = prepare.prepare_sweep(
        job_file,
        cluster=cluster or (into.cluster if into else None),
        overrides=list(set_ or []),
        containers=containers,
        into=into,
    )
    show_arguments([prepared.first])
    show_warnings([*prepared.kinds, prepared.first])
    todo = _to_send(prepared, into) if into else [point.index for point in prepared.points]
    arrays = prepared.arrays(todo, first=len(into.arrays) if into else 0)
    if not todo:
        print(f"{prepared.folder.name}: every point is done or on its way", file=sys.stderr)
    elif not as_json:
        _print_points(prepared, todo, to_stdout=dry_run)
        _explain(prepared, arrays)
    if dry_run:
        if as_json:
            print_json("sweep", _facts(prepared, todo, arrays, None))
        return
    record = into
    if todo:
        show_left_behind([prepared.first])
        waits = _after(after or [], arrays, job_file, prepared.first.env)
        record = sending.resubmit(prepared, into, todo) if into else sending.submit(prepared, after=waits)
    if as_json:
        print_json("sweep", _facts(prepared, todo, arrays, record))
    else:
        print(prepared.at)
    if wait and record:
        prepared.first.host.refresh()
        wait_sweep(prepared.at)


def wait_sweep(folder: Path) -> None:
    """Wait for all points; RunFailed when one of them did not end with 0."""
    from kit.cli.wait_and_follow import goes_on, queue
    from kit.errors import RunFailed
    from kit.sweeps import wait
    from kit.sweeps.points.key_names import ranges

    seen: list[str] = []

    def on_poll(count: Counter[str]) -> None:
        line = ", ".join(f"{number} {state}" for state, number in sorted(count.items()))
        if line not in seen[-1:]:
            seen.append(line)
            print(line, file=sys.stderr)

    with goes_on(folder.name, noun="sweep"):
        failed = wait.wait(folder, queue=queue(), on_poll=on_poll)
    if failed:
        raise RunFailed(
            f"{len(failed)} points failed: {ranges(failed)}",
            exit_code=1,
            hint=f"'kit logs {folder.name}.{failed[0]}' shows one; 'kit sweep --retry' runs them again",
        )


def _after(texts: list[str], arrays: tuple[Array, ...], job_file: Path, env: Mapping[str, str]) -> dict[int, list[str]]:
    """sbatch's options of each array, for the jobs that it waits for."""
    from kit.cli.wait_and_follow import queue
    from kit.errors import UsageError
    from kit.workflow import dependencies

    folders = _folders(job_file)
    afters = [dependencies.parse(text) for text in texts]
    corr = [one for one in afters if one.kind == "corr"]
    if corr and len(afters) > 1:
        raise UsageError(
            "--after SWEEP:corr cannot be used with a second --after",
            hint="give the second --after to SWEEP when it is submitted",
        )
    if corr:
        return dependencies.pairs(corr[0], arrays, folders)
    options = dependencies.options(afters, folders, queue=queue(), env=env)
    return {array.number: options for array in arrays}


def _folders(job_file: Path) -> list[Path]:
    from kit import data_folders
    from kit.cli.runs import warn
    from kit.record import find_runs
    from kit.submission import catch_up

    project = data_folders.project(job_file.resolve().parent)
    for problem in catch_up.refresh(project).values():
        warn(problem)
    return find_runs.folders(project)


def _recorded(job_file: Path, name: str | None) -> SweepRecord:
    from kit.sweeps import find, record

    return record.read_sweep(find.find_one(name, _folders(job_file), job_file=job_file))


def _to_send(prepared: PreparedSweep, into: SweepRecord) -> list[int]:
    """The points to submit, again or for the first time. Points that are left out are reported."""
    from kit.cli.wait_and_follow import queue
    from kit.sweeps import find
    from kit.sweeps.points.key_names import ranges

    again = find.to_retry(find.states(prepared.at, into, queue=queue()))
    known = {point.index for point in into.points}
    here = [point.index for point in prepared.points]
    gone = sorted({*again}.difference(here))
    if gone:
        print(f"left alone: points {ranges(gone)} have failed and are not in the file any more", file=sys.stderr)
    return [index for index in here if index in again or index not in known]


def _print_points(prepared: PreparedSweep, todo: list[int], *, to_stdout: bool) -> None:
    from kit.cli.print_table import Column, show
    from kit.sweeps.points.key_names import short_names

    keys = list(dict.fromkeys(key for point in prepared.points for key in point.values))
    short = short_names(keys)
    named = any(point.name for point in prepared.points)
    columns = [
        Column("point"),
        *([Column("name")] if named else []),
        *(Column(short[key], 1) for key in keys),
        Column("nodes", 2),
        Column("ranks", 3),
    ]
    rows = _Rows(prepared, todo, keys, named=named)
    show(
        columns,
        rows if to_stdout else [*itertools.islice(rows, _SHOWN)],
        stream=sys.stdout if to_stdout else sys.stderr,
    )
    if not to_stdout and len(rows) > _SHOWN:
        print(f"… and {len(rows) - _SHOWN} more; --dry-run shows all", file=sys.stderr)


class _Rows(Collection[Sequence[object]]):
    """The table's rows, each made when it is printed: there may be 100,000."""

    def __init__(self, made: PreparedSweep, todo: Collection[int], keys: Sequence[str], *, named: bool) -> None:
        wanted = set(todo)
        self._keys, self._named = keys, named
        self._pairs = [pair for pair in zip(made.points, made.kinds, strict=True) if pair[0].index in wanted]
        self._pairs.sort(key=lambda pair: pair[0].index)

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Sequence[object]]:
        from kit.sweeps.points.key_names import shown

        for point, kind in self._pairs:
            values = (shown(point.values[key]) if key in point.values else "" for key in self._keys)
            yield [point.index, *([point.name] if self._named else []), *values, kind.nodes, kind.ranks]

    def __contains__(self, row: object) -> bool:
        return any(row == one for one in self)


def _explain(prepared: PreparedSweep, arrays: tuple[Array, ...]) -> None:
    from kit.sweeps.points.key_names import ranges

    left_out = prepared.expansion.duplicates
    for point, first in left_out[:_SHOWN]:
        print(f"left out: {point.label}: the same job as point {first.index}", file=sys.stderr)
    if len(left_out) > _SHOWN:
        print(f"… and {len(left_out) - _SHOWN} more duplicates", file=sys.stderr)
    if prepared.expansion.refused:
        print(f"left out: {prepared.expansion.refused} points by sweep.when", file=sys.stderr)
    for array in arrays:
        print(f"array {array.number}: points {ranges(array.members)}", file=sys.stderr)


def _facts(
    prepared: PreparedSweep, todo: list[int], arrays: tuple[Array, ...], record: SweepRecord | None
) -> dict[str, object]:
    from kit.sweeps.record import SweepPaths

    sent = {array.number: array.job_id for array in record.arrays} if record else {}
    wanted, paths = set(todo), SweepPaths(prepared.at)
    return {
        "sweep": prepared.folder.name,
        "folder": str(prepared.at),
        "points": [
            {"index": p.index, "name": p.name, "values": dict(p.values), "run_dir": str(paths.point(p.index))}
            for p in prepared.points
            if p.index in wanted
        ],
        "arrays": [
            {"number": a.number, "job_id": sent.get(a.number), "points": a.members, "script": str(a.script)}
            for a in arrays
        ],
        "duplicates": [
            {"values": dict(p.values), "same_as": first.index} for p, first in prepared.expansion.duplicates
        ],
        "refused": prepared.expansion.refused,
    }
