"""slurm.output and slurm.error on the real cluster: Slurm expands the patterns, and `kit logs` finds what it made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.lab import Lab, job_id

pytestmark = pytest.mark.cluster

JOB = """
script = "program.py"
shape = "srun"
container.runtime = "bare"
python = "/usr/bin/python3"
[resources]
nodes = 1
gpus_per_node = 1
"""
PROGRAM = "print('trained')\n"
# Rank 0 fails once rank 1 has ended: the end of a failed rank would end the other before it prints.
FAILS_LAST = """
import os, pathlib, sys, time
print(os.environ["RANK"], sys.argv[1:], flush=True)
ended = pathlib.Path(os.environ["KIT_RUN_DIR"], "ended")
if os.environ["RANK"] == "1":
    ended.touch()
    sys.exit()
while not ended.exists():
    time.sleep(0.1)
sys.exit(9)
"""


def written(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_patterns_are_expanded_and_logs_lead_there(lab: Lab) -> None:
    every = "%x=%j=%A=%N=%n=%s=%t=%u=%%=%8j.out"
    lab.write(f"{JOB}[slurm]\noutput = 'out/%u/{every}'\nerror = 'err/%J.err'\n", PROGRAM)
    run = lab.run()
    assert run.done.returncode == 0, run.done.stderr
    number = job_id(run.folder)
    (error,) = written(lab.project / "err").items()
    ((user, outputs),) = [(p.name, written(p)) for p in (lab.project / "out").iterdir()]
    (name,) = outputs
    words = name.split("=")
    assert words[:3] == ["test", str(number), str(number)]
    assert words[3] in {node.name for node in lab.cluster.nodes}
    assert words[-3:] == [user, "%", f"{number:08d}.out"]
    assert str(number) in error[0]
    assert "world size 1" in error[1], "the kit's own lines are errors, as log lines of programs are"
    assert not (run.folder / "logs/batch.log").exists()
    assert f"error-{number} | " in (said := lab.kit("logs", run.folder.name).stdout)
    assert "world size 1" in said
    assert "trained" in said
    assert (run.folder / f"logs/batch-{number}.log").readlink() == lab.project / "out" / user / name


def test_each_task_of_an_array_has_its_own(lab: Lab) -> None:
    lab.write(f"{JOB}[slurm]\noutput = 'array/%A_%a.out'\n[sweep.grid]\nseed = [1, 2, 3]\n", PROGRAM)
    folder = Path(lab.kit("sweep", "-c", lab.cluster.name, "--wait").stdout.splitlines()[-1])
    runs = sorted((folder / "points").iterdir())
    array = json.loads((runs[0] / "manifest.json").read_text())["job_id"]
    found = written(lab.project / "array")
    assert set(found) == {f"{array}_{task}.out" for task in range(3)}
    for task, run in enumerate(runs):
        assert f"run folder {run}" in found[f"{array}_{task}.out"]
        assert f"run folder {run}" in lab.kit("logs", run.name).stdout


def test_a_job_that_is_queued_again_goes_on_in_its_file(lab: Lab) -> None:
    lab.write(
        f"{JOB}[slurm]\nrequeue = true\noutput = '{{run}}/logs/%j.log'\n",
        "import os, time\nopen('began', 'w').close()\nwhile os.environ['KIT_RESTART_COUNT'] == '0':\n    time.sleep(1)\n",
    )
    run = lab.submit()
    # Ranks that did not begin before the job was queued again have not been started before: their count stays 0.
    lab.wait((run / "workspace" / "began").exists, run)
    lab.slurm("scontrol", "requeue", str(job_id(run)))
    lab.wait(lambda: lab.status(run)["state"] == "COMPLETED", run)
    log = (run / "logs" / f"{job_id(run)}.log").read_text()
    assert log.count("run folder") == 2
    assert [path.name for path in (run / "logs").glob("batch*")] == [], "no second name for a log of the run"


def test_a_refused_submit_leaves_no_folder(lab: Lab) -> None:
    lab.write(f"{JOB}[slurm]\noutput = 'never/%j.out'\npartition = 'nowhere'\n", PROGRAM)
    assert lab.kit("submit", "-c", lab.cluster.name, check=False).returncode == 6
    assert not (lab.project / "never").exists()


def test_kit_run_without_a_job_file(lab: Lab) -> None:
    """The program's own exit code, its words, and the file that repeats it."""
    (lab.project / "job.toml").unlink(missing_ok=True)
    (lab.project / "fit.py").write_text(FAILS_LAST)
    words = ["run", "fit.py", "-c", lab.cluster.name, "--no-container", "--launcher", "srun", "--save", "job.toml"]
    shape = ["--nodes", "2", "--gpus", "1", "--set", 'python="/usr/bin/python3"']
    done = lab.kit(*words, *shape, "--", "--lr", "0.1", check=False)
    assert done.returncode == 9, done.stderr
    assert "rank-0 | 0 ['--lr', '0.1']" in done.stdout
    assert "rank-1 | 1 ['--lr', '0.1']" in done.stdout
    line = f"kit submit -c {lab.cluster.name} --no-container --follow"
    assert f"job.toml has what was used: '{line}' repeats it" in done.stderr
    shown = lab.kit(*line.removeprefix("kit ").removesuffix(" --follow").split(), "--dry-run")
    assert "--nodes=2" in shown.stdout
