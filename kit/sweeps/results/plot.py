"""Plots a metric against a swept key, as PNG, SVG, or one self-contained HTML file."""

from __future__ import annotations

import html
import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import RunError, ToolError, UsageError
from kit.schema.sweep import Value
from kit.sweeps.points.key_names import short_names, shown
from kit.sweeps.results.results import PointResult, Results

# Points that differ only in this key are repetitions of one setting: a line goes through their mean.
_REPETITION = "seed"
_FORMATS = (".png", ".svg", ".html")
# Values that span more than two decades always get a log axis.
_DECADES = 100.0
# Up to this many values of x get a tick each.
_TICKS = 8


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line: its label, its dots, and the mean of the dots at each x."""

    label: str
    dots: tuple[tuple[float, float], ...]

    @property
    def line(self) -> list[tuple[float, float]]:
        """The mean of y at each x, in order."""
        found: dict[float, list[float]] = {}
        for x, y in self.dots:
            found.setdefault(x, []).append(y)
        return [(x, sum(ys) / len(ys)) for x, ys in sorted(found.items())]


def draw(results: Results, path: Path, *, x: str | None = None) -> None:
    """Write the plot to `path`, whose suffix sets the format. x: a swept key; default: the first with several numbers."""
    if path.suffix not in _FORMATS:
        raise UsageError(
            f"{path}: the file name's ending is not a known format", hint=f"use one of {', '.join(_FORMATS)}"
        )
    if results.metric is None:
        raise UsageError(
            "there is no metric to plot", hint=f"--metric NAME: {', '.join(results.metrics) or 'none yet'}"
        )
    key = results.key(x) if x else _default_x(results)
    series = series_of(results, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    label = short_names(results.keys)[key]
    if path.suffix == ".html":
        page = _page(results, _figure(series, label, results.metric, "svg").decode())
        path.write_text(page, encoding="utf-8")
    else:
        path.write_bytes(_figure(series, label, results.metric, path.suffix[1:]))


def series_of(results: Results, key: str) -> list[Series]:
    """The dots of each setting of the other keys. RunError when no point has both numbers."""
    assert results.metric is not None
    varied = [k for k in results.keys if len({repr(row.values.get(k)) for row in results.rows}) > 1]
    others = [k for k in varied if k not in {key, _REPETITION}]
    short = short_names(results.keys)
    by_label: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(results.rows, key=lambda row: row.index):
        at, metric = row.values.get(key), row.metrics.get(results.metric)
        if _is_number(at) and metric is not None and math.isfinite(metric):
            by_label.setdefault(_label(row, others, short), []).append((float(at), metric))  # type: ignore[arg-type]
    if not by_label:
        raise RunError(f"no point has numbers for both {short[key]} and {results.metric}")
    return [Series(label=label, dots=tuple(dots)) for label, dots in by_label.items()]


def is_logarithmic(values: Sequence[float]) -> bool:
    """Whether a log axis suits the values: all are positive, and they span over two decades or have nearly equal ratios."""
    distinct = sorted(set(values))
    if len(distinct) < 3 or distinct[0] <= 0:
        return len(distinct) == 2 and distinct[0] > 0 and distinct[1] / distinct[0] >= _DECADES
    if distinct[-1] / distinct[0] >= _DECADES:
        return True
    return _unevenness([math.log(v) for v in distinct]) < _unevenness(distinct)


def _unevenness(values: Sequence[float]) -> float:
    """The spread of the steps between sorted values, divided by their mean: 0 for equal steps."""
    steps = [b - a for a, b in itertools.pairwise(values)]
    mean = sum(steps) / len(steps)
    return math.sqrt(sum((step - mean) ** 2 for step in steps) / len(steps)) / mean


def _default_x(results: Results) -> str:
    for key in results.keys:
        numbers = {row.values[key] for row in results.rows if _is_number(row.values.get(key))}
        if len(numbers) > 1 and key != _REPETITION:
            return key
    raise UsageError("no swept key has several numbers to plot against", hint="name one with --x")


def _is_number(value: Value | None) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _label(row: PointResult, others: Sequence[str], short: dict[str, str]) -> str:
    words = [f"{short[key]}={shown(row.values[key])}" for key in others if key in row.values]
    return " ".join([row.name, *words] if row.name else words)


def _figure(series: Sequence[Series], x: str, y: str, kind: str) -> bytes:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ToolError(
            "matplotlib, which draws plots, is not installed", hint="pip install 'slurm-kit[plot]'"
        ) from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    _fill(figure.subplots(), series, x, y)
    sink = io.BytesIO()
    # With a fixed salt for ids and no date, the same results give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "kit"}):
        figure.savefig(sink, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return sink.getvalue()


def _fill(axes: Any, series: Sequence[Series], x: str, y: str) -> None:
    for number, one in enumerate(series):
        colour = f"C{number % 10}"
        axes.plot(*zip(*one.line, strict=True), color=colour, label=one.label)
        axes.plot(*zip(*one.dots, strict=True), "o", color=colour, markersize=4)
    dots = [dot for one in series for dot in one.dots]
    places = sorted({at for at, _ in dots})
    if is_logarithmic(places):
        axes.set_xscale("log")
    if len(places) <= _TICKS:
        axes.set_xticks(places, [shown(at) for at in places])
        axes.minorticks_off()
    if is_logarithmic([value for _, value in dots]):
        axes.set_yscale("log")
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    if len(series) > 1 or series[0].label:
        axes.legend(fontsize="small")


def _page(results: Results, svg: str) -> str:
    """An HTML page with the plot above the table of all points."""
    rows = results.as_tables()
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row.values()) + "</tr>" for row in rows
    )
    title = html.escape(results.sweep_id)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n<style>\n'
        "body { font-family: sans-serif; margin: 2em; }\n"
        "td, th { padding: 0.2em 0.8em; text-align: right; border-bottom: 1px solid #ddd; }\n"
        f"</style>\n</head>\n<body>\n<h1>{title}</h1>\n{svg[svg.index('<svg') :]}\n"
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>\n</table>\n</body>\n</html>\n"
    )


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
