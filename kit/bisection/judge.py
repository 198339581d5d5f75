"""Judges a run as good, bad or untestable: by its exit code, by a metric, or by the user's program."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from kit import shell
from kit.bisection.search import Verdict
from kit.errors import RunError, UsageError
from kit.health.answer import ADMIN, AGAIN, NODE, NOTHING, WAIT
from kit.record import metrics
from kit.schema.schema_base import Model

if TYPE_CHECKING:
    from kit.health.answer import Answer
    from kit.hosts.status import Status

# git-bisect(1), "Bisect run": 125 means untestable, 1 to 127 bad; any other code ends the bisection.
_SKIP, _MOST_BAD = 125, 127
# These ends say nothing about the code, unless the bad run ended in the same way. NOTHING: somebody cancelled the run.
_OUTSIDE = frozenset({AGAIN, NODE, ADMIN, WAIT, NOTHING})


class Criterion(Model):
    """The criterion for a bad run. worse_than: limit of the metric; null: no number is bad, only NaN."""

    kind: Literal["exit-code", "metric", "check"]
    metric: str = ""
    worse_than: float | None = None
    larger_is_worse: bool = True
    check: str = Field(default="", description="A program: it is given the run folder.")
    rule: str = Field(default="", description="Of `kit why`: how the bad run ended.")


class Judged(NamedTuple):
    """A verdict on a run. said: its reason, such as 'test_loss 2.31'."""

    verdict: Verdict
    said: str


class Ended(NamedTuple):
    """A run that has ended, and the answer of `kit why`."""

    status: Status
    answer: Answer


def judge(by: Criterion, ended: Ended) -> Judged:
    """Judge a run that has ended. RunError if the user's program ends with a code that has no meaning."""
    if by.kind == "check":
        return _checked(by.check, ended.status.run_dir)
    code = ended.status.exit_code
    outcome = f"exit code {'unknown' if code is None else code} ({ended.answer.line})"
    well = ended.status.state == "COMPLETED" and not code
    outside = not well and ended.answer.verdict in _OUTSIDE and ended.answer.rule != by.rule
    if by.kind == "exit-code":
        if well:
            return Judged("good", "exit code 0")
        return Judged("untestable" if code is None or outside else "bad", outcome)
    value = value_of(ended.status.run_dir, by.metric)
    if value is None:
        return Judged("untestable", f"no {by.metric}; {outcome}")
    # The value of a run that was ended early may be one of its first steps, when a good run is no better. But NaN stays NaN.
    if _is_worse(by, value) and (math.isnan(value) or not outside):
        return Judged("bad", f"{by.metric} {value:.9g}")
    return (
        Judged("good", f"{by.metric} {value:.9g}")
        if well
        else Judged("untestable", f"{by.metric} {value:.9g}; {outcome}")
    )


def value_of(run_dir: Path, metric: str) -> float | None:
    """The last value of a metric in a run's records; None if there is none."""
    found = [r[metric] for r in metrics.records(run_dir) if isinstance(r.get(metric), int | float)]
    return float(found[-1]) if found else None


def by_metric(metric: str, worse_than: float | None, good: Ended, bad: Ended) -> Criterion:
    """A criterion that judges one run good and the other bad. worse_than: None for the middle between the two values.

    UsageError if there is no such criterion.
    """
    values = [value_of(run.status.run_dir, metric) for run in (good, bad)]
    for run, value in zip((good, bad), values, strict=True):
        if value is None:
            known = sorted(
                {name for r in metrics.records(run.status.run_dir) for name, v in r.items() if isinstance(v, float)}
            )
            raise UsageError(
                f"--metric {metric}: run {run.status.run_dir.name} has not reported it",
                hint=f"it has reported {', '.join(known) or 'nothing'}",
            )
    x, y = (value if value is not None else math.nan for value in values)
    between = None if math.isnan(y) else (x + y) / 2
    by = Criterion(
        kind="metric",
        metric=metric,
        worse_than=between if worse_than is None else worse_than,
        larger_is_worse=math.isnan(y) or y > x,
        rule=bad.answer.rule,
    )
    if x == y or _is_worse(by, x) or not _is_worse(by, y):
        limit = f" --worse-than {worse_than:g}" if worse_than is not None else ""
        raise UsageError(
            f"--metric {metric}{limit}: it does not tell the good run ({x:.9g}) from the bad one ({y:.9g})",
            hint="name another metric, or a limit between the two",
        )
    return by


def _is_worse(by: Criterion, value: float) -> bool:
    if math.isnan(value) or by.worse_than is None:
        return math.isnan(value)
    return value > by.worse_than if by.larger_is_worse else value < by.worse_than


def _checked(program: str, run_dir: Path) -> Judged:
    done = shell.run([program, str(run_dir)], check=False)
    code, last = done.returncode, (done.stdout.splitlines() or done.stderr.splitlines() or [""])[-1].strip()
    said = f"{Path(program).name} ended with {code}{f' ({last})' if last else ''}"
    if code == 0:
        return Judged("good", said)
    if 0 < code <= _MOST_BAD:
        return Judged("untestable" if code == _SKIP else "bad", said)
    raise RunError(
        f"{program} {run_dir}: ended with exit code {code}, which --check does not know: 0 is good, 1 to 127 bad, 125 cannot tell",
        hint="fix the program and repeat the command: finished runs are kept",
    )
