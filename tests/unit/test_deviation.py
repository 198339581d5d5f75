"""`kit rerun --rotate`: which node the numbers of three runs point at."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kit.cli import rerun_rotate
from kit.health import miscomputing_nodes
from kit.health.miscomputing_nodes import Placement
from kit.health.rotate_ranks import Rotated
from kit.hosts import avoided_nodes
from tests.unit.test_comparison import Made
from tests.unit.test_comparison import made as made  # noqa: PLC0414 - a fixture

NODES = ("n1", "n2", "n3", "n4")
# What a rank computes in step 1 and 2 on a sound node; a wrong number of step 1 is in everybody's weights in step 2.
Wrong = Callable[[int, str], int]


def placements(wrong: Wrong, *, nodes: int = 4, ring: Sequence[str] = NODES, per_node: int = 1) -> list[Placement]:
    """Three runs, the ranks one node further on each time. wrong: of a run and a node, what is added to its numbers."""
    runs = []
    for shift in range(3):
        order = tuple(ring[(place + shift) % len(ring)] for place in range(nodes))
        spread = sum(wrong(shift, node) for node in order)
        numbers = {
            rank: [
                (1, "forward", 10 * rank + wrong(shift, order[rank // per_node])),
                (2, "forward", 100 + 7 * spread * (shift + 1)),
            ]
            for rank in range(nodes * per_node)
        }
        runs.append(Placement(run_id=f"r{shift}", order=order, ranks_per_node=per_node, numbers=numbers))
    return runs


@pytest.mark.parametrize("bad", NODES)
@pytest.mark.parametrize("per_node", [1, 2])
def test_the_node_that_every_wrong_rank_was_on_is_named(bad: str, per_node: int) -> None:
    found = miscomputing_nodes.find(placements(lambda _, node: int(node == bad), per_node=per_node))
    assert (found.node, found.parted) == (bad, True)
    assert {one.run for one in found.suspects} == {0, 1, 2}
    assert {(one.step, one.name) for one in found.suspects} == {(1, "forward")}


@pytest.mark.parametrize("bad", ["n1", "n2", "n3"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_two_nodes_and_one_need_a_third(bad: str, nodes: int) -> None:
    assert (
        miscomputing_nodes.find(placements(lambda _, node: int(node == bad), nodes=nodes, ring=NODES[:3])).node == bad
    )


def test_a_node_that_was_wrong_once_is_named_by_that_run() -> None:
    found = miscomputing_nodes.find(placements(lambda run, node: int(run == 1 and node == "n3")))
    assert (found.node, {one.run for one in found.suspects}) == ("n3", {1})


def test_what_follows_no_node_names_none() -> None:
    everywhere = miscomputing_nodes.find(placements(lambda run, _: run))
    assert (everywhere.node, everywhere.parted) == (None, True)
    one_run = miscomputing_nodes.find(placements(lambda run, _: int(run == 2)))
    assert (one_run.node, one_run.parted) == (None, True)
    two_nodes = miscomputing_nodes.find(placements(lambda _, node: int(node in {"n1", "n2"})))
    assert (two_nodes.node, two_nodes.parted) == (None, True)
    sound = miscomputing_nodes.find(placements(lambda *_: 0))
    assert (sound.node, sound.parted, sound.compared) == (None, False, 2)


def test_numbers_are_read_by_rank(made: Made) -> None:
    run = made.run("a", records=[{"kind": "step", "rank": 1, "step": 3, "loss": float("nan")}])
    (run / "ranks").mkdir()
    lines = [{"step": 1, "forward": 5, "gradient": -7}, {"step": 2, "forward": 6}]
    (run / "ranks/rank-0.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines) + '{"step": 3, "forw')
    found = miscomputing_nodes.read_numbers(run)
    assert found[0] == [(1, "forward", 5), (1, "gradient", -7), (2, "forward", 6)]
    assert [(step, name, repr(value)) for step, name, value in found[1]] == [(3, "loss", "nan")]
    nothing = Rotated(run_dirs=(), placements=(), found=miscomputing_nodes.find([*placements(lambda *_: 0, nodes=0)]))
    assert "no rank reported what it computes" in rerun_rotate.conclusion(nothing)


def test_a_node_is_avoided_by_name(tmp_path: Path) -> None:
    avoided_nodes.add(tmp_path, "n3", "computes wrong numbers")
    (tmp_path / ".avoid/.n4.being-written").write_text("")
    assert [(one.node, one.reason) for one in avoided_nodes.read_avoided(tmp_path)] == [
        ("n3", "computes wrong numbers")
    ]
    avoided_nodes.forget(tmp_path, "n3")
    assert avoided_nodes.read_avoided(tmp_path) == []
