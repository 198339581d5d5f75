"""Commands over ssh, through a real sshd: sweeps, stages, resume, rerun, export, shells, stacks, images, tmux."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from kit.slurm.embedded import EmbeddedCluster
from tests.cluster.conftest import short_folder
from tests.cluster.lab import TIMEOUT_S
from tests.cluster.ssh_lab import Far, far_lab, write_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.root]

SWEEP = """
[sweep]
metric = "loss"
goal = "min"
[sweep.grid]
"env.CODE" = [0, 3]
"env.STEPS" = [1, 2]
"""
REPORTS = """
import json
if os.environ.get("RANK", "0") == "0":
    with open(os.environ["KIT_RUN_DIR"] + "/metrics.jsonl", "a") as sink:
        sink.write(json.dumps({"step": 1, "loss": float(os.environ.get("STEPS", "1"))}) + "\\n")
"""


@pytest.fixture(scope="module")
def far(cluster: EmbeddedCluster) -> Iterator[Far]:
    with short_folder() as folder, far_lab(cluster, folder) as lab:
        yield lab


def job_of_its_own(far: Far, name: str, more: str, program: str = "") -> str:
    """Another job file beside the first; its name."""
    (far.project / f"{name}.toml").write_text(
        (far.project / "job.toml").read_text().replace('"far"', f'"{name}"').replace("program.py", f"{name}.py") + more
    )
    text = (far.project / "program.py").read_text()
    (far.project / f"{name}.py").write_text(text.replace("raise SystemExit", program + "raise SystemExit"))
    return f"{name}.toml"


def test_a_run_is_resumed_with_its_secrets(far: Far) -> None:
    (far.project / "again.py").write_text(
        "import os, pathlib\n"
        "mark = pathlib.Path(os.environ['KIT_RUN_DIR'], 'once-' + os.environ['RANK'])\n"
        "there = mark.exists()\n"
        "mark.touch()\n"
        "raise SystemExit(0 if there and os.environ['TOKEN'] == 'of-value' else 5)\n"
    )
    run = far.submit_with({"TOKEN": "of-value"}, "--set", "script=again.py", "--set", 'secrets.env=["TOKEN"]')
    ended = far.wait(run, "FAILED")
    first = ended["job_id"]
    assert ended["exit_code"] == 5
    assert not (far.runs / run / ".secrets").exists()
    made = json.loads(far.kit("resume", run, "--json", env={"TOKEN": "of-value"}).stdout)
    assert (made["earlier_job_ids"], made["job_id"] != first) == ([first], True)
    assert far.wait(run, "COMPLETED")["job_id"] == made["job_id"]
    recorded = json.loads((far.runs / run / "manifest.json").read_text())
    assert (recorded["job_id"], recorded["earlier_job_ids"]) == (made["job_id"], [first])
    assert not [*(far.runs / run).glob("state/again-*")]
    refused = far.kit("resume", run, check=False)
    assert "TOKEN is not set" in refused.stderr
    assert len([one for one in far.jobs().values() if one == run]) == 2


def test_a_sweep_from_points_to_results(far: Far) -> None:
    job = job_of_its_own(far, "swept", SWEEP, REPORTS)
    done = far.kit("sweep", job, "--cluster", far.name, "--no-container", "--wait", "--json", check=False)
    assert done.returncode == 1
    assert "2 points failed: 2-3" in done.stderr
    sweep = json.loads(done.stdout)["sweep"]
    far.requests()
    rows = json.loads(far.kit("results", sweep, "--json").stdout)
    # What is new of all runs, the points' files, and Slurm's queue at most.
    assert far.requests() <= 3
    assert [(row["state"], row.get("loss")) for row in sorted(rows["points"], key=lambda row: row["point"])] == [
        ("COMPLETED", 1.0), ("COMPLETED", 2.0), ("FAILED", 1.0), ("FAILED", 2.0),
    ]  # fmt: skip
    assert "step 0" in far.kit("logs", f"{sweep}.3").stdout
    again = far.kit("sweep", job, "--retry", "--no-container", "--json")
    assert [one["points"] for one in json.loads(again.stdout)["arrays"]] == [[2, 3]]
    record = json.loads((far.runs / sweep / "sweep.json").read_text())
    assert [one["number"] for one in record["arrays"]] == [0, 1]
    points = [
        json.loads((far.runs / sweep / "points" / f"{sweep}.{n}" / "manifest.json").read_text()) for n in range(4)
    ]
    jobs = [one["job_id"] for one in record["arrays"]]
    assert [(one["job_id"], one["array_task"]) for one in points] == [
        (jobs[0], 0),
        (jobs[0], 1),
        (jobs[1], 0),
        (jobs[1], 1),
    ]
    assert all(number in far.jobs() for number in jobs)
    far.kit("cancel", sweep)


@pytest.mark.slow
def test_stages_wait_for_each_other(far: Far) -> None:
    job = job_of_its_own(
        far, "staged", '[stages.one]\nenv = { CODE = "0" }\n[stages.two]\nafter = ["one"]\nenv = { CODE = "4" }\n'
    )
    done = far.kit("submit", job, "--cluster", far.name, "--no-container")
    one, two = (Path(line).name for line in done.stdout.splitlines())
    assert far.wait(one, "COMPLETED")
    assert far.wait(two, "FAILED")["exit_code"] == 4


@pytest.mark.slow
def test_a_run_is_exported_imported_and_run_again(far: Far, tmp_path: Path) -> None:
    run = far.submit("--set", "env.STEPS=2")
    far.wait(run, "COMPLETED")
    program = far.project / "program.py"
    was = program.read_text()
    program.write_text("raise SystemExit(9)\n")
    try:
        again = Path(far.kit("rerun", run).stdout.splitlines()[0]).name
        assert far.wait(again, "COMPLETED", "FAILED")["exit_code"] == 0
        assert (far.runs / again / "workspace" / "program.py").read_text() == was
        packed = tmp_path / "run.tar.gz"
        far.kit("export", run, "--output", str(packed))
        far.kit("import", str(packed), "--runs", str(tmp_path / "runs"))
        assert "step 1" in far.kit("logs", str(tmp_path / "runs" / run)).stdout
    finally:
        program.write_text(was)


def test_a_running_job_is_looked_into(far: Far) -> None:
    run = far.submit("--set", "env.STEPS=100", "--set", "env.PAUSE=1")
    far.wait(run, "RUNNING")
    until = time.monotonic() + TIMEOUT_S
    while "step" not in far.kit("logs", run, "--rank", "1").stdout:
        assert time.monotonic() < until
    found = json.loads(far.kit("stacks", run, "--json").stdout)["stacks"]
    assert {"rank-0.txt", "rank-1.txt"} <= set(found)
    assert "program.py" in found["rank-1.txt"]
    assert not [*(far.runs / run / "state").glob("stacks-*")]
    inside = far.typed(["shell", "--attach", run], 'echo "in $SLURM_JOB_ID"; exit 6\n')
    assert (inside.returncode, f"in {far.listed()[run]['job_id']}" in inside.stdout) == (6, True), inside
    session = far.kit("tmux", run, "--detach").stdout.strip()
    try:
        until = time.monotonic() + TIMEOUT_S
        while "step" not in shell.run(["tmux", "capture-pane", "-p", "-t", f"={session}:logs"]).stdout:
            assert time.monotonic() < until
            time.sleep(0.5)
    finally:
        shell.run(["tmux", "kill-session", "-t", f"={session}"], check=False)
    far.kit("cancel", run)


@pytest.mark.slow
def test_a_shell_of_its_own_has_the_workspace(far: Far) -> None:
    words = ["shell", "--cluster", far.name, "--no-container", "--set", 'secrets.env=["TOKEN"]']
    done = far.typed(words, 'cat program.py; echo "token $TOKEN"; exit 8\n', env={"TOKEN": "of-value"})
    assert done.returncode == 8, done
    assert "raise SystemExit" in done.stdout
    assert not [*far.runs.glob("*/.secrets")]


@pytest.mark.parametrize("own", ["script", "template", "ejected"])
def test_a_batch_script_of_ones_own_runs_with_the_jobs_folder(far: Far, own: str) -> None:
    """As it is, rendered by Jinja below the kit's script, and the kit's own one changed."""
    (far.project / "beside.txt").write_text("from the laptop\n")
    lines = "cat beside.txt && pwd && exit 9\n"
    if own == "script":
        (far.project / "own.sh").write_text(f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --chdir=sub\ncd .. && {lines}")
        (far.project / "sub").mkdir()
        (far.project / "sub/kept").write_text("")
        words = ["own.sh"]
    elif own == "template":
        head = "#!/bin/bash\n{% for option in sbatch %}\n#SBATCH {{ option }}\n{% endfor %}\n"
        (far.project / "own.j2").write_text(head + lines)
        words = ["--set", "slurm.template=own.j2"]
    else:
        far.kit("template", "eject", "ejected.j2")
        text = (far.project / "ejected.j2").read_text()
        (far.project / "ejected.j2").write_text(
            text.replace("    train\n", f'    (cd -- "${{KIT_RUN_DIR}}/workspace" && {lines.strip()})\n    train\n')
        )
        words = ["--set", "slurm.template=ejected.j2", "--set", "env.CODE=9"]
    run = far.submit(*words)
    far.wait(run, "FAILED")
    log = (far.runs / run / "logs/batch.log").read_text()
    assert "from the laptop" in log, log
    assert f"{far.runs}/{run}/workspace" in log
    assert json.loads(far.kit("status", run, "--json").stdout)["exit_code"] == 9


def test_an_image_goes_on_where_the_line_broke(far: Far) -> None:
    root = far.folder / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy("/bin/true", root / "bin" / "sh")
    (root / "noise").write_bytes(random.Random(1).randbytes(96 << 20))
    words = ["import-image", str(root), "--name", "noise", "--json"]
    lock = json.loads(far.kit(*words).stdout)
    store = far.home / ".local" / "share" / "kit" / "images"
    name = lock["digest"].removeprefix("sha256:")
    argv = [sys.executable, "-m", "kit", *words, "--cluster", far.name]
    with subprocess.Popen(
        argv, cwd=far.project, env=far.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as sender:
        cut_at = _cut_while_it_grows(far, store / "tmp")
        _, err = sender.communicate(timeout=TIMEOUT_S)
    assert sender.returncode == 0, err
    assert "the transfer continues from there" in err
    assert 0 < cut_at < lock["size"]
    sent = store / "sha256" / f"{name}.sqsh"
    assert shell.run(["sha256sum", str(sent)]).stdout.split()[0] == name
    assert not [*(store / "tmp").glob("*")]
    far.requests()
    far.kit(*words, "--cluster", far.name)
    # Whether it is there is one question, and its bytes are sent once.
    assert far.requests() == 1


def _cut_while_it_grows(far: Far, folder: Path) -> int:
    """Kill all connections as soon as a part of the image is there; how much of it was."""
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        for part in folder.glob("*/part"):
            with contextlib.suppress(FileNotFoundError):
                size = part.stat().st_size
                if size > 4 << 20:
                    far.cut()
                    return size
        time.sleep(0.002)
    raise AssertionError("nothing came")


@pytest.mark.slow
def test_a_job_goes_where_it_starts_first(far: Far) -> None:
    """One of two does not answer: it is named, and the other one gets the job."""
    write_cluster(far, "gone", host="gone.pod", more="timeout_s = 2")
    config = far.folder / "ssh_config"
    was = config.read_text()
    config.write_text(was + "Host gone.pod\n  HostName 127.0.0.1\n  Port 9\n")
    try:
        done = far.kit("submit", "--cluster", f"gone,{far.name}", "--no-container", "--set", "resources.time=0:04:00")
        assert Path(done.stdout.splitlines()[0]).name in far.jobs().values()
        assert "kit: gone: cluster gone: gone.pod cannot be reached" in done.stderr
        assert f"on {far.name}: starts" in done.stderr
        refused = far.kit("submit", "--cluster", "gone,nowhere", "--no-container", check=False)
        assert refused.returncode != 0
        assert "none of gone, nowhere takes the job" in refused.stderr
    finally:
        config.write_text(was)
        (far.project / "clusters" / "gone.toml").unlink()
