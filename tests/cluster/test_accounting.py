"""A cluster with accounting: QOS limits that Slurm holds, and runs that slurmctld has forgotten."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.slurm.embedded import accounting
from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab, job_id

pytestmark = pytest.mark.cluster

FILLED = 50_000_000
FILLS_AND_SLEEPS = f"import time; filled = bytearray({FILLED}); time.sleep(600)\n"


@pytest.fixture(scope="module")
def accounting_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A project on a cluster with accounting whose controller forgets a job two seconds after its end."""
    if missing := accounting.missing_programs():
        pytest.skip(
            f"slurmdbd and MariaDB are not installed as a whole: {', '.join(missing)}; scripts/setup.sh --with-tests"
        )
    project = tmp_path_factory.mktemp("accounting")
    with lab_on("acct", 2, project / "store", project, {"MinJobAge": "2"}, accounting=True) as lab:
        yield lab


def listed(lab: Lab, run: Path) -> dict[str, object]:
    """What `kit runs --json` says of a run."""
    rows: list[dict[str, object]] = json.loads(lab.kit("runs", "--json").stdout)
    return next(row for row in rows if row["run"] == run.name)


def test_a_forgotten_job_that_left_no_record_is_known_by_accounting(accounting_lab: Lab) -> None:
    lab = accounting_lab
    lab.write('shape = "srun"\nscript = "program.py"\n[resources]\nnodes = 1\ngpus_per_node = 1\n', FILLS_AND_SLEEPS)
    run = lab.submit("--no-container")
    sampled = (
        "sstat",
        "--allsteps",
        "--noheader",
        "--parsable2",
        "--noconvert",
        "--format=MaxRSS",
        f"--jobs={job_id(run)}",
    )
    lab.wait(lambda: any(float(size or 0) > FILLED for size in lab.slurm(*sampled, check=False).splitlines()), run)
    # The batch script has no time for its record.
    os.kill(lab.batch(run).pid, signal.SIGKILL)
    lab.wait(lambda: not lab.slurm("squeue", "--noheader", "--states=all"), run)
    seen = listed(lab, run)
    assert (seen["state"], seen["exit_code"]) == ("FAILED", 137)
    status = lab.status(run)
    assert status["state"] == seen["state"]
    assert int(str(status["max_rss"]).split()[0]) >= FILLED >> 20, status
    assert status["cpu_time"]


def test_a_job_beyond_its_qos_is_refused_in_slurms_words(accounting_lab: Lab) -> None:
    lab = accounting_lab
    lab.write("[slurm]\nextra = []\n[resources]\nnodes = 2\ngpus_per_node = 1\n")
    path = lab.project / "clusters" / f"{lab.cluster.name}.toml"
    path.write_text(path.read_text() + '[qos.single]\nqos = "single"\naccount = "research"\n')
    done = lab.kit("submit", "--cluster", lab.cluster.name, "--no-container", "--set", "qos=single", check=False)
    assert done.returncode != 0
    assert "QOSMaxNodePerJobLimit" in done.stderr
