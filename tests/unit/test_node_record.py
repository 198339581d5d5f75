"""`kit nodes`: a node that fails twice as many runs as the others in a day is named, with those runs."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from kit.health import failing_nodes
from kit.health.failing_nodes import FailedRun, NodeRecord
from kit.hosts import status
from tests.support import REPO

KILLED, RAISED = (REPO / "tests" / "why" / name for name in ("segfault", "exception"))


def ended(folder: Path, name: str, case: Path, node: str, *, ago: float = 60.0) -> Path:
    """A run folder that a real job left, as if on this node, so long ago."""
    run = shutil.copytree(case, folder / name)
    for path in [run / "state" / "events.jsonl", *run.glob("state/failures-*/*/*")]:
        text = path.read_text(encoding="utf-8")
        for old in ("n1", "n2", "n3", "n4"):
            text = text.replace(old, node)
        path.write_text(text, encoding="utf-8")
    events = [json.loads(line) for line in (run / "state" / "events.jsonl").read_text().splitlines()]
    later = time.time() - ago - events[-1]["epoch"]
    lines = [json.dumps({**event, "epoch": event["epoch"] + later}) for event in events]
    (run / "state" / "events.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run


def judged(runs: list[Path]) -> tuple[list[NodeRecord], list[str]]:
    found = failing_nodes.read_nodes(status.read_statuses(runs, queue=lambda cluster: {}), now=time.time())
    return found, [one.node for one in failing_nodes.suspects(found)]


def test_the_runs_that_a_node_failed_are_its_record(tmp_path: Path) -> None:
    runs = [ended(tmp_path, f"bad-{n}", KILLED, "n7") for n in range(2)]
    runs += [ended(tmp_path, f"raised-{n}", RAISED, "n8") for n in range(3)]
    runs.append(ended(tmp_path, "old", KILLED, "n8", ago=2 * failing_nodes.DAY_S))
    records, suspected = judged(runs)
    assert [(one.node, one.runs, len(one.failures)) for one in records] == [("n7", 2, 2), ("n8", 3, 0)]
    assert suspected == ["n7"], (
        "an exception of the program is not a node's fault, and what is older than a day counts no more"
    )
    assert [failure.run for failure in records[0].failures] == ["bad-0", "bad-1"]
    assert records[0].failures[0].rule == "segfault"


@pytest.mark.parametrize(
    ("failed", "named"),
    [((1, 0, 0), []), ((2, 0, 0), ["n0"]), ((4, 2, 2), ["n0"]), ((3, 2, 2), []), ((2, 2, 2), [])],
    ids=["once", "twice", "twice as many", "fewer than that", "all alike"],
)
def test_twice_as_many_as_the_others(failed: tuple[int, ...], named: list[str]) -> None:
    record = [
        NodeRecord(
            node=f"n{place}", runs=10, failures=[FailedRun(run=f"r{n}", rule="killed", line="") for n in range(many)]
        )
        for place, many in enumerate(failed)
    ]
    assert [one.node for one in failing_nodes.suspects(record)] == named
