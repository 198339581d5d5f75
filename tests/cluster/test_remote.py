"""Clusters over ssh, through a real sshd: what the commands do from a laptop, how often they ask, and what a broken line leaves."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.slurm.embedded import EmbeddedCluster
from tests.cluster.conftest import short_folder
from tests.cluster.ssh_lab import USER, Far, far_lab, write_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.root]

# Cuts at random moments: one in `make test`, more in `make slow`; `make cuts` asks for 60.
CUTS = int(os.environ.get("KIT_CUTS", "4"))


@pytest.fixture(scope="module")
def far(cluster: EmbeddedCluster) -> Iterator[Far]:
    with short_folder() as folder, far_lab(cluster, folder) as lab:
        yield lab


def test_a_run_from_submit_to_why(far: Far) -> None:
    run = far.submit("--set", "env.CODE=7")
    far.requests()
    assert far.submit("--set", "env.STEPS=2")
    # An unchanged workspace: what the cluster is like, what it lacks, whether Slurm takes the job, and the job.
    assert far.requests() == 4
    ended = far.wait(run, "FAILED")
    assert (ended["exit_code"], ended["cluster"]) == (7, far.name)
    far.requests()
    status = json.loads(far.kit("status", run, "--json").stdout)
    assert far.requests() == 2
    assert "exit code 7" in status["why"]
    assert "rank-1 | step 0" in far.kit("logs", run).stdout
    assert f"{far.runs}/{run}" in far.kit("logs", run).stdout
    assert json.loads(far.kit("why", run, "--json").stdout)["rule"] == "exit-code"
    assert "rank-s" in far.kit("time", run).stdout
    owner = (far.runs / run / "logs" / "rank-0.log").stat()
    assert stat.S_IMODE(far.runs.stat().st_mode) == 0o755
    assert owner.st_uid == (far.home).stat().st_uid != 0


@pytest.mark.slow
def test_logs_are_followed_while_connections_are_cut(far: Far) -> None:
    run = far.submit("--set", "env.STEPS=12", "--set", "env.PAUSE=0.7")
    argv = [sys.executable, "-m", "kit", "logs", "-f", run, "--raw", "--rank", "0"]
    with subprocess.Popen(
        argv, cwd=far.project, env=far.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as follower:
        for _ in range(3):
            time.sleep(2)
            far.cut()
        out, err = follower.communicate(timeout=300)
    assert follower.returncode == 0, err
    steps = [line for line in out.decode().splitlines() if line.startswith("step")]
    assert steps == [f"step {n}" for n in range(12)]


def test_cancel_asks_the_ranks_to_save_and_takes_secrets_of_one_that_waits(far: Far) -> None:
    done = far.kit(
        "submit", "--cluster", far.name, "--no-container", "--set", 'secrets.env=["TOKEN"]',
        "--set", "slurm.extra=['--begin=now+1hour']", env={"TOKEN": "of great value"},
    )  # fmt: skip
    waiting = Path(done.stdout.splitlines()[0]).name
    secret = far.runs / waiting / ".secrets"
    assert "of great value" in secret.read_text()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert not list((far.folder / "cache").glob("**/.secrets"))
    assert "of great value" not in (far.folder / "ssh.calls").read_text()
    running = far.submit("--set", "env.STEPS=100", "--set", "env.PAUSE=1")
    far.wait(running, "RUNNING")
    far.kit("logs", running)
    while "attempt" not in (far.runs / running / "state" / "events.jsonl").read_text():
        time.sleep(0.2)
    far.kit("cancel", running, waiting)
    assert not secret.exists()
    assert far.wait(waiting, "CANCELLED")["job_id"] is not None
    assert far.wait(running, "CANCELLED", "FAILED")["exit_code"] == 143
    assert f"cancelled by {USER}" in far.kit("why", running).stdout


@pytest.mark.slow
def test_only_what_is_lacking_is_sent(far: Far) -> None:
    (far.project / "data file ü.txt").write_text("a\n")
    (far.project / "link").symlink_to("program.py")
    first = far.submit()
    store = next(far.runs.glob(".snapshots-*"))
    before = {path.name for path in store.glob("objects/*/*")}
    (far.project / "data file ü.txt").write_text("b\n")
    second = far.submit()
    assert len({path.name for path in store.glob("objects/*/*")} - before) == 1
    for run in (first, second):
        far.wait(run, "COMPLETED")
    kept = far.runs / second / "workspace"
    assert (kept / "data file ü.txt").read_text() == "b\n"
    assert (kept / "link").readlink() == Path("program.py")
    assert not list(store.glob("*/.partial*"))


@pytest.fixture(scope="module")
def ended(far: Far) -> str:
    """A run that has ended."""
    run = far.submit("--set", "env.STEPS=3")
    far.wait(run, "COMPLETED")
    return run


@pytest.mark.parametrize("number", [pytest.param(n, marks=pytest.mark.slow if n else ()) for n in range(CUTS)])
def test_a_cut_leaves_one_job_or_none(far: Far, ended: str, number: int) -> None:
    """At a random moment of a command the line or the kit itself is killed; the next command knows what is there."""
    chance = random.Random(number)
    waiting = far.submit("--set", "slurm.extra=['--begin=now+1hour']") if number % 4 == 1 else ""
    submit = ["submit", "--cluster", far.name, "--no-container"]
    before = set(far.jobs().values())
    argv = (submit, ["cancel", waiting], ["logs", ended], ["runs"])[number % 4]
    code, out, err = _cut(far, argv, chance)
    # What a killed command had begun over there comes to its end by itself.
    time.sleep(2)
    known, jobs = far.listed(), far.jobs()
    new = [run for run in jobs.values() if run not in before]
    assert len(new) == len(set(new)) <= (argv is submit), (new, err)
    if argv is submit and code == 0:
        assert new == [Path(out.splitlines()[0]).name]
    for job, run in jobs.items():
        assert known[run]["job_id"] == job
    assert not list(far.runs.glob(".partial*"))
    if waiting:
        if known[waiting]["state"] != "CANCELLED":
            assert code != 0
            far.kit("cancel", waiting)
        assert far.wait(waiting, "CANCELLED")
    assert [line for line in far.kit("logs", ended, "--raw", "--rank", "0").stdout.splitlines() if "step" in line] == [
        f"step {n}" for n in range(3)
    ]


@pytest.mark.parametrize("number", [pytest.param(n, marks=pytest.mark.slow if n else ()) for n in range(CUTS // 2)])
def test_a_cut_of_what_is_sent_again_leaves_one_job_or_none(far: Far, number: int) -> None:
    """The same of a resume and of a sweep, whose folder is there before its array is submitted."""
    chance = random.Random(1000 + number)
    if number % 2:
        (far.project / "swept.toml").write_text(
            (far.project / "job.toml").read_text() + '[sweep.grid]\n"env.STEPS" = [1, 2]\n'
        )
        argv = ["sweep", "swept.toml", "--cluster", far.name, "--no-container"]
    else:
        run = far.submit("--set", "env.CODE=3")
        far.wait(run, "FAILED")
        argv = ["resume", run]
    before = far.scripts()
    code, out, err = _cut(far, argv, chance)
    time.sleep(2)
    known = far.listed()
    new = {job: script for job, script in far.scripts().items() if job not in before}
    assert len(new) <= 1, (new, err)
    if code == 0:
        assert len(new) == 1, (out, err)
    for job, script in new.items():
        if number % 2:
            sweep = Path(script).parent.parent.parent
            assert [one["job_id"] for one in json.loads((sweep / "sweep.json").read_text())["arrays"]] == [job]
            assert [known[f"{sweep.name}.{n}"]["job_id"] for n in range(2)] == [f"{job}_{n}" for n in range(2)]
        else:
            assert known[run]["job_id"] == job
    assert not [*far.runs.glob(".partial*")]
    for path in far.runs.glob("*/manifest.json"):
        json.loads(path.read_text())
    if not number % 2 and not new:
        # Nothing of it is in the way of the next one.
        far.kit("resume", run)
        assert far.wait(run, "RUNNING", "FAILED", "COMPLETED")


def _cut(far: Far, argv: list[str], chance: random.Random) -> tuple[int, str, str]:
    """Start a command, and kill it or all connections after a while; its code and what it said."""
    words = [sys.executable, "-m", "kit", *argv]
    with subprocess.Popen(
        words, cwd=far.project, env=far.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        time.sleep(chance.uniform(0.3, 2.5))
        if chance.random() < 0.4:
            started.kill()
        else:
            far.cut()
        out, err = started.communicate(timeout=300)
    return started.returncode, out, err


@pytest.mark.slow
def test_runs_names_a_cluster_that_does_not_answer(far: Far) -> None:
    run = far.submit()
    far.wait(run, "COMPLETED")
    write_cluster(far, "gone", host="gone.pod", more="timeout_s = 2")
    try:
        config = far.folder / "ssh_config"
        config.write_text(config.read_text() + "Host gone.pod\n  HostName 127.0.0.1\n  Port 9\n")
        done = far.kit("runs")
        assert run in done.stdout
        assert "cluster gone: gone.pod cannot be reached" in done.stderr
        refused = far.kit("submit", "--cluster", "gone", "--no-container", check=False)
        assert refused.returncode == 4
        assert "gone.pod cannot be reached" in refused.stderr
    finally:
        (far.project / "clusters" / "gone.toml").unlink()


@pytest.mark.slow
def test_a_login_shell_that_prints_and_another_umask(far: Far) -> None:
    rc = far.home / ".bashrc"
    rc.write_text('echo "WELCOME $(date)"; echo "answer facts 0 9"; echo loud >&2; umask 077; alias ls=rm\n')
    try:
        run = far.submit()
        assert far.wait(run, "COMPLETED")["exit_code"] == 0
        assert stat.S_IMODE((far.runs / run).stat().st_mode) == 0o755
    finally:
        rc.unlink()


@pytest.mark.slow
def test_what_the_other_side_refuses_is_said(far: Far) -> None:
    full = far.folder / "closed"
    full.mkdir(mode=0o700)
    write_cluster(far, "closed", paths=f'runs = "{full}/runs"')
    try:
        done = far.kit("submit", "--cluster", "closed", "--no-container", check=False)
        assert done.returncode == 7
        assert "ermission denied" in done.stderr
    finally:
        (far.project / "clusters" / "closed.toml").unlink()
        shutil.rmtree(full)


@pytest.mark.parametrize("host", ["-oProxyCommand=touch /tmp/kit-owned", "a;touch /tmp/kit-owned"])
def test_a_hostile_host_is_refused(far: Far, host: str) -> None:
    write_cluster(far, "hostile", host=host)
    try:
        done = far.kit("submit", "--cluster", "hostile", "--no-container", check=False)
        assert done.returncode == 3
        assert "ssh.host" in done.stderr
        assert not Path("/tmp/kit-owned").exists()
    finally:
        (far.project / "clusters" / "hostile.toml").unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["submit", "--set", "snapshot=false"], "snapshot"),
    ],
)
def test_what_does_not_work_yet_is_refused_in_one_sentence(far: Far, argv: list[str], said: str) -> None:
    done = far.kit(*argv, "--cluster", far.name, check=False)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.slow
def test_nodes_that_failed_a_preflight_are_those_over_there(far: Far) -> None:
    far.submit()
    avoided = far.runs / ".avoid"
    avoided.mkdir(exist_ok=True)
    (avoided / "bad-1").write_text("no GPU\n")
    shutil.chown(avoided, USER)
    (shown,) = json.loads(far.kit("nodes", "--cluster", far.name, "--json").stdout)
    assert (shown["node"], shown["reason"]) == ("bad-1", "no GPU")
    far.kit("nodes", "--cluster", far.name, "--forget", "bad-1")
    assert not (avoided / "bad-1").exists()
    far.kit("nodes", "--cluster", far.name, "--avoid", "bad-2", "--reason", "its fan")
    assert (avoided / "bad-2").read_text() == "its fan\n"
    (avoided / "bad-2").unlink()
