"""The scripts of arrays and of a chain's later links: shellcheck, and which way the gate of a link goes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kit import config, shell
from kit.planning.plan import Plan
from kit.shell import Completed
from kit.submission.chain import with_links
from kit.submission.folder import write_files
from kit.sweeps.arrays import group
from kit.sweeps.shared_plans import kind_of
from tests.support import make_site, plan_of, write_job

JOB = 'name = "digits"\nlauncher = "ddp"\n[chain]\ntimes = 3\n'


# In the place of the batch script, with a header from which that of a link is made.
TRAINED = "#!/bin/bash\n#SBATCH --nodes=1\n\necho trained\n"


def chained(folder: Path, *, batch: str = "") -> Plan:
    """A plan whose run folder is `folder` itself, so that its scripts can run. batch: text of another batch script."""
    job = write_job(folder / "project", JOB)
    assert config.load_job(job, cluster="local").job.chain is not None
    made = plan_of(job, site=make_site(run_dir=folder / "run"))
    files = (replace(one, text=batch) if batch and one.name == "batch.sh" else one for one in made.files)
    return with_links(replace(made, files=tuple(files)), file="job.toml")


def link(run: Path) -> Completed:
    """Runs the copy of the link's script that Slurm keeps."""
    kept = run.parent / "slurm_script"
    if not kept.exists():
        kept.write_text((run / "link.sh").read_text())
    env = {"PATH": f"{run.parent}/tools:/usr/bin:/bin", "SLURM_JOB_ID": "8"}
    return shell.run(["bash", str(kept)], env=env, check=False)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_scripts_pass_shellcheck(tmp_path: Path) -> None:
    plan = chained(tmp_path)
    write_files(plan, tmp_path / "run")
    (array,) = group({0: kind_of(plan)}, name="digits", folder=tmp_path, first=0, max_array=10, parallel=None)
    script = tmp_path / "array.sh"
    script.write_text(array.text)
    done = shell.run(["shellcheck", "--external-sources", str(script), str(tmp_path / "run/link.sh")], check=False)
    assert done.returncode == 0, done.stdout


def test_a_task_becomes_the_batch_script_of_its_point(tmp_path: Path) -> None:
    """With the array's folder in a path that bash would take apart if it stood there unquoted."""
    (array,) = group(
        {0: kind_of(chained(tmp_path))}, name="digits", folder=tmp_path / "a $b", first=0, max_array=10, parallel=None
    )
    for task in ("0", "1"):
        batch = array.folder / task / "batch.sh"
        batch.parent.mkdir(parents=True)
        batch.write_text(f'#!/bin/bash\necho "point {task} $$"\nexit 4{task}\n')
        batch.chmod(0o755)
    script = array.folder / "batch.sh"
    script.write_text(array.text)
    done = shell.run(["bash", str(script)], env={"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "1"}, check=False)
    assert done.stdout.startswith("point 1 ")
    assert done.returncode == 41


@pytest.mark.parametrize(
    ("last", "stopped", "code", "ran"),
    [
        (None, False, 0, True),
        ({"event": "attempt"}, False, 0, True),
        ({"event": "end", "exit_code": "0"}, False, 0, False),
        ({"event": "end", "exit_code": "1"}, True, 0, True),
        ({"event": "end", "exit_code": "138"}, False, 0, True),
        ({"event": "end", "exit_code": "3"}, False, 3, False),
        ({"event": "end", "exit_code": "72"}, False, 72, False),
    ],
)
def test_the_gate_of_a_later_link(
    tmp_path: Path, last: dict[str, str] | None, stopped: bool, code: int, ran: bool
) -> None:
    run = tmp_path / "run"
    write_files(chained(tmp_path, batch=TRAINED), run)
    (run / "state").mkdir()
    if last:
        (run / "state" / "events.jsonl").write_text(json.dumps({"event": "start"}) + "\n" + json.dumps(last) + "\n")
    if stopped:
        (run / "state" / "stopped.json").touch()
    (run / "state" / "links").write_text("7\n8\n9\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scancel").write_text(f'#!/bin/bash\necho "$1" >>{tmp_path}/cancelled\n')
    (tools / "scancel").chmod(0o755)
    done = link(run)
    assert done.returncode == code, done.stderr
    assert ("trained" in done.stdout) is ran
    cancelled = tmp_path / "cancelled"
    assert (cancelled.read_text().split() if cancelled.exists() else []) == (["7", "9"] if code else [])


def _append(name: str) -> Callable[[Path], None]:
    def change(run: Path) -> None:
        with (run / name).open("a") as file:
            file.write(f"touch {run.parent}/ran\n")

    return change


def _swap(run: Path) -> None:
    """As another user does in a folder of runs that the group may write."""
    run.rename(run.with_name(".moved"))
    shutil.copytree(run.with_name(".moved"), run)
    _append("lib/log.sh")(run)


@pytest.mark.parametrize(
    "change",
    [
        _append("lib/log.sh"),
        _append("lib/chain.sh"),
        _append("batch.sh"),
        _swap,
        lambda run: run.chmod(0o775),
        lambda run: (run / "lib").chmod(0o777),
        lambda run: (run / "batch.sh").chmod(0o775),
    ],
)
def test_a_later_link_runs_nothing_of_a_changed_run_folder(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """It may wait for days, and Slurm's copy of the script sources and runs what the folder has then."""
    run = tmp_path / "run"
    write_files(chained(tmp_path, batch=TRAINED), run)
    (run / "state").mkdir()
    assert link(run).stdout == "trained"
    change(run)
    done = link(run)
    assert (done.returncode, done.stdout, (tmp_path / "ran").exists()) == (72, "", False)
    assert "the run folder is not what was submitted" in done.stderr
    assert "try: kit rerun run" in done.stderr
