"""The page: one HTML file with its data, its charts and the chart library. It fetches nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from kit.ledger.time_accounts import MEANINGS, Account
from kit.reports import charts, headline, points

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("kit", "reports"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with its heading. says: a description for readers who cannot see the chart."""

    name: str
    title: str
    says: str
    spec: charts.Spec


@dataclass(frozen=True, kw_only=True)
class Live:
    """Settings of a page that a server keeps up to date. page: the server's name for it. base: path from the page to the server's
    root.

    nonce: of the page's own scripts; no other script may run. data: path of its JSON. control: actions that the reader may use.
    made: version of the page.
    """

    page: str
    base: str
    nonce: str
    made: str = ""
    data: str = ""
    control: Sequence[str] = ()

    def as_dict(self) -> dict[str, str]:
        """The values that the page's script needs."""
        return {"page": self.page, "base": self.base, "made": self.made}


def template(name: str) -> jinja2.Template:
    """A template of this folder. Inserted values are escaped."""
    return _TEMPLATES.get_template(name)


def html(report: Mapping[str, Any], script: str, *, live: Live | None = None) -> str:
    """The page of a report.json. script: from vega_library.script(); a live page gets it from its server."""
    drawn = _charts(report)
    specs = {chart.name: {**chart.spec, "width": "container", "description": chart.says} for chart in drawn}
    return template("page.html.jinja").render(
        live=live,
        report=report,
        charts={chart.name: chart for chart in drawn},
        heads={run["id"]: headline.make_headline(run) for run in report["runs"]} if report["kind"] == "run" else {},
        # Escape '<', so that no tag in the data ends the <script> element.
        specs=json.dumps(specs, separators=(",", ":")).replace("<", "\\u003c"),
        library=script,
        meanings={str(account): text for account, text in MEANINGS.items()},
        colours={str(account): charts.COLOURS[account] for account in Account},
    )


def _charts(report: Mapping[str, Any]) -> list[Chart]:
    found = _of_run(report["runs"][0]) if report["kind"] == "run" else _of_several(report)
    # Leave out charts without data, as of a run that has not begun. They would have no axis.
    return [chart for chart in found if chart.spec["data"]["values"]]


def _of_several(report: Mapping[str, Any]) -> list[Chart]:
    several: Sequence[Mapping[str, Any]] = report["runs"]
    figures = [
        Chart(
            name="ledger-run",
            title="Where the time went, by run",
            says="A bar for each run, cut by account",
            spec=charts.ledger({run["label"]: run["ledger"]["accounts_rank_s"] for run in several}, "run"),
        )
    ]
    if report["kind"] == "sweep" and report["keys"]:
        figures.append(
            Chart(
                name="points",
                title="Points",
                says=points.says(report["rows"], report["keys"]),
                spec=points.chart(report["rows"], report["keys"], report["metric"], report["goal"]),
            )
        )
    speed_unit = next((run["speed_unit"] for run in several if run["speed"]), "")
    for name, title, unit in (
        ("loss", "Training loss", "loss"),
        ("eval", "Validation loss", "loss"),
        ("speed", "Speed", speed_unit),
    ):
        series = {run["label"]: run[name] for run in several if run[name]}
        if series:
            says = f"{title} over steps, a line for each run"
            figures.append(Chart(name=name, title=title, says=says, spec=charts.lines(series, x="step", y=unit)))
    return figures


def _of_run(run: Mapping[str, Any]) -> list[Chart]:
    by_attempt = {f"attempt {key}": of for key, of in run["ledger"]["by_attempt"].items()}
    by_node = {key or "no node yet": of for key, of in run["ledger"]["by_node"].items()}
    figures = [
        Chart(name="ledger-attempt", title="By attempt", says="A bar for each attempt, cut by account",
              spec=charts.ledger(by_attempt, "attempt")),
        Chart(name="ledger-node", title="By node", says="A bar for each node, cut by account",
              spec=charts.ledger(by_node, "node")),
    ]  # fmt: skip
    losses = {name: run[key] for key, name in (("loss", "training"), ("eval", "validation")) if run[key]}
    if losses:
        says = "Training and validation loss over steps"
        figures.append(Chart(name="loss", title="Loss", says=says, spec=charts.lines(losses, x="step", y="loss")))
    if run["speed"]:
        spec = charts.lines({"speed": run["speed"]}, x="step", y=run["speed_unit"])
        figures.append(Chart(name="speed", title="Speed", says="Speed over steps", spec=spec))
    if run["step_times"]:
        says = "Step time of each rank over time: dark is slow"
        one = run["step_times"]
        spec = charts.heat(one["rows"], start=one["start"], length=one["length"])
        figures.append(Chart(name="heat", title="Step time of each rank", says=says, spec=spec))
    figures += _of_gpus(run["gpus"])
    if run["events"]:
        says = "Events of the batch script on one time line"
        figures.append(Chart(name="events", title="Events", says=says, spec=charts.timeline(run["events"])))
    return figures


def _of_gpus(nodes: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    from kit.reports.gpu_samples import COLUMNS

    figures = []
    for column, unit in COLUMNS.items():
        series = {node: of[column] for node, of in nodes.items() if of.get(column)}
        if series:
            title = f"GPU {unit.partition(',')[0]}"
            says = f"{title}, {unit.partition(', ')[2]}, the mean of each node's GPUs over time"
            spec = charts.of_nodes(series, unit)
            figures.append(Chart(name=f"gpu-{column}", title=title, says=says, spec=spec))
    return figures
