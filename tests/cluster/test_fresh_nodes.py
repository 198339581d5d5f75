"""The first job of a user on nodes that have no cache folder of his: every one starts (A18 failed four times of six)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.conftest import lab_on

pytestmark = [pytest.mark.cluster, pytest.mark.faults]

STARTS = 20


@pytest.mark.parametrize("runtime", ["bubblewrap", "pyxis"])
def test_the_first_job_of_a_user_starts(
    train_cpu: Path, tmp_path: Path, runtime_of: Callable[[str], list[str]], runtime: str
) -> None:
    """Both nodes begin without the folder, and the container probe mounts what the preflight is about to make there."""
    with lab_on("fresh", 2, train_cpu, tmp_path) as lab:
        file = tmp_path / "clusters" / f"{lab.cluster.name}.toml"
        # A folder of each run's own is a new one each time.
        file.write_text(file.read_text().replace("[paths]\n", '[paths]\ncache = "{run}/node/cache"\n'))
        lab.write(
            'script = "program.py"\nshape = "srun"\npython = "/usr/bin/python3"\n[resources]\ngpus_per_node = 1\n',
            "print('trained')\n",
        )
        runs = [lab.submit(*runtime_of(runtime)) for _ in range(STARTS)]
        ends = [lab.wait_end(run)["JobState"] for run in runs]
        logs = [(run / "logs" / "batch.log").read_text() for run in runs]
        failed = [log for log, end in zip(logs, ends, strict=True) if end != "COMPLETED"]
        assert not failed, f"{STARTS - len(failed)} of {STARTS} start; the first that did not:\n{failed[0]}"
        assert all("trained" in (run / "logs" / "rank-1.log").read_text() for run in runs)
        print(f"{runtime}: {STARTS} of {STARTS} start")
