"""Two of the faults of `make sick`, which runs all of them on eight ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.lab import Lab
from tests.sick.faults import FAULTS

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).parents[1] / "sick" / "program.py"
SICK = 3


def start(lab: Lab, fault: str, shape: str, runtime: list[str]) -> Path:
    """Four ranks on two nodes, of which rank 3 falls ill at the sixth step."""
    args = json.dumps([fault, str(SICK), "0.3"])
    lab.write(
        f'script = "program.py"\nshape = "{shape}"\nargs = {args}\n[preflight]\nfree_disk_gb = 0\n',
        PROGRAM.read_text(encoding="utf-8"),
    )
    return lab.submit(*runtime)


def why(lab: Lab, run: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(lab.kit("why", run.name, "--json").stdout)
    return said


def test_a_tensor_of_another_shape_names_the_rank_that_brought_it(
    lab: Lab, runtime_of: Callable[[str], list[str]]
) -> None:
    """Gloo's own message comes from whichever rank received it, and may be another one's."""
    run = start(lab, "shape", "torchrun", runtime_of("bubblewrap"))
    lab.wait_end(run)
    said = why(lab, run)
    assert said["rule"] == FAULTS["shape"].rule, said
    assert said["line"].startswith(f"rank {SICK} on "), said["line"]


def test_a_save_that_never_ends_is_no_slow_save(lab: Lab, runtime_of: Callable[[str], list[str]]) -> None:
    """Two saves took no time; the third is a stall long before the ten minutes that a first save has."""
    run = start(lab, "save", "srun", runtime_of("bubblewrap"))
    try:
        lab.wait((run / "state" / "stall-1" / "complete").exists, run, seconds=120)
        said = why(lab, run)
        assert said["rule"] == FAULTS["save"].rule, said
        assert f"rank {SICK} (" in said["line"], said["line"]
        texts = [path.read_text(encoding="utf-8") for path in run.glob("state/stall-1/rank-*.txt")]
        assert len(texts) == 4
        assert sum("kit: collective 0 #" in text for text in texts) == 4, "torch's flight recorder, over gloo"
    finally:
        lab.slurm("scancel", str(lab.job(run)["JobId"]))
    lab.wait_end(run)
    assert lab.settled(run) == []
