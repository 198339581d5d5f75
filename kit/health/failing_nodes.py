"""Finds nodes that fail more runs than others, by `kit why` for each run that ended badly within the last day."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kit.health.answer import ADMIN, AGAIN, NODE
from kit.health.run_record import Record
from kit.health.why import explain
from kit.hosts.status import Status
from kit.record.run_facts import events

DAY_S = 24 * 3600.0
# A node is a suspect after this many failed runs, if its share of failed runs is this many times that of the other nodes.
_MIN_FAILURES, _SUSPECT_RATIO = 2, 2.0
# Ends whose usual cause is the program or the job, but that a bad node causes, too.
_SUSPECT = frozenset(
    {"killed", "segfault", "bus-error", "aborted", "illegal-instruction", "nccl-timeout", "stall-elsewhere"}
)


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """A run that failed because of a node. rule, line: from the answer of `kit why`."""

    run: str
    rule: str
    line: str


@dataclass(kw_only=True)
class NodeRecord:
    """One node's last day. runs: number of runs that used it. failures: those that failed because of it."""

    node: str
    runs: int = 0
    failures: list[FailedRun] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share of its runs that failed because of it, from 0 to 1."""
        return len(self.failures) / self.runs if self.runs else 0.0


def read_nodes(runs: Iterable[Status], *, now: float) -> list[NodeRecord]:
    """The nodes of runs that ended within the last day, by name. now: seconds since the epoch."""
    records: dict[str, NodeRecord] = {}
    for run in runs:
        recorded = events(run.run_dir)
        if run.active or not recorded or now - _epoch(recorded[-1]) > DAY_S:
            continue
        nodes = {
            node for e in recorded if e["event"] == "attempt" for node in str(e.get("nodes", "")).split(",") if node
        }
        for node in nodes:
            records.setdefault(node, NodeRecord(node=node)).runs += 1
        if run.state != "COMPLETED" and (blamed := _blamed(run)) is not None and blamed[0] in nodes:
            records[blamed[0]].failures.append(blamed[1])
    return [records[node] for node in sorted(records)]


def suspects(records: Sequence[NodeRecord]) -> list[NodeRecord]:
    """Nodes whose share of failed runs is at least twice that of the other nodes, the worst first."""
    found = []
    for one in records:
        others = [other.share for other in records if other is not one]
        if len(one.failures) >= _MIN_FAILURES and others and one.share >= _SUSPECT_RATIO * statistics.mean(others):
            found.append(one)
    return sorted(found, key=lambda one: -one.share)


def _blamed(run: Status) -> tuple[str, FailedRun] | None:
    """The node that made a run fail; None if the program or the job did, or if the cause is unknown."""
    record = Record(status=run)
    answer = explain(record)
    if answer.verdict not in {AGAIN, NODE, ADMIN} and answer.rule not in _SUSPECT:
        return None
    stalls = [event for event in record.events if event["event"] == "stall"]
    node = str(stalls[-1].get("node", "")) if stalls and answer.rule.startswith("stall") else ""
    node = node or next((failed.node for failed in record.failed), "")
    return (node, FailedRun(run=run.run_dir.name, rule=answer.rule, line=answer.line)) if node else None


def _epoch(event: dict[str, object]) -> float:
    try:
        return float(str(event.get("epoch", 0)))
    except ValueError:
        return 0.0
