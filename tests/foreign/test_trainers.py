"""Transformers' Trainer, Accelerate and Lightning on a cluster: preempted, queued again, and at the end with the same loss."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.conftest import _URGENT_PARTITION, lab_on
from tests.cluster.lab import Lab
from tests.foreign.conftest import PYTHON
from tests.support import REPO

NEEDS = {"transformers": "transformers, accelerate", "accelerate": "accelerate", "lightning": "lightning"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A cluster whose partition `urgent` may take the nodes of the default one."""
    store = tmp_path_factory.mktemp("store")
    with lab_on("urgent", 2, store, tmp_path_factory.mktemp("project"), _URGENT_PARTITION) as lab:
        yield lab


def loss(run: Path) -> list[str]:
    """What each rank said at its end, in all its logs."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((run / "logs").rglob("*.log"))]
    return sorted(set(re.findall(r"final loss (\S+) after step (?:\d+)", "\n".join(texts))))


@pytest.mark.cluster
@pytest.mark.parametrize("name", NEEDS)
def test_preempted_and_resumed_to_the_same_loss(lab: Lab, name: str) -> None:
    if not Path(PYTHON).exists() or subprocess.run([PYTHON, "-c", f"import {NEEDS[name]}"], check=False).returncode:
        pytest.skip(f"{NEEDS[name]} is not installed: make foreign")
    job = (REPO / "examples" / name / "job.toml").read_text(encoding="utf-8").replace('image = "yours"', "")
    job = job.replace('script = "train.py"', f'script = "program.py"\npython = "{PYTHON}"\nseed = 3')
    program = (REPO / "examples" / name / "train.py").read_text(encoding="utf-8")
    found = {}
    for steps, interrupted in ((400, True), (400, False)):
        text = f"{job.replace('2000', str(steps))}\n[preflight]\nfree_disk_gb = 0\n"
        (lab.project / "job.toml").write_text(text, encoding="utf-8")
        (lab.project / "program.py").write_text(program, encoding="utf-8")
        run = lab.submit("--no-container")
        if interrupted:
            lab.wait(partial(began, run), run)
            lab.slurm(
                "sbatch", "--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1"
            )
        ended = lab.wait_end(run)
        assert ended["JobState"] == "COMPLETED", said(run)[-3000:]
        assert (ended["Restarts"] == "1") is interrupted, said(run)[-3000:]
        assert ("stopped after step" in said(run)) is interrupted
        found[interrupted] = loss(run)
    assert len(found[False]) == 1
    if name == "accelerate":
        assert found[True] == found[False]
    # Transformers' Trainer and Lightning drop no first backward pass, as examples/accelerate does. After a resume, DDP's first step
    # sums the gradients of four ranks in another order than later steps.
    assert [float(one) for one in found[True]] == pytest.approx([float(one) for one in found[False]], rel=1e-5)


def began(run: Path) -> bool:
    """Whether it has reported a loss."""
    return "step 20" in said(run) or "'loss'" in said(run)


def said(run: Path) -> str:
    """All that the run's programs have written."""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in (run / "logs").rglob("*.log"))
