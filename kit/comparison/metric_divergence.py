"""Compares the reported numbers of two runs, step by step: the first step at which they differ, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple

from kit.schema.comparison import MetricsDifference, Parting, ValueDifference

# Names of kit/schema/metrics.py that are not compared: rates depend on the machine's load, others identify a record.
RATES = ("tokens_per_second", "images_per_second", "mfu")
_NOT_COMPARED = frozenset({*RATES, "step", "restart", "replica", "rank", "seconds", "memory_bytes", "built_bytes"})
# Records that repeat other records, or describe the program's start.
_NOT_OF_STEPS = frozenset({"start", "saved", "resumed", "stopped", "changed"})


class Reporter(NamedTuple):
    """A metric and its reporter. rank and replica are None if the records name none."""

    metric: str
    replica: int | None
    rank: int | None


# Step -> value. If a step was repeated after a restart, the last value counts.
Series = dict[int, float]


def series(records: Iterable[Mapping[str, Any]]) -> dict[Reporter, Series]:
    """Group the numbers of a run's records by reporter and metric.

    Values that are not numbers and records without a step are skipped.
    """
    numbers: dict[Reporter, Series] = {}
    for record in records:
        step, replica, rank = (_whole(record.get(name)) for name in ("step", "replica", "rank"))
        if step is None or record.get("kind") in _NOT_OF_STEPS:
            continue
        for name, value in record.items():
            if name not in _NOT_COMPARED and isinstance(value, int | float) and not isinstance(value, bool):
                numbers.setdefault(Reporter(name, replica, rank), {})[step] = float(value)
    return numbers


def between(a: Iterable[Mapping[str, Any]], b: Iterable[Mapping[str, Any]]) -> MetricsDifference:
    """The differences between the records of two runs.

    For each metric it names the reporter that differed first; of several, the lowest rank.
    """
    a, b = list(a), list(b)
    first, second = series(a), series(b)
    partings: dict[str, Parting] = {}
    compared, parted = set[int](), set[str]()
    for source in sorted(first.keys() & second.keys(), key=_reporter):
        common = sorted(first[source].keys() & second[source].keys())
        compared.update(common)
        found = _parting(source, first[source], second[source], common)
        if found is not None:
            parted.add(source.metric)
            known = partings.get(source.metric)
            if known is None or found.step < known.step:
                partings[source.metric] = found
    names_a, names_b = {one.metric for one in first}, {one.metric for one in second}
    return MetricsDifference(
        compared=len(compared),
        last_a=_last(first),
        last_b=_last(second),
        parted=tuple(sorted(partings.values(), key=lambda one: (_weight(one.metric), one.step, one.metric))),
        equal=tuple(sorted((names_a & names_b) - parted, key=lambda name: (_weight(name), name))),
        only_a=tuple(sorted(names_a - names_b)),
        only_b=tuple(sorted(names_b - names_a)),
        speed=tuple(_speeds(a, b)),
    )


def start_facts(records: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The program's facts from its last start: device, precision, world size."""
    starts = [record for record in records if record.get("kind") == "start"]
    skipped = {"kind", "time", "restart", "schema", "replica", "rank", "built_bytes", "seed"}
    return {name: str(value) for name, value in starts[-1].items() if name not in skipped} if starts else {}


def _parting(source: Reporter, a: Series, b: Series, common: list[int]) -> Parting | None:
    for index, step in enumerate(common):
        if not _same(a[step], b[step]):
            last = common[-1]
            return Parting(
                metric=source.metric,
                rank=source.rank,
                replica=source.replica,
                step=step,
                a=a[step],
                b=b[step],
                by=b[step] - a[step],
                equal_steps=index,
                last_step=last,
                last_a=a[last],
                last_b=b[last],
            )
    return None


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _speeds(a: list[Mapping[str, Any]], b: list[Mapping[str, Any]]) -> Iterable[ValueDifference]:
    for name in RATES:
        values = [[r[name] for r in records if isinstance(r.get(name), int | float)] for records in (a, b)]
        if all(values):
            x, y = (median(one) for one in values)
            if x != y:
                yield ValueDifference(name=name, a=f"{x:.6g}", b=f"{y:.6g}")


def _last(found: Mapping[Reporter, Series]) -> int | None:
    return max((max(one) for one in found.values()), default=None)


def _reporter(one: Reporter) -> tuple[str, int, int]:
    return one.metric, -1 if one.replica is None else one.replica, -1 if one.rank is None else one.rank


def _weight(metric: str) -> int:
    """Sort key: losses first, since the other metrics follow from them; the training loss before a validation loss."""
    return 0 if metric == "loss" else 1 if "loss" in metric else 2


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
