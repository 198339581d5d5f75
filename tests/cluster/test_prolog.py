"""A site whose prolog takes long: the nodes of a job start late, each when its own prolog has ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab
from tests.cluster.test_faults import read

pytestmark = pytest.mark.cluster

JOB = 'script = "program.py"\nshape = "srun"\npython = "/usr/bin/python3"\n'


@pytest.fixture(scope="module")
def prolog_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A project on a cluster whose prolog takes twelve seconds, or as long as the file `hold` is there."""
    project = tmp_path_factory.mktemp("prolog")
    prolog = project / "prolog.sh"
    prolog.write_text(
        f"""#!/bin/bash
cd "{project}" || exit 0
echo >>begun
[[ -e hold ]] || exec sleep 12
while [[ -e hold ]]; do sleep 0.1; done
"""
    )
    prolog.chmod(0o755)
    # Without PrologFlags a node runs it before the first task that it gets: the second node's begins with the preflight's step.
    with lab_on("prolog", 2, project / "store", project, {"Prolog": str(prolog)}) as lab:
        yield lab


def test_a5_a_cancel_during_the_prolog_cancels(prolog_lab: Lab) -> None:
    """Slurm says RUNNING, and there is no batch script that could pass a signal on."""
    lab = prolog_lab
    hold = lab.project / "hold"
    hold.touch()
    (lab.project / "begun").unlink(missing_ok=True)
    lab.write(JOB, "print('trained')\n")
    try:
        run = lab.submit("--no-container")
        lab.wait((lab.project / "begun").exists, run)
        lab.kit("cancel", run.name)
    finally:
        hold.unlink()
    assert lab.wait_end(run)["JobState"] == "CANCELLED"
    assert not list((run / "logs").glob("rank-*"))
    assert lab.settled(run) == []


@pytest.mark.faults
def test_a3_a_prolog_of_twelve_seconds_is_no_clock_fault(prolog_lab: Lab) -> None:
    """The preflight's task on the second node begins twelve seconds after that on the first."""
    lab = prolog_lab
    lab.write(JOB, "print('trained')\n")
    run = lab.run("--no-container")
    assert run.done.returncode == 0, run.log("batch")
    assert "clock" not in read(run.folder, "batch")
    assert "trained" in run.log("rank-3")
    assert lab.settled(run.folder) == []
