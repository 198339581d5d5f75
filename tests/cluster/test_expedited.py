"""A site that lets jobs be queued again without the two minutes for which Slurm holds them (25.11 and later)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit import shell
from tests.cluster.conftest import lab_on, skip_without_slurm
from tests.cluster.test_faults import read, write

pytestmark = pytest.mark.cluster


def test_a_job_that_is_queued_again_is_not_held(tmp_path: Path) -> None:
    skip_without_slurm()
    version = re.findall(r"\d+", shell.run(["slurmctld", "-V"]).stdout)
    if tuple(map(int, version[:2])) < (25, 11):
        pytest.skip("slurmctld is not of 25.11 or later: make matrix SUITES=sid")
    conf = {"SlurmctldParameters": "enable_expedited_requeue"}
    with lab_on("expedite", 2, tmp_path / "store", tmp_path, conf) as lab:
        file = tmp_path / "clusters" / f"{lab.cluster.name}.toml"
        file.write_text(f"expedited_requeue = true\n{file.read_text()}")
        write(lab, "[retry]\nrequeue = 1\n", how="kill")
        run = lab.submit("--no-container")
        job = lab.wait_end(run)
        assert (job["JobState"], job["Restarts"], job["ExpeditedRequeue"]) == ("COMPLETED", "1", "Yes"), read(
            run, "batch"
        )
        assert job["EligibleTime"] == job["SubmitTime"], "of the requeue"
        assert lab.settled(run) == []
        found = Path(lab.kit("cluster", "detect", "found", env=lab.cluster.env()).stdout.strip())
        assert "expedited_requeue = true" in found.read_text()
