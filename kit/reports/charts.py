"""Charts as Vega-Lite (https://vega.github.io/vega-lite/docs/): turns data of report.json into chart specifications.

Colours are those of Okabe and Ito, which colour-blind people can tell apart. Each chart's data is also in a table or a tooltip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kit.ledger.time_accounts import MEANINGS, Account

Spec = dict[str, Any]

_BLUE, _SKY, _GREEN, _YELLOW, _ORANGE, _RED, _PURPLE = (
    "#0072B2", "#56B4E9", "#009E73", "#F0E442", "#E69F00", "#D55E00", "#CC79A7",
)  # fmt: skip
COLOURS = {
    Account.QUEUE: "#BBBBBB",
    Account.HELD: "#999999",
    Account.NOT_SUBMITTED: "#DDDDDD",
    Account.SETUP: "#777777",
    Account.PREFLIGHT: "#5F6B6D",
    Account.ONCE: "#8C7A6B",
    Account.IMAGE: "#B8A58C",
    Account.START: "#7FB8A4",
    Account.RENDEZVOUS: "#3E8E76",
    Account.FIRST_STEP: _GREEN,
    Account.PRODUCTIVE: _BLUE,
    Account.STRAGGLERS: _ORANGE,
    Account.INPUT: _YELLOW,
    Account.SAVE: _SKY,
    Account.EVALUATION: "#9AD0F5",
    Account.LOST: _RED,
    Account.STALL: "#8A3300",
    Account.PROGRAM: "#4D7EA8",
    Account.RESTART: _PURPLE,
    Account.TEARDOWN: "#A0708F",
    Account.IDLE_END: "#E3B5CF",
    Account.SPARE: "#EEEEEE",
    Account.UNATTRIBUTED: "#000000",
}
# One colour for each run or node. Each has a contrast of 3:1 or more on a white and on a dark page; yellow and sky blue have not.
LINES = [_BLUE, _RED, _GREEN, "#C46B9C", "#808080", "#A97900", "#8570D8"]
_MOST_BARS, _MOST_NAMED, _STRETCHES = 64, 24, 100
# More ticks would fall between the seconds of a short run, and all would be labelled .800.
_TIME_AXIS = {"tickCount": 6}


def ledger(groups: Mapping[str, Mapping[str, float]], what: str) -> Spec:
    """A stacked bar for each group: rank-seconds by account. It shows at most the first 64 groups."""
    shown = list(groups.items())[:_MOST_BARS]
    order = [str(account) for account in Account if any(str(account) in of for _, of in shown)]
    values = [
        {what: name, "account": account, "rank-s": seconds, "share": seconds / (sum(of.values()) or 1.0),
         "is": MEANINGS[Account(account)], "order": order.index(account)}
        for name, of in shown
        for account, seconds in of.items()
    ]  # fmt: skip
    return {
        "data": {"values": values},
        "height": len(shown) * (22 if len(shown) < 12 else 12),
        "params": [{"name": "picked", "select": {"type": "point", "fields": ["account"]}, "bind": "legend"}],
        "mark": {"type": "bar", "stroke": "#fff", "strokeWidth": 0.5},
        "encoding": {
            "y": {"field": what, "type": "nominal", "sort": None, "title": what},
            "x": {"field": "rank-s", "type": "quantitative", "title": "rank-seconds"},
            "color": {
                "field": "account",
                "type": "nominal",
                "sort": None,
                "scale": {"domain": order, "range": [COLOURS[Account(name)] for name in order]},
                "legend": {"orient": "bottom", "columns": {"expr": "width < 500 ? 2 : 5"}, "title": None},
            },
            "order": {"field": "order"},
            "opacity": {"condition": {"param": "picked", "value": 1}, "value": 0.15},
            "tooltip": [
                {"field": what},
                {"field": "account"},
                {"field": "rank-s", "format": ",.1f"},
                {"field": "share", "format": ".1%"},
                {"field": "is"},
            ],
        },
    }


def lines(series: Mapping[str, Sequence[Sequence[float | None]]], *, x: str, y: str, time: bool = False) -> Spec:
    """A line for each series of (x, y). The wheel zooms, the legend selects. time: x is seconds since the epoch."""
    values = [
        {"of": name, "xs": [p[0] for p in points], "ys": [p[1] for p in points]} for name, points in series.items()
    ]
    at = {"field": "at", "type": "temporal"} if time else {"field": "xs", "type": "quantitative"}
    several = len(series) > 1
    named = several and len(series) <= _MOST_NAMED
    colour: Spec = {"value": _BLUE}
    legend = {"orient": "bottom", "title": None, "columns": {"expr": "width < 500 ? 1 : 4"}}
    # For more series a legend would be longer than the chart. The tooltips name them.
    legend_or_none = legend if named else None
    if several:
        colour = {"field": "of", "type": "nominal", "sort": None, "scale": {"range": LINES}, "legend": legend_or_none}
    return {
        "data": {"values": values},
        "transform": [{"flatten": ["xs", "ys"]}, *([{"calculate": "datum.xs * 1000", "as": "at"}] if time else [])],
        "height": 220,
        "params": [
            {"name": "zoom", "select": "interval", "bind": "scales"},
            *([{"name": "picked", "select": {"type": "point", "fields": ["of"]}, "bind": "legend"}] if named else []),
        ],
        "mark": {"type": "line", "point": {"size": 12}, "clip": True},
        "encoding": {
            "x": {**at, "title": x, **({"axis": _TIME_AXIS} if time else {})},
            "y": {"field": "ys", "type": "quantitative", "title": y, "scale": {"zero": False}},
            "color": colour,
            **(
                {"strokeDash": {"field": "of", "type": "nominal", "sort": None, "legend": legend_or_none}}
                if several
                else {}
            ),
            **({"opacity": {"condition": {"param": "picked", "value": 1}, "value": 0.1}} if named else {}),
            "tooltip": [
                {"field": "of", "title": "of"},
                {**at, "title": x},
                {"field": "ys", "format": ",.5~g", "title": y},
            ],
        },
    }


def of_nodes(series: Mapping[str, Sequence[Sequence[float | None]]], unit: str) -> Spec:
    """A line for each node over time. With more nodes than colours, a heat map of nodes x time; dark means a high value."""
    times = [point[0] for points in series.values() for point in points if point[0] is not None]
    if len(series) <= _MOST_NAMED or not times:
        return lines(series, x="", y=unit, time=True)
    start, length = min(times), max(1.0, (max(times) - min(times)) / _STRETCHES)
    rows: dict[str, list[float | None]] = {}
    for node, points in series.items():
        cells: list[list[float]] = [[] for _ in range(int((max(times) - start) / length) + 1)]
        for at, value in points:
            if at is not None and value is not None:
                cells[int((at - start) / length)].append(value)
        rows[node] = [float(f"{sum(cell) / len(cell):.4g}") if cell else None for cell in cells]
    return heat(rows, start=start, length=length, what="node", unit=unit)


def heat(
    rows: Mapping[str, Sequence[float | None]],
    *,
    start: float,
    length: float,
    what: str = "rank",
    unit: str = "s a step",
) -> Spec:
    """A heat map of step times, ranks x time; dark is slow.

    The scale ends at the 98th percentile, so that one save does not hide the rest.
    """
    every = sorted(value for row in rows.values() for value in row if value is not None)
    most = every[min(len(every) - 1, int(len(every) * 0.98))] if every else 1.0
    values = [{"rank": rank, "v": list(row)} for rank, row in rows.items()]
    tall = len(rows) > 64
    return {
        "data": {"values": values},
        "transform": [
            {"flatten": ["v"]},
            {"window": [{"op": "row_number", "as": "n"}], "groupby": ["rank"]},
            {"filter": "isValid(datum.v)"},
            {"calculate": f"({start} + (datum.n - 1) * {length}) * 1000", "as": "at"},
            {"calculate": f"datum.at + {length * 1000}", "as": "until"},
        ],
        "height": 420 if tall else max(60, 14 * len(rows)),
        # An SVG with fifty thousand elements would make the page slow.
        "usermeta": {"embedOptions": {"renderer": "canvas"}},
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "at", "type": "temporal", "title": None, "axis": _TIME_AXIS},
            "x2": {"field": "until"},
            "y": {
                "field": "rank",
                "type": "ordinal",
                "sort": None,
                "title": what,
                "axis": {"labelOverlap": True, "ticks": not tall},
            },
            "color": {
                "field": "v",
                "type": "quantitative",
                "title": unit,
                "scale": {
                    "scheme": "viridis",
                    "reverse": True,
                    "domain": [min(every, default=0.0), most],
                    "clamp": True,
                },
                "legend": {"orient": "bottom"},
            },
            "tooltip": [
                {"field": "rank", "title": what},
                {"field": "at", "type": "temporal", "format": "%H:%M:%S"},
                {"field": "v", "format": ".3~g", "title": unit},
            ],
        },
    }


def timeline(events: Iterable[Mapping[str, Any]]) -> Spec:
    """A mark for each event, in a row for each kind of event."""
    values = [{**event, "at": event["at"] * 1000, "attempt": str(event["attempt"])} for event in events]
    return {
        "data": {"values": values},
        "height": 24 * len({event["event"] for event in values}),
        "params": [{"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}],
        # Vega draws points half transparent, which is hard to see on a dark page.
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
        "encoding": {
            # The first and the last mark are at the edges: without padding, half of each would be cut off.
            "x": {"field": "at", "type": "temporal", "title": None, "axis": _TIME_AXIS, "scale": {"padding": 10}},
            "y": {"field": "event", "type": "nominal", "sort": None, "title": None},
            "color": {
                "field": "attempt",
                "type": "nominal",
                "scale": {"range": LINES},
                "legend": {"orient": "bottom"},
            },
            "shape": {"field": "attempt", "type": "nominal", "legend": {"orient": "bottom"}},
            "tooltip": [
                {"field": "event"},
                {"field": "at", "type": "temporal", "format": "%Y-%m-%d %H:%M:%S"},
                {"field": "attempt"},
                {"field": "says"},
            ],
        },
    }
