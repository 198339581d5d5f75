"""A run is its code: what was submitted runs, whatever becomes of the folder while the job waits and when it is queued again."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

# Says what it finds, writes beside itself, and asks for a second start by dying once.
PROGRAM = """
import json, os, pathlib, signal, sys
here = pathlib.Path(__file__).parent
start = int(os.environ["KIT_RESTART_COUNT"])
import helper
found = sorted(str(p.relative_to(here)) for p in here.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
said = {"program": "submitted", "helper": helper.SAID, "files": found, "folder": os.getcwd()}
pathlib.Path(os.environ["KIT_RUN_DIR"], f"said-{start}.json").write_text(json.dumps(said))
(here / "outputs").mkdir(exist_ok=True)
(here / "outputs" / f"{start}.txt").write_text("written")
(here / "notes.txt").write_text("changed by the run")
if start == 0:
    os.kill(os.getpid(), signal.SIGKILL)
"""
JOB = """script = "program.py"
shape = "srun"
python = "python3"
[resources]
nodes = 1
gpus_per_node = 1
[slurm]
extra = ["--begin=now+1hour"]
[retry]
requeue = 1
[preflight]
free_disk_gb = 0
"""
KEPT = ["helper.py", "job.toml", "notes.txt", "program.py"]


@pytest.fixture
def folder(lab: Lab) -> Path:
    """The job in a folder of its own."""
    place = lab.project / "code"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "job.toml").write_text(f'name = "snap"\nlauncher = "ddp"\n{JOB}')
    (place / "program.py").write_text(PROGRAM)
    (place / "helper.py").write_text('SAID = "submitted"\n')
    (place / "notes.txt").write_text("submitted\n")
    return place


def begin(lab: Lab, run: Path) -> None:
    """Its hour has come."""
    job_id = json.loads((run / "manifest.json").read_text())["job_id"]
    assert lab.status(run)["state"] == "PENDING"
    lab.slurm("scontrol", "update", f"JobId={job_id}", "StartTime=now")


def said(run: Path, start: int) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / f"said-{start}.json").read_text())
    return found


def test_what_was_submitted_runs_after_edits_and_after_a_requeue(lab: Lab, runtime: str, folder: Path) -> None:
    options = ["--no-container"] if runtime == "bare" else ["--set", f"container.runtime={runtime}"]
    run = lab.submit(str(folder / "job.toml"), *options)
    tree = json.loads((run / "manifest.json").read_text())["workspace"]["tree"]
    (folder / "program.py").write_text("raise SystemExit(3)\n")
    (folder / "helper.py").unlink()
    (folder / "added.py").write_text("")
    begin(lab, run)
    assert lab.wait_end(run)["JobState"] == "COMPLETED"
    first, second = said(run, 0), said(run, 1)
    assert (first["helper"], first["files"]) == ("submitted", KEPT)
    # The second start has the code of the first, and what that wrote.
    assert (second["helper"], second["files"]) == ("submitted", sorted([*KEPT, "outputs/0.txt"]))
    assert first["folder"] == (str(run / "workspace") if runtime == "bare" else "/workspace")
    assert "1 of the submitted files were changed by the run, such as notes.txt" in (run / "logs/batch.log").read_text()
    # Neither the user's folder nor the store has any of it.
    assert sorted(path.name for path in folder.iterdir()) == ["added.py", "job.toml", "notes.txt", "program.py"]
    stored = lab.project / f"runs/.snapshots-{os.geteuid()}/trees" / tree / "files"
    assert sorted(path.name for path in stored.iterdir()) == KEPT
    assert (stored / "notes.txt").read_text() == "submitted\n"
    assert (run / "workspace/outputs/1.txt").read_text() == "written"
    assert str(lab.status(run)["workspace"]).startswith(f"snapshot {tree[:12]} of {folder}, 4 files")


def test_a_live_folder_is_the_folder_itself(lab: Lab, folder: Path) -> None:
    run = lab.submit(str(folder / "job.toml"), "--no-container", "--set", "snapshot=false")
    (folder / "helper.py").write_text('SAID = "edited"\n')
    begin(lab, run)
    assert lab.wait_end(run)["JobState"] == "COMPLETED"
    assert said(run, 0)["helper"] == "edited"
    assert (folder / "outputs/0.txt").exists()
    assert lab.status(run)["workspace"] == f"live folder {folder}"
