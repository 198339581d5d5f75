"""Secrets reach the ranks, and nobody else. A canary is planted, and everything that a run leaves or shows is searched for it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

# Quotes and blanks, so that a value which is quoted wrongly shows; the parts are what a search would still find.
CANARY = "canary-'3f9a\" $HOME c0ffee"
FROM_FILE = "canary-of-the-file-77aa"
PARTS = (b"canary-", b"c0ffee", b"77aa")

PROGRAM = """
import os, pathlib, time
run = pathlib.Path(os.environ["KIT_RUN_DIR"])
right = os.environ.get("API_KEY") == CANARY and os.environ.get("OTHER_KEY") == FROM_FILE
(run / f"right-{os.environ['RANK']}").write_text(str(right))
print("a rank is up", flush=True)
while not (run / "finish").exists():
    time.sleep(0.05)
raise SystemExit(int((run / "finish").read_text() or 0))
"""


@pytest.fixture
def secret_lab(lab: Lab) -> Lab:
    """A job with a secret of the environment and one of a file."""
    # The program is written into the run's neighbourhood: it must not hold the canary itself.
    hidden = {"CANARY": CANARY.encode().hex(), "FROM_FILE": FROM_FILE.encode().hex()}
    program = "".join(f"{name} = bytes.fromhex({text!r}).decode()\n" for name, text in hidden.items())
    lab.write(
        'script = "program.py"\nshape = "srun"\npython = "/usr/bin/python3"\n[preflight]\nfree_disk_gb = 0\n'
        '[secrets]\nenv = ["API_KEY"]\nfile = "keys.toml"\n[retry]\nrequeue = 1\n',
        program + PROGRAM,
    )
    (lab.project / "keys.toml").write_text(f'OTHER_KEY = "{FROM_FILE}"\n')
    return lab


def submit(lab: Lab, *options: str, debug: bool = False) -> Path:
    return lab.submit(*options, env={"API_KEY": CANARY, **({"DEBUG": "1"} if debug else {})})


def wait_up(lab: Lab, run: Path) -> None:
    lab.wait(
        lambda: sum(p.stat().st_size > 0 for p in run.glob("right-*")) == 4 or '"end"' in events(run), run, seconds=90
    )


def events(run: Path) -> str:
    path = run / "state" / "events.jsonl"
    return path.read_text() if path.exists() else ""


def holding(*folders: Path) -> list[str]:
    """Files that hold the canary, whole or in part."""
    files = [p for folder in folders for p in folder.rglob("*") if p.is_file() and not p.is_symlink()]
    return [str(p) for p in files if any(part in bytes_of(p) for part in PARTS)]


def bytes_of(path: Path) -> bytes:
    """Of a live run's file, which may be gone meanwhile."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def command_lines() -> list[bytes]:
    """What `ps` shows to everybody."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if any(part in text for part in PARTS) and int(path.parts[2]) != os.getpid():
            found.append(text)
    return found


@pytest.mark.parametrize("shape", ["srun", pytest.param("torchrun", marks=pytest.mark.faults)])
def test_nobody_but_the_ranks_sees_it(secret_lab: Lab, runtime: str, shape: str) -> None:
    if runtime == "bare" and shape == "torchrun":
        pytest.skip("torch is in the image only")
    lab = secret_lab
    options = ["--no-container"] if runtime == "bare" else ["--set", f"container.runtime={runtime}"]
    run = submit(lab, *options, "--set", f"shape={shape}", debug=True)
    wait_up(lab, run)
    assert {p.read_text() for p in run.glob("right-*")} == {"True"}, (run / "logs/batch.log").read_text()
    secrets = run / ".secrets"
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert command_lines() == []
    shown = lab.slurm("scontrol", "show", "job", "--details", lab.job(run)["JobId"]) + json.dumps(lab.status(run))
    assert not any(part.decode() in shown for part in PARTS)
    layout = lab.cluster.layout
    assert holding(layout.controller_state, layout.spool) == []
    assert holding(run) == [str(secrets)], "the one file, and no log although DEBUG is on"
    (run / "finish").write_text("0")
    lab.wait_end(run)
    assert "+ " in (run / "logs/batch.log").read_text(), "the scripts were traced"
    assert holding(run, layout.controller_state, layout.spool, layout.log("slurmctld").parent) == []
    assert lab.settled(run) == []


def test_what_is_printed(secret_lab: Lab) -> None:
    lab = secret_lab
    env = {"API_KEY": CANARY}
    rendered = lab.kit("render", "--cluster", lab.cluster.name, env=env)
    debugged = lab.kit("render", "--cluster", lab.cluster.name, "--set", "debug=true", env=env)
    missing = lab.kit("submit", "--cluster", lab.cluster.name, check=False)
    assert missing.returncode == 3
    assert "secrets.env: API_KEY is not set where" in missing.stderr
    clash = lab.kit("submit", "--cluster", lab.cluster.name, "--set", "env.OTHER_KEY=x", check=False, env=env)
    assert clash.returncode == 3
    assert "env.OTHER_KEY: a secret has the same name" in clash.stderr
    shown = "".join(d.stdout + d.stderr for d in (rendered, debugged, missing, clash))
    assert not any(part.decode() in shown for part in PARTS)


def test_gone_after_a_failure(secret_lab: Lab) -> None:
    lab = secret_lab
    run = submit(lab)
    wait_up(lab, run)
    (run / "finish").write_text("7")
    lab.wait_end(run)
    assert lab.status(run)["exit_code"] == 7
    assert not (run / ".secrets").exists()


def test_gone_after_a_refused_submit(secret_lab: Lab) -> None:
    done = secret_lab.kit(
        "submit",
        "--cluster",
        secret_lab.cluster.name,
        "--set",
        "slurm.partition=nowhere",
        check=False,
        env={"API_KEY": CANARY},
    )
    assert done.returncode == 6
    assert list((secret_lab.project / "runs").glob("*/.secrets")) == []


@pytest.mark.parametrize("by", ["kit", "scancel"])
@pytest.mark.parametrize("when", ["pending", "running"])
def test_gone_after_a_cancel(secret_lab: Lab, when: str, by: str) -> None:
    """scancel of a pending job runs nothing of the kit's: the next look at the run removes the file."""
    lab = secret_lab
    run = submit(lab, *(["--set", 'slurm.extra=["--begin=now+600"]'] if when == "pending" else []))
    if when == "running":
        wait_up(lab, run)
    assert (run / ".secrets").exists()
    lab.kit("cancel", run.name) if by == "kit" else lab.slurm("scancel", lab.job(run)["JobId"])
    lab.wait_end(run)
    if (when, by) == ("pending", "scancel"):
        lab.status(run)
    lab.wait(lambda: not (run / ".secrets").exists(), run, seconds=10)


def test_gone_after_a_killed_batch_script(secret_lab: Lab) -> None:
    """Nothing of the run is left to remove it: `kit status`, `kit runs` or the next `kit submit --wait` does."""
    lab = secret_lab
    run = submit(lab)
    wait_up(lab, run)
    os.kill(lab.batch(run).pid, 9)
    lab.wait_end(run)
    lab.kit("runs")
    assert not (run / ".secrets").exists()
    assert lab.settled(run) == []


def test_kept_for_a_requeue(secret_lab: Lab) -> None:
    """A start that ends in a requeue leaves it for the next, also when it is Slurm that requeues; the last one removes it."""
    lab = secret_lab
    run = submit(lab)
    wait_up(lab, run)
    number = lab.job(run)["JobId"]
    for path in run.glob("right-*"):
        path.unlink()
    lab.slurm("scontrol", "requeue", number)
    wait_up(lab, run)
    assert {p.read_text() for p in run.glob("right-*")} == {"True"}
    assert lab.job(run)["Restarts"] == "1"
    (run / "finish").write_text("0")
    assert lab.wait_end(run)["JobState"] == "COMPLETED"
    assert not (run / ".secrets").exists()
