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


def run(status: Status, closed: Ledger, price: Price | None) -> dict[str, Any]:
    """All data that the report shows for one run."""
    record = Record(status=status)
    return {
        "id": status.run_dir.name,
        "facts": _facts(status),
        "why": _why(record),
        "patch": _patch(status.run_dir),
        "ledger": as_dict(closed, price),
        **read_curves(status.run_dir),
        "step_times": _step_times(status.run_dir),
        "gpus": _gpus(status.run_dir),
        "events": _events(status.run_dir),
        "stragglers": _stragglers(status.run_dir),
        "failed": _failed(record),
    }


def brief(status: Status, closed: Ledger, price: Price | None) -> dict[str, Any]:
    """The data of one run among several: facts, end, ledger and curves."""
    accounts = as_dict(closed, price)
    accounts.pop("by_node")
    return {
        "id": status.run_dir.name,
        "facts": _facts(status),
        "why": _why(Record(status=status)),
        "ledger": accounts,
        **read_curves(status.run_dir),
    }


def _facts(status: Status) -> dict[str, Any]:
    facts = status.facts
    submitted = datetime.fromtimestamp(facts.submitted_at, UTC)
    return {
        "state": status.state,
        "exit code": status.exit_code,
        "job": facts.job_name,
        "Slurm job": status.job_id,
        "cluster": facts.cluster,
        "launcher": facts.launcher,
        "runtime": facts.runtime,
        "image": facts.image_name,
        "image digest": facts.image_digest,
        "commit": facts.git,
        "code": facts.workspace,
        "nodes": status.nodes,
        "ranks": dict(facts.world_sizes),
        "submitted": f"{submitted:%Y-%m-%d %H:%M:%S} UTC",
        "restarts": status.restarts,
        "folder": str(status.run_dir),
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
    found = step_times.read_step_times(run_dir)
    if found is None:
        return None
    rows = {rank: [None if v is None else float(f"{v:.3g}") for v in row] for rank, row in found.rows.items()}
    return {"start": found.start, "length": round(found.length, 3), "rows": rows}


def _gpus(run_dir: Path) -> dict[str, Any]:
    nodes = gpu_samples.read_samples(run_dir)
    series = sum(map(len, nodes.values())) or 1
    most = max(20, _GPU_POINTS // series)
    return {
        node: {column: _thinned([(round(at), value) for at, value in points], most) for column, points in of.items()}
        for node, of in nodes.items()
    }


def _events(run_dir: Path) -> list[dict[str, Any]]:
    quiet = {"time", "epoch", "event", "job_id", "restart", "attempt"}
    rows = []
    for event in run_facts.events(run_dir)[-_EVENTS:]:
        if isinstance(event.get("epoch"), int | float):
            said = " ".join(f"{key} {value}" for key, value in event.items() if key not in quiet)
            name = f"phase {event.get('name', '')}" if event["event"] == "phase" else event["event"]
            rows.append({"at": event["epoch"], "event": name, "says": said, "attempt": event.get("attempt", 0)})
    return rows


def _stragglers(run_dir: Path) -> list[dict[str, Any]]:
    """Ranks of the last attempt whose own work takes longer than the median, the slowest first."""
    every = ledger_read.processes(run_dir)
    last = max((process.attempt for process in every), default=0)
    worked = [
        ((process.spent["compute"] + process.spent["data"]) / (process.step - process.first), process)
        for process in every
        if process.attempt == last and process.first is not None and process.step > process.first
    ]
    if len(worked) < 2:
        return []
    usual = statistics.median(took for took, _ in worked)
    slow = sorted(((took, process) for took, process in worked if took > _SLOWER * usual), key=lambda pair: -pair[0])
    return [
        {
            "rank": process.rank,
            "role": process.role,
            "node": process.node,
            "step_s": _short(took),
            "median_s": _short(usual),
        }
        for took, process in slow[:20]
    ]


def _failed(record: Record) -> list[dict[str, Any]]:
    return [
        {
            "rank": failure.rank,
            "role": failure.role,
            "node": failure.node,
            "code": failure.code,
            "log": [shown(line) for line in record.rank_log(failure.rank, failure.role).lines[-_LOG_LINES:]],
        }
        for failure in record.failed[:_FAILED]
    ]
