"""`kit diff` of runs that a real Slurm ran."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

# Reports what a training would: its loss follows from an argument and from a number in the code.
PROGRAM = """
import json, os, sys
rate, factor = float(sys.argv[1]), 1.0
with open(os.path.join(os.environ["KIT_RUN_DIR"], "metrics.jsonl"), "a") as out:
    for step in range(1, 6):
        loss = 10.0 - step if step < 3 else 10.0 - step * rate * factor
        print(json.dumps({"kind": "step", "time": "t", "restart": 0, "step": step, "loss": loss}), file=out)
"""
JOB = """name = "compared"
launcher = "ddp"
script = "program.py"
shape = "srun"
python = "python3"
seed = 1
args = ["1.0"]
[resources]
nodes = 1
gpus_per_node = 1
[preflight]
free_disk_gb = 0
"""


@pytest.fixture
def folder(lab: Lab) -> Path:
    """The job in a folder of its own."""
    place = lab.project / "compared"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "job.toml").write_text(JOB)
    (place / "program.py").write_text(PROGRAM)
    return place


def test_a_changed_key_and_a_changed_file(lab: Lab, folder: Path) -> None:
    job, node = str(folder / "job.toml"), f"slurm.nodelist={lab.cluster.nodes[0].name}"
    submit = (job, "--no-container", "--set", node)
    a = lab.run(*submit).folder
    # The snapshot of another name, so that only the program differs.
    (folder / "program.py").write_text(
        PROGRAM.replace("factor = float(sys.argv[1]), 1.0", "factor = float(sys.argv[1]), 1.5")
    )
    b = lab.run(*submit, "--set", 'args=["0.5"]').folder
    found = json.loads(lab.kit("diff", a.name, b.name, "--json").stdout)
    assert found["conclusion"] == "the key args and a file of the code differ; loss diverges at step 3, by 0.75"
    (key,) = found["keys"]
    assert (key["a"], key["b"], key["set_by_b"]) == (["1.0"], ["0.5"], "--set")
    assert "job.toml" in key["set_by_a"]
    (file,) = found["code"]["files"]
    assert file["path"] == "program.py"
    assert "1.5" in file["patch"]
    assert (found["outcome"], found["nodes"], found["cluster"], found["kit"]) == ([], [], [], [])
    assert found["unknown"] == []
    text = lab.kit("diff", a.name, b.name).stdout
    assert "loss diverges at step 3: 7 -> 7.75, by 0.75" in text
    assert lab.kit("diff", a.name, a.name).stdout.splitlines()[2] == "nothing that is recorded differs"


def test_points_of_a_sweep_and_what_is_no_run(lab: Lab, folder: Path) -> None:
    (folder / "job.toml").write_text(JOB.replace('args = ["1.0"]\n', "") + '[sweep.grid]\nargs = [["1.0"], ["2.0"]]\n')
    done = lab.kit("sweep", str(folder / "job.toml"), "--cluster", lab.cluster.name, "--no-container", "--wait")
    sweep = Path(done.stdout.splitlines()[-1])
    found = json.loads(lab.kit("diff", f"{sweep.name}.0", f"{sweep.name}.1", "--json").stdout)
    assert [(one["key"], one["a"], one["b"]) for one in found["keys"]] == [("args", ["1.0"], ["2.0"])]
    assert found["code"]["files"] == []
    assert found["metrics"]["parted"][0]["step"] == 3
    refused = lab.kit("diff", sweep.name, f"{sweep.name}.1", check=False)
    assert refused.returncode == 7
    assert "Traceback" not in refused.stderr
