"""Finds ledgers by the names that a user gives: of a run, or of all points of a sweep."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from pathlib import Path

from kit import config, data_folders
from kit.errors import ConfigError, RunError
from kit.health import last_step
from kit.hosts import status as host_status
from kit.hosts.host import Queue
from kit.hosts.status import Status
from kit.ledger import ledger, read_run
from kit.ledger.ledger import Ledger
from kit.record import find_runs, index, metrics
from kit.record.unmade_points import POINTS
from kit.schema.cluster import Cluster, Price


@dataclass(frozen=True, kw_only=True)
class FoundLedgers:
    """The runs and ledgers for one name. sweep: its id; None for a run. price: of the cluster; None if its file sets none."""

    sweep: str | None
    runs: tuple[Status, ...]
    ledgers: tuple[Ledger, ...]
    price: Price | None


def ledgers(name: str | None, folders: list[Path], *, queue: Queue, now: float) -> FoundLedgers:
    """The ledgers of a run or sweep. RunError if it does not exist, or if its points have not been submitted."""
    points = sweep_points(name, folders)
    run_dirs = points or [find_runs.find_one(name, folders)]
    statuses = host_status.read_statuses(run_dirs, queue=queue)
    run_ledgers = tuple(read_ledger(status, now=now) for status in statuses if not status.facts.problem)
    if not run_ledgers:
        raise RunError(f"{run_dirs[0]}: {statuses[0].facts.problem}", hint="'kit runs' lists the runs that can be read")
    return FoundLedgers(
        sweep=run_dirs[0].parent.parent.name if points else None,
        runs=tuple(statuses),
        ledgers=run_ledgers,
        price=price_of(made_on(statuses)),
    )


def read_ledger(status: Status, *, now: float) -> Ledger:
    """The ledger of a run whose status is known."""
    made = ledger.close(read_run.records(status, now=now))
    reported = [float(r["mfu"]) for r in metrics.records(status.run_dir) if isinstance(r.get("mfu"), int | float)]
    notes = made.notes
    if found := last_step.read_last_step(status.run_dir):
        notes += (f"the last step: {found.words(now if made.live else None)} (from {found.source})",)
    return dataclasses.replace(made, mfu=statistics.fmean(reported) if reported else None, notes=notes)


def sweep_points(name: str | None, folders: list[Path]) -> list[Path]:
    """The run folders of a sweep's points; empty if the name is not a sweep's."""
    if name is None:
        return []
    places = [Path(name), *(folder / name for folder in folders)]
    for place in places:
        if (place / POINTS).is_dir() or (place / "sweep.json").is_file():
            return sorted(path.resolve() for path in index.run_dirs(place / POINTS))
    return []


def made_on(found: list[Status]) -> str:
    """The cluster of these runs."""
    return next((one.facts.cluster for one in found if one.facts.cluster), "")


def price_of(cluster: str) -> Price | None:
    """The price in the cluster's file; None if the file no longer exists or cannot be read."""
    try:
        project = data_folders.project()
        entry = data_folders.find("clusters", cluster, project_dir=project)
        return config.load_model(entry.path, Cluster).price
    except ConfigError:
        return None
