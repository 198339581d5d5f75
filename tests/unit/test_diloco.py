"""Replica groups: who is in which, what does not divide is refused with its numbers, and the picture says the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from pydantic import ValidationError

from kit import config
from kit.errors import ConfigError
from kit.frameworks.diloco import GroupPlacement, broken, least, picture, replica_groups
from kit.planning.plan import Plan, plan
from kit.schema.diloco import DiLoCo
from tests.support import make_lock, make_site, write_job


def group(index: int, nodes: tuple[int, ...], gpus: tuple[int, ...], ranks: int) -> GroupPlacement:
    return GroupPlacement(index=index, nodes=nodes, gpus=gpus, ranks_per_node=ranks)


@pytest.mark.parametrize(
    ("nodes", "gpus", "table", "expected"),
    [
        (2, 4, {}, [group(0, (0,), (0, 1, 2, 3), 4), group(1, (1,), (0, 1, 2, 3), 4)]),
        (1, 4, {"replicas_per_node": 2}, [group(0, (0,), (0, 1), 2), group(1, (0,), (2, 3), 2)]),
        (2, 1, {"nodes_per_replica": 2}, [group(0, (0, 1), (0,), 1)]),
        (
            2,
            2,
            {"replicas_per_node": 2},
            [group(0, (0,), (0,), 1), group(1, (0,), (1,), 1), group(2, (1,), (0,), 1), group(3, (1,), (1,), 1)],
        ),
        (4, 2, {"nodes_per_replica": 2}, [group(0, (0, 1), (0, 1), 2), group(1, (2, 3), (0, 1), 2)]),
        (1, 0, {"replicas_per_node": 2}, [group(0, (0,), (), 1), group(1, (0,), (), 1)]),
    ],
)
def test_groups_share_out_nodes_and_gpus(
    nodes: int, gpus: int, table: dict[str, Any], expected: list[GroupPlacement]
) -> None:
    assert list(replica_groups(nodes, gpus, DiLoCo(**table))) == expected


@pytest.mark.parametrize("nodes", [2, 6])
@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize("table", [{"replicas_per_node": 2}, {"nodes_per_replica": 2}, {}])
def test_every_gpu_is_in_one_group(nodes: int, gpus: int, table: dict[str, Any]) -> None:
    groups = replica_groups(nodes, gpus, DiLoCo(**table))
    held = [(node, gpu) for one in groups for node in one.nodes for gpu in one.gpus]
    assert sorted(held) == [(node, gpu) for node in range(nodes) for gpu in range(gpus)]
    assert sum(one.world_size for one in groups) == nodes * gpus
    assert [one.index for one in groups] == list(range(len(groups)))


def test_ranks_of_a_node_are_shared_out_when_they_are_given() -> None:
    groups = replica_groups(2, 2, DiLoCo(replicas_per_node=2), ranks_per_node=4)
    assert {one.ranks_per_node for one in groups} == {2}


@pytest.mark.parametrize(
    ("size", "table", "key", "said"),
    [
        (
            (2, 3, None),
            {"replicas_per_node": 2},
            "diloco.replicas_per_node",
            "2 groups cannot share the 3 GPUs of a node",
        ),
        ((2, 4, 6), {"replicas_per_node": 4}, "resources.ranks_per_node", "over diloco.replicas_per_node = 4"),
        (
            (3, 2, None),
            {"nodes_per_replica": 2},
            "diloco.nodes_per_replica",
            "3 nodes cannot be split into groups of 2",
        ),
        ((2, 2, None), {"min_replicas": 1}, "diloco.min_replicas", "a group that starts alone"),
        ((2, 2, None), {"min_replicas": 3}, "diloco.min_replicas", "more than the 2 groups"),
    ],
)
def test_what_does_not_divide_is_refused(
    size: tuple[int, int, int | None], table: dict[str, Any], key: str, said: str
) -> None:
    nodes, gpus, ranks = size
    faults = broken(nodes, gpus, DiLoCo(**table), ranks_per_node=ranks)
    assert said in {fault.key: str(fault) for fault in faults}[key]


def test_all_faults_come_at_once() -> None:
    assert {fault.key for fault in broken(2, 3, DiLoCo(replicas_per_node=2, min_replicas=9))} == {
        "diloco.replicas_per_node",
        "resources.ranks_per_node",
        "diloco.min_replicas",
    }


@pytest.mark.parametrize(
    ("groups", "table", "expected"), [(1, {}, 1), (2, {}, 2), (8, {}, 2), (8, {"min_replicas": 5}, 5)]
)
def test_a_group_alone_is_no_quorum_where_there_are_others(groups: int, table: dict[str, Any], expected: int) -> None:
    assert least(DiLoCo(**table), groups) == expected


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"replicas_per_node": 2, "nodes_per_replica": 2}, "keep one of them"),
        ({"sync_every": 9, "fragments": 2}, "9 steps cannot be shared out evenly over 2 fragments"),
        (
            {"sync_every": 10, "fragments": 2, "overlap": 5},
            "5 is too large: it has to be below sync_every / fragments = 5",
        ),
        ({"sync_evry": 10}, "sync_evry"),
        ({"bits": 16}, "32, 8, 4 or 2"),
        ({"bits": 4, "top_k": 0.01}, "bits = 4 and top_k = 0.01 cannot be used together"),
    ],
)
def test_the_table_refuses(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DiLoCo(**table)


def test_the_picture_names_every_group_and_where_the_lighthouse_lives() -> None:
    drawn = picture(replica_groups(2, 4, DiLoCo(replicas_per_node=2)), 2)
    assert drawn == (
        "2 nodes, 4 replica groups of 2 ranks; an average needs 2 of them.\n"
        "\n"
        "node 0   ─┬─ lighthouse                            its port: http\n"
        "          ├─ group 0    GPU 0-1      rank 0-1      a port of its own\n"
        "          └─ group 1    GPU 2-3      rank 0-1      a port of its own\n"
        "node 1   ─┬─ group 2    GPU 0-1      rank 0-1      a port of its own\n"
        "          └─ group 3    GPU 2-3      rank 0-1      a port of its own\n"
    )


def test_the_picture_of_groups_over_nodes_says_whose_store_they_join() -> None:
    drawn = picture(replica_groups(4, 2, DiLoCo(nodes_per_replica=2)), 2).splitlines()
    assert drawn[4:] == [
        "node 1   ─── group 0    GPU 0-1      rank 2-3      meets on node 0",
        "node 2   ─── group 1    GPU 0-1      rank 0-1      a port of its own",
        "node 3   ─── group 1    GPU 0-1      rank 2-3      meets on node 2",
    ]


def test_the_picture_of_many_nodes_stays_on_a_screen() -> None:
    drawn = picture(replica_groups(64, 8, DiLoCo()), 2)
    assert "nodes 6 to 62 likewise" in drawn
    assert "node 63  ─── group 63   GPU 0-7" in drawn
    assert len(drawn.splitlines()) < 15


def diloco_plan(folder: Path, table: dict[str, Any]) -> Plan:
    job = {"name": "x", "launcher": "diloco", "resources": {"nodes": 2, "gpus_per_node": 2}, "diloco": table}
    resolved = config.load_job(write_job(folder, tomli_w.dumps(job)), cluster="local")
    lock = make_lock("frameworks-cpu")
    held = lock.packages.model_copy(update={"pip": {"torch": "2", "torchft": "0"}})
    return plan(resolved, lock.model_copy(update={"packages": held}), make_site())


def test_the_table_reaches_the_program_and_the_picture_the_run_folder(tmp_path: Path) -> None:
    made = diloco_plan(tmp_path, {"replicas_per_node": 2, "sync_every": 10, "outer_lr": 1.0, "inner": "muon"})
    text = made.text_of("roles/replica-0/program.sh")
    assert "--inner\n    muon\n    --sync-every\n    10\n    --outer-lr\n    1.0\n" in text
    assert "replicas-per-node" not in text, "the layout is the start shape's, not the program's"
    assert "4 replica groups of 1 rank" in made.text_of("layout.txt")


def test_a_group_is_started_again_as_often_as_the_table_says(tmp_path: Path) -> None:
    batch = diloco_plan(tmp_path, {"restarts": 7}).text_of("batch.sh")
    assert re.findall(r"\[policy\]=replica(?:\n.*)*?\n    \[restart\]=(\d+)", batch) == ["7", "7"]


def test_a_job_whose_gpus_do_not_divide_is_refused_before_submit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 groups cannot share the 2 GPUs of a node"):
        diloco_plan(tmp_path, {"replicas_per_node": 3})
