"""GPUs as Slurm writes them, and names of partitions."""

from __future__ import annotations

import pytest

from kit.slurm.detect_cluster import row_name, row_of, task_prolog
from kit.slurm.short_forms import count_gpus


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("(null)", 0),
        ("gpu:4", 4),
        ("gpu:h100:8(S:0-1)", 8),
        ("gpu:h100:8(S:0-1),nvme:1", 8),
        ("nvme:3", 0),
        ("gpu:a100:4,gpu:h100:2", 6),
        ("gpu:h100:8(S:0-1),gpu:t4:1(IDX:0)", 9),
    ],
)
def test_gpus_of_a_node(gres: str, count: int) -> None:
    assert count_gpus(gres) == count


@pytest.mark.parametrize(
    ("partition", "name"), [("gpu", "gpu"), ("GPU Long!", "gpu-long"), ("a_b.c-1", "a_b.c-1"), ("__", "partition")]
)
def test_a_partition_becomes_a_name_of_the_kit(partition: str, name: str) -> None:
    assert row_name(partition) == name


def test_limits_of_a_partition() -> None:
    assert row_of({"PartitionName": "gpu", "MaxTime": "1-00:00:00", "MaxNodes": "8"}) == {
        "partition": "gpu", "qos": False, "time": "1-00:00:00", "max_nodes": 8,
    }  # fmt: skip
    assert row_of({"PartitionName": "gpu", "MaxTime": "UNLIMITED", "MaxNodes": "UNLIMITED"}) == {
        "partition": "gpu",
        "qos": False,
    }


@pytest.mark.parametrize(("shown", "kept"), [("(null)", {}), ("/opt/site/x.sh", {"task_prolog": "/opt/site/x.sh"})])
def test_the_sites_task_prolog_comes_into_the_cluster_file(shown: str, kept: dict[str, str]) -> None:
    assert task_prolog({"TaskProlog": shown}) == kept
