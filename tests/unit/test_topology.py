"""Parallel groups of a job on Slurm's network topology. The texts are those of Slurm 22.05 (tree), 24.11 and 26.05 (both)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.slurm import parallel_group_fit
from kit.slurm.parallel_group_fit import ParallelGroup, Topology
from tests.support import make_site, plan_of, write_job

TREE = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=topo-[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=topo-[3-4]
SwitchName=top Level=1 LinkSpeed=1 Nodes=topo-[1-4] Switches=leaf[1-2]
"""
BLOCK = """\
BlockName=b1 BlockIndex=0 Nodes=topo-[1-2] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=topo-[3-4] BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=topo-[1-4] BlockSize=4
"""
JOB = """\
name = "wide"
launcher = "ddp"
script = "train.py"
args = ["--tp", "{tp}"]
[resources]
nodes = {nodes}
gpus_per_node = 4
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TREE, Topology(kind="leaf switch", largest=2)),
        (BLOCK, Topology(kind="block", largest=2)),
        ("", None),
        ("scontrol: error: No topology information available\n", None),
    ],
)
def test_the_largest_block_or_leaf_switch(text: str, expected: Topology | None) -> None:
    assert parallel_group_fit.parse(text) == expected


@pytest.mark.parametrize(
    ("hosts", "number"),
    [("a", 1), ("a,b", 2), ("a[1-2,05],b", 4), ("rack[1-3]n[01-16]", 48), ("a[008-011],b[1,3],c-d", 7)],
)
def test_hosts_are_counted(hosts: str, number: int) -> None:
    assert parallel_group_fit.count(hosts) == number


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--lr 0.1 --steps 100", None),
        ("--tensor-model-parallel-size 8 --expert-model-parallel-size 1", ("--tensor-model-parallel-size", 8)),
        # Megatron-LM splits experts as widely as the rest of the model.
        ("--tensor-model-parallel-size=4 --expert-model-parallel-size 8", ("--expert-model-parallel-size", 32)),
        (
            "--tensor_model_parallel_size 4 --expert_model_parallel_size 8 --expert_tensor_parallel_size 1",
            ("--expert-model-parallel-size", 8),
        ),
        ("--parallelism.tensor_parallel_degree 8", ("--parallelism.tensor-parallel-degree", 8)),
        ("--parallelism.expert_parallel_degree=16 --parallelism.tensor_parallel_degree -1",
         ("--parallelism.expert-parallel-degree", 16)),
        ("--tp", None),
        ("", None),
    ],
)  # fmt: skip
def test_the_group_that_options_ask_for(words: str, expected: tuple[str, int] | None) -> None:
    group = ParallelGroup(option=expected[0], ranks=expected[1]) if expected else None
    assert parallel_group_fit.largest_group(words.split()) == group


@pytest.mark.parametrize(
    ("kind", "ranks", "nodes", "segment", "says"),
    [
        ("block", 8, 2, None, None),
        ("block", 12, 6, None, "groups of 12 ranks on 3 nodes, and the largest block of the cluster has 2"),
        ("leaf switch", 12, 6, None, "the largest leaf switch of the cluster has 2"),
        ("block", 8, 4, None, "may put one on two blocks: 4 nodes are more than a block's 2"),
        ("block", 8, 4, 1, "may put one on two blocks"),
        ("block", 8, 4, 2, None),
        ("leaf switch", 8, 4, None, None),
    ],
)
def test_a_group_has_to_fit(kind: str, ranks: int, nodes: int, segment: int | None, says: str | None) -> None:
    group, found = ParallelGroup(option="--tp", ranks=ranks), Topology(kind=kind, largest=2)
    said = [str(one) for one in parallel_group_fit.broken(group, found, nodes=nodes, ranks_per_node=4, segment=segment)]
    assert (not said) if says is None else (len(said) == 1 and says in said[0])


def answering(folder: Path, text: str) -> dict[str, str]:
    """A PATH with an scontrol that prints a text, and counts how often it is asked."""
    (folder / "text").write_text(text)
    program = folder / "scontrol"
    program.write_text(f"#!/bin/bash\necho asked >>{folder}/asked\ncat {folder}/text\n")
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_a_job_is_warned_of_with_its_file_and_key(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB.format(tp=16, nodes=4))
    made = plan_of(job, site=make_site(containers=False))
    (one,) = parallel_group_fit.warnings(made, env=answering(tmp_path, BLOCK))
    assert str(one) == (
        f"{tmp_path}/job.toml: args: --tp makes groups of 16 ranks on 4 nodes, and the largest block of the cluster has 2\n"
        "  try: at most 8 ranks in a group"
    )


def test_slurm_is_not_asked_for_groups_within_a_node(tmp_path: Path) -> None:
    made = plan_of(write_job(tmp_path, JOB.format(tp=4, nodes=4)), site=make_site(containers=False))
    assert parallel_group_fit.warnings(made, env=answering(tmp_path, BLOCK)) == []
    assert not (tmp_path / "asked").exists()


def test_without_scontrol_nothing_is_said(tmp_path: Path) -> None:
    made = plan_of(write_job(tmp_path, JOB.format(tp=16, nodes=4)), site=make_site(containers=False))
    assert parallel_group_fit.warnings(made, env={"PATH": str(tmp_path)}) == []
