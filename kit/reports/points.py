"""Chart of a sweep's points: a scatter for one swept key, parallel coordinates for several."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kit.reports.charts import Spec

# From the worst value over grey to the best; each is readable on a white and on a dark page, also for the colour-blind.
_WORST_TO_BEST = ["#D55E00", "#808080", "#0072B2"]
# A key whose greatest value is so many times its least is drawn on a log scale, as learning rates are.
_LOG_FROM = 20.0
_MOST_TICKS, _TICKS = 8, 5

_Rows = Sequence[Mapping[str, Any]]


def chart(rows: _Rows, keys: Sequence[str], metric: str | None, goal: str) -> Spec:
    """The chart that fits the number of swept keys. goal: `min` or `max`."""
    if len(keys) == 1 and metric is not None:
        return _scatter(rows, keys[0], metric, goal)
    return _parallel(rows, keys, metric, goal)


def says(rows: _Rows, keys: Sequence[str]) -> str:
    """The chart in words."""
    if len(keys) == 1:
        return f"The metric of {len(rows)} points over {keys[0]}"
    return "Parallel coordinates: a line for each point over the swept keys and the metric"


def is_log(values: Sequence[Any]) -> bool:
    """Whether numbers belong on a log scale: all above zero, and the greatest far from the least."""
    return _are_numbers(values) and min(values) > 0 and max(values) / min(values) >= _LOG_FROM


def _are_numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)


def _scatter(rows: _Rows, key: str, metric: str, goal: str) -> Spec:
    values = [
        {"point": f"point {row['point']}", "id": row.get("id"), "x": row[key], "y": row[metric]}
        for row in rows
        if row.get(key) is not None and row.get(metric) is not None
    ]
    xs, ys = [one["x"] for one in values], [one["y"] for one in values]
    return {
        "data": {"values": values},
        "height": 260,
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
        "encoding": {
            "x": {"field": "x", "title": key, **_scale(xs)},
            "y": {"field": "y", "title": metric, **_scale(ys)},
            "color": {"field": "y", "type": "quantitative", "scale": _colours(goal), "legend": None},
            "tooltip": [{"field": "point"}, {"field": "x", "title": key}, {"field": "y", "title": metric}],
        },
    }


def _scale(values: Sequence[Any]) -> Spec:
    if not _are_numbers(values):
        return {"type": "nominal", "sort": None, "axis": {"labelAngle": 0}}
    kind: Spec = {"type": "log"} if is_log(values) else {"zero": False}
    return {"type": "quantitative", "scale": {**kind, "padding": 12}, "axis": {"format": "~g", "tickCount": 6}}


def _colours(goal: str) -> Spec:
    return {"range": _WORST_TO_BEST, "reverse": goal == "min"}


def _parallel(rows: _Rows, keys: Sequence[str], metric: str | None, goal: str) -> Spec:
    """A line for each point over its keys and the metric. Each axis goes from its least to its greatest value, and has ticks.

    Values that are not numbers are spread over the axis in the order in which they first occur.
    """
    axes = [*keys, *([metric] if metric else [])]
    known = {axis: [row[axis] for row in rows if row.get(axis) is not None] for axis in axes}
    places = {axis: place_of(values) for axis, values in known.items()}
    values = [
        {"point": f"point {row['point']}", "id": row.get("id"), "axis": axis, "order": axes.index(axis),
         "place": places[axis](row[axis]), "value": str(row[axis]), "metric": row.get(metric) if metric else row["point"]}
        for row in rows
        for axis in axes
        if row.get(axis) is not None
    ]  # fmt: skip
    ticks = [
        {
            "axis": axis,
            "place": places[axis](value),
            "label": f"{value:.3g}" if _are_numbers([value]) else str(value)[:16],
        }
        for axis in axes
        for value in _ticks(known[axis], even=axis == metric)
    ]
    across = {"field": "axis", "type": "ordinal", "sort": axes, "title": None}
    up = {"field": "place", "type": "quantitative", "axis": None, "scale": {"domain": [-0.05, 1.05]}}
    lines: Spec = {
        "params": [{"name": "over", "select": {"type": "point", "fields": ["point"], "on": "pointerover"}}],
        "mark": {"type": "line", "point": True, "strokeWidth": 2},
        "encoding": {
            "x": {**across, "axis": {"labelAngle": 0, "grid": True}},
            "y": up,
            "detail": {"field": "point"},
            "order": {"field": "order"},
            "color": {
                "field": "metric", "type": "quantitative", "title": metric or "point", "scale": _colours(goal),
                "legend": {"orient": "bottom", "format": "~g"},
            },
            "opacity": {"condition": {"param": "over", "value": 1, "empty": True}, "value": 0.12},
            "tooltip": [
                {"field": "point"}, {"field": "axis"}, {"field": "value"}, {"field": "metric", "title": metric or "point"},
            ],
        },
    }  # fmt: skip
    labels: Spec = {
        "data": {"values": ticks},
        "mark": {"type": "text", "align": "left", "dx": 6, "dy": -7, "fontSize": 10, "color": "#808080"},
        "encoding": {"x": across, "y": up, "text": {"field": "label", "type": "nominal"}},
    }
    return {"data": {"values": values}, "height": 260, "layer": [lines, labels]}


def place_of(values: Sequence[Any]) -> Callable[[Any], float]:
    """A function from a value to its position on an axis, 0 to 1."""
    if not _are_numbers(values):
        order = list(dict.fromkeys(values))
        return lambda value: order.index(value) / max(1, len(order) - 1)
    bend: Callable[[float], float] = math.log if is_log(values) else float
    low, high = bend(min(values)), bend(max(values))
    return lambda value: (bend(value) - low) / (high - low) if high > low else 0.5


def _ticks(values: Sequence[Any], *, even: bool) -> Sequence[Any]:
    """Every value that occurs, if they are few; else, or for even ones, five that divide the axis."""
    there = list(dict.fromkeys(values))
    if (len(there) <= _MOST_TICKS and not even) or not _are_numbers(values):
        return there[:_MOST_TICKS]
    low, high = min(values), max(values)
    share = [number / (_TICKS - 1) for number in range(_TICKS)]
    return [low * (high / low) ** at if is_log(values) else low + (high - low) * at for at in share]
