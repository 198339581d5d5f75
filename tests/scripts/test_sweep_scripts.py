"""The scripts of arrays and of a chain's later links: shellcheck, and which way the gate of a link goes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kit import config, shell
from kit.planning.plan import Plan
from kit.submission.chain import with_links
from kit.submission.folder import write_files
from kit.sweeps.arrays import group
from kit.sweeps.shared_plans import kind_of
from tests.support import make_site, plan_of, write_job

JOB = 'name = "digits"\nlauncher = "ddp"\n[chain]\ntimes = 3\n'


def chained(folder: Path) -> Plan:
    """A plan whose run folder is `folder` itself, so that its scripts can run."""
    job = write_job(folder / "project", JOB)
    assert config.load_job(job, cluster="local").job.chain is not None
    return with_links(plan_of(job, site=make_site(run_dir=folder / "run")), file="job.toml")


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
    write_files(chained(tmp_path), run)
    (run / "state").mkdir()
    if last:
        (run / "state" / "events.jsonl").write_text(json.dumps({"event": "start"}) + "\n" + json.dumps(last) + "\n")
    if stopped:
        (run / "state" / "stopped.json").touch()
    (run / "state" / "links").write_text("7\n8\n9\n")
    (run / "batch.sh").write_text("#!/bin/bash\necho trained\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scancel").write_text(f'#!/bin/bash\necho "$1" >>{tmp_path}/cancelled\n')
    (tools / "scancel").chmod(0o755)
    env = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_JOB_ID": "8"}
    done = shell.run(["bash", str(run / "link.sh")], env=env, check=False)
    assert done.returncode == code, done.stderr
    assert ("trained" in done.stdout) is ran
    cancelled = tmp_path / "cancelled"
    assert (cancelled.read_text().split() if cancelled.exists() else []) == (["7", "9"] if code else [])
