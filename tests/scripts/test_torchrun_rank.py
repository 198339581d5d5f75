"""bin/torchrun-rank.sh, as torchrun starts it: every line of a rank is in its log, or in a file that is linked beside it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.scripts.test_worker import TASK, run_folder

JOB = 'name = "x"\nlauncher = "torchrun"\nscript = "look.py"\n[resources]\nnodes = 2\ngpus_per_node = 2\n[torchrun]\ntee = "3"\n'
PRINTS = "import sys\nprint('printed')\nraise ValueError('sad')\n"


def start(run: Path, attempt: int, streams: dict[str, str]) -> None:
    """Start a rank as torchrun does. streams: where each stream goes."""
    folder = run / "logs/torchrun/none_x" / f"attempt_{attempt}" / "1"
    folder.mkdir(parents=True)
    torchruns = {
        **{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "1", "TORCHELASTIC_RUN_ID": "none"},
        **{"KIT_TORCHRUN_LOGS": "1", "KIT_FAILURES": "failures-0/train-0", "KIT_PROGRAM_FILE": "program.sh"},
    }
    env = {**TASK, **torchruns, "PATH": os.environ["PATH"], "TORCHELASTIC_ERROR_FILE": f"{folder}/error.json"}
    (run / "state/failures-0/train-0").mkdir(parents=True, exist_ok=True)
    paths = {name: Path(to) if to.startswith("/") else folder / to for name, to in streams.items()}
    with paths["stdout"].open("ab") as out, paths["stderr"].open("ab") as err:
        done = subprocess.run([run / "bin/torchrun-rank.sh"], env=env, stdout=out, stderr=err, check=False)
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("streams", "linked"),
    [
        ({"stdout": "stdout.log", "stderr": "stderr.log"}, {"stdout": "printed", "stderr": "ValueError: sad"}),
        ({"stdout": "stdout.log", "stderr": "/dev/null"}, {"stdout": "printed"}),
        ({"stdout": "/dev/null", "stderr": "/dev/null"}, {}),
    ],
    ids=["both", "stdout", "filtered"],
)
def test_no_line_is_lost(streams: dict[str, str], linked: dict[str, str], tmp_path: Path) -> None:
    run = run_folder(tmp_path, JOB)
    (tmp_path / "job/look.py").write_text(PRINTS)
    for attempt in (0, 1):
        start(run, attempt, streams)
    own = (run / "logs/rank-3.log").read_text()
    assert own.count("rank 3 of 4: node rank 1, local rank 1") == 2
    found = {path.name: path.read_text().strip().splitlines()[-1] for path in (run / "logs").glob("rank-3.*.log")}
    assert found == {f"rank-3.{n}.{stream}.log": line for n in (1, 2) for stream, line in linked.items()}
    for stream, line in {"stdout": "printed", "stderr": "ValueError: sad"}.items():
        assert own.count(f"{line}\n") == (0 if stream in linked else 2)


def test_files_outside_the_run_folder_are_linked_by_their_path(tmp_path: Path) -> None:
    """A second name of the file is not possible on another file system."""
    run = run_folder(tmp_path, JOB)
    (tmp_path / "job/look.py").write_text(PRINTS)
    (run / "logs/torchrun").symlink_to(Path("/dev/shm") / f"kit-test-{os.getpid()}")
    Path("/dev/shm", f"kit-test-{os.getpid()}").mkdir()
    try:
        start(run, 0, {"stdout": "stdout.log", "stderr": "stderr.log"})
        assert (run / "logs/rank-3.1.stderr.log").is_symlink()
        assert "ValueError: sad" in (run / "logs/rank-3.1.stderr.log").read_text()
    finally:
        subprocess.run(["rm", "-rf", f"/dev/shm/kit-test-{os.getpid()}"], check=True)
