"""The budget of a wide job: what it asks of slurmctld does not grow with its nodes, but for Slurm's own bookkeeping of them.

Nor do the files that it leaves in its run folder, but for the logs of the ranks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab, job_id
from tests.cluster.width import ASKED_AGAIN, SLURMS_OWN, counts, measured

pytestmark = pytest.mark.cluster

WAITS = """\
import os, pathlib, time
(pathlib.Path(os.environ["KIT_RUN_DIR"]) / f"up-{os.environ['KIT_ROLE']}-{os.environ['RANK']}").touch()
time.sleep(600)
"""


def check(lab: Lab, narrow: int, wide: int) -> None:
    few, many = measured(lab, narrow), measured(lab, wide)
    grown = {
        kind: (few.of_the_kit[kind], count)
        for kind, count in many.of_the_kit.items()
        if count > few.of_the_kit[kind] + ASKED_AGAIN
    }
    assert not grown, f"RPCs at {narrow} and {wide} nodes: {grown}"
    assert many.files - few.files == many.rank_logs - few.rank_logs, "only the ranks' own logs are more"


@pytest.fixture(scope="module")
def broad_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A project on a cluster of sixteen nodes."""
    project = tmp_path_factory.mktemp("broad")
    with lab_on("broad", 16, project / "store", project) as lab:
        yield lab


def test_rpcs_and_files_do_not_grow_with_nodes(broad_lab: Lab) -> None:
    check(broad_lab, 4, 16)


@pytest.mark.slow
def test_rpcs_and_files_do_not_grow_up_to_256_nodes(tmp_path_factory: pytest.TempPathFactory) -> None:
    project = tmp_path_factory.mktemp("width")
    with lab_on("w", 256, project / "store", project) as lab:
        check(lab, 4, 256)


@pytest.mark.slow
def test_a_running_job_asks_twice_a_minute(broad_lab: Lab) -> None:
    """Whatever it has of roles, spares and replicas; in two minutes of sdiag, while the test asks nothing."""
    lab = broad_lab
    replicas = "".join(
        f'[roles.{name}]\nscript = "program.py"\npolicy = "replica"\nrestart = 2\nnodes = 4\nranks_per_node = 1\n'
        for name in ("a", "b", "c")
    )
    lab.write(f"[resources]\ngpus_per_node = 1\n[retry]\nspares = 2\n{replicas}", WAITS, launcher="roles")
    run = lab.submit("--no-container")
    try:
        lab.wait(lambda: len(list(run.glob("up-*"))) == 12, run)
        time.sleep(5)
        lab.slurm("sdiag", "--reset")
        time.sleep(120)
        asked = counts(lab.slurm("sdiag"))
    finally:
        lab.slurm("scancel", str(job_id(run)))
    lab.wait_end(run)
    often = {kind: count for kind, count in asked.items() if kind not in SLURMS_OWN and count > 4 + 1}
    assert not often, asked
    assert any(kind not in SLURMS_OWN for kind in asked), "the job looks at its nodes"


def test_sdiags_table_is_read() -> None:
    shown = (
        "Remote Procedure Call statistics by message type\n"
        "\tREQUEST_NODE_INFO                       ( 2007) count:12     ave_time:306    total_time:306\n"
        "Remote Procedure Call statistics by user\n\troot            (       0) count:28     ave_time:1\n"
    )
    assert counts(shown) == {"REQUEST_NODE_INFO": 12}
