"""kit bisect."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli import completion_candidates
from kit.cli.json_options import Json
from kit.cli.print_json import print_json
from kit.cli.runs import RunsDir, folders
from kit.files.safe_text import clean

if TYPE_CHECKING:
    from kit.bisection.bisect import Bisection, Result
    from kit.bisection.judge import Criterion, Ended

_HELP = "Run folder, run id, the first characters of a run id, or Slurm job id."
# Up to this many changes are all listed before the first round.
_SHOWN = 12


class Over(StrEnum):
    """The kinds of changes."""

    CODE = "code"
    KEYS = "keys"
    IMAGE = "image"
    NODES = "nodes"


Good = Annotated[
    str, typer.Argument(metavar="GOOD", help=_HELP, show_default=False, autocompletion=completion_candidates.runs)
]
Bad = Annotated[
    str, typer.Argument(metavar="BAD", help=_HELP, show_default=False, autocompletion=completion_candidates.runs)
]
Metric = Annotated[
    str | None,
    typer.Option("--metric", "-m", help="Judge each run by its last value of this metric.", show_default=False),
]
WorseThan = Annotated[
    float | None,
    typer.Option(
        "--worse-than",
        metavar="X",
        help="With --metric: a run is bad if its value is worse than this limit.",
        show_default="halfway between the values of GOOD and BAD",
    ),
]
ExitCode = Annotated[bool, typer.Option("--exit-code", help="A run is bad if its exit code is not 0.")]
Check = Annotated[
    Path | None,
    typer.Option(
        "--check",
        metavar="PROGRAM",
        help="Judge each run by the exit code of PROGRAM RUN_FOLDER. 0: good. 125: cannot tell. "
        "Any other code from 1 to 127: bad.",
        show_default=False,
    ),
]
OverOption = Annotated[
    list[Over] | None,
    typer.Option("--over", help="Search only changes of this kind; repeatable.", show_default="all kinds that differ"),
]
Points = Annotated[
    int,
    typer.Option(
        "--points",
        metavar="N",
        min=1,
        max=64,
        help="Number of runs that a round submits at once, not counting repetitions of GOOD and BAD.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the changes and the number of rounds. Nothing is submitted.")
]


def bisect(
    good: Good,
    bad: Bad,
    metric: Metric = None,
    worse_than: WorseThan = None,
    exit_code: ExitCode = False,
    check: Check = None,
    over: OverOption = None,
    points: Points = 1,
    dry_run: DryRun = False,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """Find the change that made a run bad. kit submits runs with some of the changes. A second call continues the search."""
    ends = (_ended(_here(good, runs_dir)), _ended(_here(bad, runs_dir)))
    _require_pair(*ends)
    by = _criterion(metric, worse_than, exit_code=exit_code, check=check, ends=ends)
    bisection = _begun(ends, by, over, width=points)
    _announce(bisection)
    if dry_run:
        return
    try:
        result = bisection.run(_say)
    except KeyboardInterrupt:
        _say("the runs of this round continue, and so does the bisection when you give the same command again")
        raise
    if as_json:
        print_json("bisect", result.model_dump(mode="json"))
    else:
        _show(result)


def _begun(ends: tuple[Ended, Ended], by: Criterion, over: list[Over] | None, *, width: int) -> Bisection:
    """The bisection between two runs, the good one first; one that was begun earlier continues."""
    from kit.bisection import bisect as bisecting
    from kit.bisection.changes import KINDS
    from kit.bisection.state_run import Pair
    from kit.submission import recorded_inputs

    good, bad = (end.status for end in ends)
    pair = Pair(
        good=recorded_inputs.read_inputs(good.run_dir),
        bad=recorded_inputs.read_inputs(bad.run_dir),
        good_nodes=bisecting.nodes_of(good),
        bad_nodes=bisecting.nodes_of(bad),
    )
    return bisecting.begin(
        pair, by, ends, over=[one.value for one in over] if over else KINDS, explain=_ended, width=width
    )


def _say(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)


def _here(name: str, runs_dir: Path | None) -> Path:
    from kit.hosts import clusters
    from kit.record import find_runs

    run_dir = find_runs.find_one(name, folders(runs_dir, name))
    clusters.require_here(run_dir, "'kit bisect'")
    return run_dir


def _ended(run_dir: Path) -> Ended:
    from kit.answers.explain_run import explain
    from kit.bisection.judge import Ended
    from kit.cli.wait_and_follow import queue
    from kit.hosts import from_accounting, other_jobs
    from kit.hosts import status as host_status

    (one,) = from_accounting.add(
        host_status.read_statuses([run_dir], queue=queue()), ask=other_jobs.ask_accounting(say=_say), every=True
    )
    return Ended(one, explain(one))


def _require_pair(good: Ended, bad: Ended) -> None:
    """RunError for two runs that cannot be the ends of a bisection."""
    from kit.errors import RunError

    for one in (good, bad):
        if one.status.active:
            name = one.status.run_dir.name
            raise RunError(f"run {name} is {one.status.state}: it has not ended", hint=f"kit logs -f {name}")
    clusters = [one.status.manifest.cluster for one in (good, bad)]
    if clusters[0] != clusters[1]:
        name = bad.status.run_dir.name
        problem = f"the runs are of two clusters, {clusters[0]} and {clusters[1]}, and a bisection has one"
        raise RunError(problem, hint=f"kit rerun {name} --cluster {clusters[0]}")


def _criterion(
    metric: str | None, worse_than: float | None, *, exit_code: bool, check: Path | None, ends: tuple[Ended, Ended]
) -> Criterion:
    """The criterion from the options; by default the exit codes, if they distinguish the runs."""
    from kit import shell
    from kit.bisection.judge import Criterion, by_metric
    from kit.errors import UsageError

    if sum([metric is not None, exit_code, check is not None]) > 1:
        raise UsageError("--metric, --exit-code and --check are three ways to tell good from bad: give one")
    if worse_than is not None and metric is None:
        raise UsageError("--worse-than works only together with --metric", hint="--metric test_loss --worse-than 2.5")
    if metric is not None:
        return by_metric(metric, worse_than, *ends)
    rule = ends[1].answer.rule
    if check is not None:
        program = shell.which(str(check))
        if program is None:
            raise UsageError(f"--check {check}: no such program", hint="a script with its x bit set: chmod +x check.sh")
        return Criterion(kind="check", check=str(Path(program).absolute()), rule=rule)
    if not exit_code and ends[0].status.exit_code == ends[1].status.exit_code:
        raise UsageError(
            "both runs ended with the same exit code: what makes a run bad?",
            hint="--metric test_loss, or --check PROGRAM",
        )
    return Criterion(kind="exit-code", rule=rule)


def _announce(bisection: Bisection) -> None:
    from kit.bisection import record, search

    known = record.read_bisection(bisection.folder)
    assert known is not None
    count = len(known.changes)
    rounds = search.most_rounds(count, bisection.width)
    begun = f", {known.rounds} begun" if known.rounds else ""
    _say(f"{bisection.folder.name}: {count} changes, at most {rounds} rounds{begun}")
    shown = known.changes if count <= _SHOWN else known.changes[: _SHOWN - 1]
    for place, one in enumerate(shown, 1):
        _say(f"  {place}  {one.text}")
    if len(shown) < count:
        _say(f"  ... and {count - len(shown)} more, the last: {known.changes[-1].text}")
    for line in known.left_out:
        _say(f"not tried: {line}")


def _show(result: Result) -> None:
    print(clean(result.conclusion))
    for word, point in (("good", result.good), ("bad", result.bad)):
        print(clean(f"  {word:<5} {Path(point.run_dir).name}: {point.said}"))
    print(f"  after {result.rounds} rounds, {result.runs} runs")
    for line in result.left_out:
        print(clean(f"  not tried: {line}"))
    print(f"  next  kit diff {Path(result.good.run_dir).name} {Path(result.bad.run_dir).name}")
