"""Collects the data of a report as plain JSON: report.json next to the page."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kit.files import untrusted_files
from kit.health.run_record import Record, shown
from kit.health.why import explain
from kit.hosts.status import Status
from kit.ledger import read_run as ledger_read
from kit.ledger.as_json import as_dict
from kit.ledger.ledger import Ledger
from kit.record import metrics, run_facts
from kit.reports import gpu_samples, step_times
from kit.schema.cluster import Price
from kit.schema.run_paths import RunPaths

SCHEMA = 1
# Limits that keep a page of many runs, nodes and ranks below two megabytes.
_POINTS, _GPU_POINTS, _EVENTS, _FAILED, _LOG_LINES, _PATCH = 400, 6000, 300, 8, 40, 20_000
_SPEEDS = ("tokens_per_second", "images_per_second")
# A rank is a straggler if its own work takes this many times the median of all ranks.
_SLOWER = 1.1


def run(one: Status, closed: Ledger, price: Price | None) -> dict[str, Any]:
    """All data that the report shows for one run."""
    record = Record(status=one)
    return {
        "id": one.run_dir.name,
        "facts": _facts(one),
        "why": _why(record),
        "patch": _patch(one.run_dir),
        "ledger": as_dict(closed, price),
        **read_curves(one.run_dir),
        "step_times": _step_times(one.run_dir),
        "gpus": _gpus(one.run_dir),
        "events": _events(one.run_dir),
        "stragglers": _stragglers(one.run_dir),
        "failed": _failed(record),
    }


def brief(one: Status, closed: Ledger, price: Price | None) -> dict[str, Any]:
    """The data of one run among several: facts, end, ledger and curves."""
    made = as_dict(closed, price)
    made.pop("by_node")
    return {
        "id": one.run_dir.name,
        "facts": _facts(one),
        "why": _why(Record(status=one)),
        "ledger": made,
        **read_curves(one.run_dir),
    }


def _facts(one: Status) -> dict[str, Any]:
    made = one.facts
    submitted = datetime.fromtimestamp(made.submitted_at, UTC)
    return {
        "state": one.state,
        "exit code": one.exit_code,
        "job": made.job_name,
        "Slurm job": one.job_id,
        "cluster": made.cluster,
        "launcher": made.launcher,
        "runtime": made.runtime,
        "image": made.image_name,
        "image digest": made.image_digest,
        "commit": made.git,
        "code": made.workspace,
        "nodes": one.nodes,
        "ranks": dict(made.world_sizes),
        "submitted": f"{submitted:%Y-%m-%d %H:%M:%S} UTC",
        "restarts": one.restarts,
        "folder": str(one.run_dir),
    }


def _why(record: Record) -> dict[str, Any] | None:
    if record.status.state == "SUBMITTED":
        return None
    answer = explain(record)
    return {
        "line": answer.line,
        "verdict": answer.verdict,
        "advice": answer.advice,
        "next": answer.next,
        "evidence": [dataclasses.asdict(cited) for cited in answer.evidence],
    }


def _patch(run_dir: Path) -> str:
    try:
        return untrusted_files.open_regular(RunPaths(run_dir).patch).read(_PATCH).decode(errors="replace")
    except OSError:
        return ""


def read_curves(run_dir: Path) -> dict[str, Any]:
    """Loss, validation loss and speed by step. For a repeated step, the last report counts."""
    loss: dict[int, float] = {}
    test: dict[int, float] = {}
    speed: dict[int, float] = {}
    unit = ""
    for record in metrics.records(run_dir):
        step = record.get("step")
        if not isinstance(step, int):
            continue
        for into, names in ((loss, ("loss", "train_loss")), (test, ("eval_loss", "test_loss")), (speed, _SPEEDS)):
            for name in names:
                if isinstance(record.get(name), int | float):
                    into[step] = float(record[name])
                    unit = name.replace("_per_second", "/s") if into is speed else unit
    return {
        "loss": _thinned(sorted(loss.items())),
        "eval": _thinned(sorted(test.items())),
        "speed": _thinned(sorted(speed.items())),
        "speed_unit": unit,
        # A curve has only every n-th value.
        "best": {name: best for name, of in (("loss", loss), ("eval", test)) if (best := _least(of)) is not None},
    }


def _least(values: dict[int, float]) -> list[float | None] | None:
    """Step and value of the least number; None without one."""
    numbers = [(value, step) for step, value in values.items() if math.isfinite(value)]
    return [min(numbers)[1], _short(min(numbers)[0])] if numbers else None


def _thinned(points: Sequence[tuple[float, float]], most: int = _POINTS) -> list[list[float | None]]:
    """Every n-th point and the last, at most about `most` points; values with five digits."""
    every = max(1, -(-len(points) // most))
    kept = [*points[::every], *([points[-1]] if points and (len(points) - 1) % every else [])]
    return [[x, _short(y)] for x, y in kept]


def _short(value: float) -> float | None:
    """Five digits of a value; None for NaN, which JSON lacks: a diverged loss becomes a gap in its curve."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _step_times(run_dir: Path) -> dict[str, Any] | None:
    found = step_times.read(run_dir)
    if found is None:
        return None
    rows = {rank: [None if v is None else float(f"{v:.3g}") for v in row] for rank, row in found.rows.items()}
    return {"start": found.start, "length": round(found.length, 3), "rows": rows}


def _gpus(run_dir: Path) -> dict[str, Any]:
    nodes = gpu_samples.read(run_dir)
    series = sum(map(len, nodes.values())) or 1
    most = max(20, _GPU_POINTS // series)
    return {
        node: {column: _thinned([(round(at), value) for at, value in points], most) for column, points in of.items()}
        for node, of in nodes.items()
    }


def _events(run_dir: Path) -> list[dict[str, Any]]:
    quiet = {"time", "epoch", "event", "job_id", "restart", "attempt"}
    found = []
    for event in run_facts.events(run_dir)[-_EVENTS:]:
        if isinstance(event.get("epoch"), int | float):
            said = " ".join(f"{key} {value}" for key, value in event.items() if key not in quiet)
            name = f"phase {event.get('name', '')}" if event["event"] == "phase" else event["event"]
            found.append({"at": event["epoch"], "event": name, "says": said, "attempt": event.get("attempt", 0)})
    return found


def _stragglers(run_dir: Path) -> list[dict[str, Any]]:
    """Ranks of the last attempt whose own work takes longer than the median, the slowest first."""
    every = ledger_read.processes(run_dir)
    last = max((one.attempt for one in every), default=0)
    worked = [
        ((one.spent["compute"] + one.spent["data"]) / (one.step - one.first), one)
        for one in every
        if one.attempt == last and one.first is not None and one.step > one.first
    ]
    if len(worked) < 2:
        return []
    usual = statistics.median(took for took, _ in worked)
    slow = sorted(((took, one) for took, one in worked if took > _SLOWER * usual), key=lambda pair: -pair[0])
    return [
        {"rank": one.rank, "role": one.role, "node": one.node, "step_s": _short(took), "median_s": _short(usual)}
        for took, one in slow[:20]
    ]


def _failed(record: Record) -> list[dict[str, Any]]:
    return [
        {
            "rank": one.rank,
            "role": one.role,
            "node": one.node,
            "code": one.code,
            "log": [shown(line) for line in record.rank_log(one.rank, one.role).lines[-_LOG_LINES:]],
        }
        for one in record.failed[:_FAILED]
    ]
