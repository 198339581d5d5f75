"""The budget of a wide job: what it asks of slurmctld does not grow with its nodes, but for Slurm's own bookkeeping of them.

Nor do the files that it leaves in its run folder, but for the logs of the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab
from tests.cluster.width import counts, measured

pytestmark = pytest.mark.cluster

# A step is asked for again while slurmctld is busy; that is one more, not one more for each node.
SLACK = 1


def check(lab: Lab, narrow: int, wide: int) -> None:
    few, many = measured(lab, narrow), measured(lab, wide)
    grown = {
        kind: (few.of_the_kit[kind], count)
        for kind, count in many.of_the_kit.items()
        if count > few.of_the_kit[kind] + SLACK
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


def test_sdiags_table_is_read() -> None:
    shown = (
        "Remote Procedure Call statistics by message type\n"
        "\tREQUEST_NODE_INFO                       ( 2007) count:12     ave_time:306    total_time:306\n"
        "Remote Procedure Call statistics by user\n\troot            (       0) count:28     ave_time:1\n"
    )
    assert counts(shown) == {"REQUEST_NODE_INFO": 12}
