"""kit nodes."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kit.cli.job_options import ClusterName
from kit.cli.json_options import Json
from kit.cli.print_json import print_json

if TYPE_CHECKING:
    from kit.health.failing_nodes import NodeRecord
    from kit.hosts.avoided_nodes import Avoided


def nodes(
    forget: Annotated[
        str | None, typer.Option("--forget", metavar="NODE", help="Let new jobs use this node again.")
    ] = None,
    add: Annotated[
        str | None, typer.Option("--avoid", metavar="NODE", help="Exclude this node from new jobs for a day.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="With --avoid: the reason, as text.")] = "",
    cluster: ClusterName = None,
    as_json: Json = False,
) -> None:
    """List nodes that new jobs avoid (failed preflight, or --avoid), and nodes that failed far more runs than others."""
    from kit import config, data_folders
    from kit.errors import UsageError
    from kit.health import failing_nodes as nodes_of
    from kit.hosts import avoided_nodes, clusters
    from kit.record import find_runs
    from kit.schema.cluster import Cluster

    project = data_folders.project()
    entry = config.cluster_entry(cluster, project)
    rules = config.load_model(entry.path, Cluster)
    host = clusters.host_for(entry.name, rules, project=project)
    if forget is not None:
        host.forget(forget)
        return
    if add is not None:
        if not avoided_nodes.NODE.fullmatch(add):
            raise UsageError(f"--avoid {add}: not the name of a node", hint="sinfo -N")
        host.avoid(add, reason or "named by kit nodes --avoid")
        return
    # The record of runs can be read only where their folders are.
    records = _records(find_runs.folder_of(rules, project)) if host.shares_files else []
    avoided = host.avoided()
    suspected = nodes_of.suspects(records)
    if as_json:
        rows: list[dict[str, object]] = [
            {"node": n.node, "since": n.since.isoformat(), "reason": n.reason, "recorded_by": n.recorded_by, "runs": []}
            for n in avoided
        ]
        rows += [
            {
                "node": n.node,
                "since": None,
                "reason": _reason(n, records),
                "runs": [dataclasses.asdict(failure) for failure in n.failures],
            }
            for n in suspected
        ]
        print_json("nodes", rows)
        return
    _show(avoided, suspected, records)


def _records(folder: Path) -> list[NodeRecord]:
    """The node records from the runs of one day, with one request to Slurm."""
    from kit.cli.wait_and_follow import queue
    from kit.health import failing_nodes as nodes_of
    from kit.hosts import status as host_status
    from kit.record import find_runs

    now = time.time()
    recent = [(path, facts) for path, facts in find_runs.find_all([folder]) if now - _touched(path) < nodes_of.DAY_S]
    return nodes_of.read_nodes(host_status.of_facts(recent, queue=queue()), now=now)


def _touched(run_dir: Path) -> float:
    """The time when the run's record was last written; 0 if there is none."""
    from kit.schema.run_paths import RunPaths

    try:
        return RunPaths(run_dir).events.stat().st_mtime
    except OSError:
        return 0.0


def _reason(one: NodeRecord, records: list[NodeRecord]) -> str:
    others = [other for other in records if other is not one]
    runs, failed = sum(other.runs for other in others), sum(len(other.failures) for other in others)
    return f"failed {len(one.failures)} of {one.runs} runs within a day; the other nodes {failed} of {runs}"


def _recorded(one: Avoided) -> str:
    if not one.recorded_by:
        return one.reason
    return f"recorded by {one.recorded_by}, so your jobs do not avoid this node: {one.reason}"


def _show(avoided: list[Avoided], suspected: list[NodeRecord], records: list[NodeRecord]) -> None:
    from kit.cli.print_table import Column, show
    from kit.files.safe_text import clean

    rows: list[tuple[object, ...]] = [
        (entry.node, f"{entry.since:%Y-%m-%d %H:%M}", _recorded(entry)) for entry in avoided
    ]
    rows += [(suspect.node, "", _reason(suspect, records)) for suspect in suspected]
    if rows:
        show((Column("node"), Column("since (UTC)", 1), Column("reason")), rows)
    for suspect in suspected:
        print(f"\n{suspect.node}: leave it out with --set slurm.exclude={suspect.node}, and tell the administrator")
        for failure in suspect.failures:
            print(clean(f"  {failure.run}: {failure.line} ({failure.rule})"))
