"""Notices: a real SMTP server and a real HTTP server are told of a run, once each; a dead one harms nothing; no URL is ever
seen."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email import message_from_bytes
from email.header import decode_header, make_header
from pathlib import Path
from typing import Any

import pytest

from kit import config, shell
from kit.errors import ConfigError
from kit.hosts import status as host_status
from kit.notices import send
from kit.notices.happened import happened
from kit.notices.send_once import tell
from kit.record import secret
from kit.schema.job import Job
from kit.schema.notify import Event
from tests import laid_out
from tests.endpoints import Hook, mailbox, webhook

pytest.importorskip("apprise", reason="notices: pip install 'slurm-kit[notify]'")

ON: tuple[Event, ...] = ("start", "fail", "stall", "end")
TOKEN = "T0ken-that-nobody-may-see"


@pytest.fixture
def hook() -> Iterator[Hook]:
    with webhook() as server:
        yield server


@pytest.fixture
def mail() -> Iterator[tuple[int, list[Any]]]:
    """Port of a real SMTP server, and what it got."""
    with mailbox() as box:
        yield box


def make(run: Path, *, on: tuple[Event, ...] = ON, by: str = "watch", to: tuple[str, ...] = ("HOOK",)) -> Path:
    """A run whose job tells `to`; nothing has happened yet."""
    (run / "state").mkdir(parents=True)
    (run / "logs").mkdir()
    manifest: dict[str, object] = {
        "run_id": run.name, "job_name": "gpt", "launcher": "ddp", "shape": "srun", "cluster": "local", "runtime": "none",
        "image": "", "image_name": None, "image_digest": "", "nodes": 1, "world_sizes": {"train": 1}, "seed": 1,
        "job_file": str(run.parent / "job.toml"), "argv": [], "job_id": 7, "user": "ada",
        "submitted_at": "2027-01-15T08:00:00+00:00", "versions": {}, "git": None,
    }  # fmt: skip
    (run / "manifest.json").write_text(json.dumps(manifest))
    named = ", ".join(f'"{name}"' for name in to)
    events = ", ".join(f'"{name}"' for name in on)
    (run / "job.toml").write_text(
        f'name = "gpt"\nlauncher = "ddp"\n[notify]\non = [{events}]\nto = [{named}]\nby = "{by}"\n'
    )
    return run


def event(run: Path, name: str, job: int = 7, **values: str) -> None:
    said = {"time": "", "epoch": time.time(), "event": name, "job_id": job, "restart": 0, "attempt": 0, **values}
    with (run / "state" / "events.jsonl").open("a") as sink:
        sink.write(json.dumps(said) + "\n")


def watch(run: Path, **env: str) -> shell.Completed:
    """The command, over one look; Slurm is asked of no cluster, since `local` is not up here."""
    here = {**os.environ, "XDG_DATA_HOME": str(run.parent / "data"), **env}
    argv = [sys.executable, "-m", "kit", "watch", str(run), "--once"]
    return shell.run(argv, cwd=run.parent, env=here, check=False, timeout=120)


def batch(run: Path, function: str) -> shell.Completed:
    """A function of templates/parts/notices/part.sh, as the batch script has it."""
    lib = laid_out.LIB
    line = f"source {lib}/log.sh; source {lib}/notices.sh; {function}; echo after"
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "KIT_RUN_DIR": str(run)}
    return shell.run(["bash", "-uc", line], cwd=run, env=env, check=False, timeout=90)


def test_a_webhook_hears_each_event_once_over_requeues(tmp_path: Path, hook: Hook) -> None:
    """By `kit watch`: start, a stall, a requeue and another start, the end; however often and by however many it is looked at."""
    run = make(tmp_path / "gpt-1")
    url = f"json://127.0.0.1:{hook.server_port}/{TOKEN}"
    event(run, "start", nodes="n1")
    assert "start: HOOK was told" in watch(run, HOOK=url).stderr
    event(run, "stall", number="1", rank="3", node="n1", step="40", phase="data", idle="90", rule="stalled-behind")
    two = [
        subprocess.Popen(
            [sys.executable, "-m", "kit", "watch", str(run), "--once"],
            cwd=tmp_path,
            env={**os.environ, "XDG_DATA_HOME": str(tmp_path / "data"), "HOOK": url},
            stderr=subprocess.DEVNULL,
        )
        for _ in range(2)
    ]
    assert [one.wait(120) for one in two] == [0, 0]
    event(run, "requeue", exit_code="137")
    event(run, "start", nodes="n2")
    watch(run, HOOK=url)
    event(run, "end", exit_code="1")
    for _ in range(2):
        watch(run, HOOK=url)
    titles = [one["title"] for one in hook.got]
    assert titles == ["gpt-1: started", "gpt-1: ranks are stalled", "gpt-1: FAILED, exit code 1"]
    assert "rank 3 on n1, step 40 (data), for 90 s" in hook.got[1]["message"]
    assert [one["type"] for one in hook.got] == ["info", "warning", "failure"]
    # Resumed: another job in the same folder, which is told of as the first was.
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "job_id": 9, "earlier_job_ids": [7]}))
    event(run, "start", job=9, nodes="n1")
    event(run, "end", job=9, exit_code="0")
    watch(run, HOOK=url)
    assert [one["title"] for one in hook.got[3:]] == ["gpt-1: started", "gpt-1: COMPLETED, exit code 0"]
    assert set(hook.paths) == {f"/{TOKEN}"}


def test_mail_arrives(tmp_path: Path, mail: tuple[int, list[Any]]) -> None:
    port, got = mail
    run = make(tmp_path / "gpt-1", on=("end",), to=("MAIL",))
    event(run, "start", nodes="n1")
    event(run, "end", exit_code="0")
    done = watch(run, MAIL=f"mailto://127.0.0.1:{port}?from=kit@example.org&to=ada@example.org")
    assert "end: MAIL was told" in done.stderr
    (one,) = got
    assert one.rcpt_tos == ["ada@example.org"]
    assert (
        str(make_header(decode_header(message_from_bytes(one.content)["Subject"]))) == "gpt-1: COMPLETED, exit code 0"
    )


def test_the_batch_script_tells(tmp_path: Path, hook: Hook) -> None:
    """With the URLs that the submit left, which are gone afterwards; a second telling has nothing to tell."""
    run = make(tmp_path / "gpt-1", by="batch")
    job = config.load_model(run / "job.toml", Job)
    url = f"json://127.0.0.1:{hook.server_port}/{TOKEN}"
    values = secret.gather(job, job_dir=tmp_path, job_file="job.toml", environ={"HOOK": url})
    secret.write(run, values)
    assert (run / ".notify").stat().st_mode & 0o777 == 0o600
    assert not (run / ".secrets").exists(), "the ranks have no use for it"
    event(run, "start", nodes="n1")
    assert batch(run, "notices::event").stdout == "after", "it continues at once"
    until = time.monotonic() + 60
    while not hook.got and time.monotonic() < until:
        time.sleep(0.1)
    event(run, "end", exit_code="3")
    said = batch(run, "notices::closed")
    assert "notice: gpt-1: fail: HOOK was told" in said.stderr
    assert [one["title"] for one in hook.got] == ["gpt-1: started", "gpt-1: FAILED, exit code 3"]
    assert not (run / ".notify").exists()
    assert batch(run, "notices::closed").stderr == ""
    everything = "".join(path.read_text() for path in run.rglob("*") if path.is_file()) + said.stdout + said.stderr
    assert TOKEN not in everything


def test_a_dead_endpoint_harms_nothing(tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that refuses, one that answers a byte a second, one that nobody knows, one whose answer is an error: each has its reason,
    the others are told, and the time is bounded.
    """
    with socket.socket() as slow, socket.socket() as shut:
        slow.bind(("127.0.0.1", 0))
        slow.listen()
        shut.bind(("127.0.0.1", 0))
        stop = threading.Event()

        def drip() -> None:
            taken, _ = slow.accept()
            with taken:
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 600:
                    if stop.wait(0.5):
                        return
                    taken.send(bytes([byte]))

        threading.Thread(target=drip, daemon=True).start()
        urls = {
            "SLOW": f"json://127.0.0.1:{slow.getsockname()[1]}/{TOKEN}",
            "SHUT": f"json://127.0.0.1:{shut.getsockname()[1]}/{TOKEN}",
            "ODD": f"nothing://{TOKEN}",
            "NONE": f"json://127.0.0.1:{hook.server_port}/none-{TOKEN}",
            "GOOD": f"json://127.0.0.1:{hook.server_port}/",
        }
        began = time.monotonic()
        took = send.send(urls, "fail", "gpt-1: FAILED", f"said {TOKEN}: Bearer hunter22", hide=["hunter22"], patience=3)
        assert time.monotonic() - began < 30
        assert took == {
            "SLOW": "it did not answer within 3 s",
            "SHUT": "it was not reached",
            "ODD": "its URL is none that apprise knows",
            "NONE": "it answered with 404",
            "GOOD": "",
        }
        stop.set()
    assert "hunter22" not in json.dumps(hook.got)


def test_a_node_without_the_kit_goes_on(tmp_path: Path) -> None:
    """A Python that is not there, or that hangs: a line in the log, and the exit code is the script's own."""
    run = make(tmp_path / "gpt-1", by="batch")
    (run / ".notify").write_text("/no/such/python\nHOOK=json://127.0.0.1:1/\n")
    done = batch(run, "notices::closed")
    assert (done.returncode, done.stdout) == (0, "after")
    assert "notice: not sent: /no/such/python -m kit.notices does not work on this node" in done.stderr
    hangs = tmp_path / "python"
    hangs.write_text("#!/bin/bash\nsleep 300\n")
    hangs.chmod(0o755)
    (run / ".notify").write_text(f"{hangs}\nHOOK=json://127.0.0.1:1/\n")
    done = batch(run, "notices_last() { :; }; notices::send 1; rm -f .notify")
    assert (done.returncode, done.stdout) == (0, "after")
    assert "took longer than 1 s" in done.stderr


def test_no_url_is_ever_said(tmp_path: Path) -> None:
    """Not where it is missing, not where it is none, not where nobody answers."""
    run = make(tmp_path / "gpt-1")
    event(run, "start", nodes="n1")
    missing = watch(run)
    assert (missing.returncode, "notify.to: HOOK is not set here" in missing.stderr) == (3, True)
    for wrong in (TOKEN, f"nothing://{TOKEN}", f"json://[{TOKEN}"):
        done = watch(run, HOOK=wrong)
        assert done.returncode == 3, done.stderr
        assert "HOOK" in done.stderr
        assert TOKEN not in done.stderr + done.stdout
    done = watch(run, HOOK=f"json://user:{TOKEN}@127.0.0.1:1/{TOKEN}")
    assert "start: HOOK could not be told: it was not reached" in done.stderr
    assert TOKEN not in done.stderr + done.stdout
    assert TOKEN not in "".join(path.read_text() for path in run.rglob("*") if path.is_file())


def test_urls_come_from_the_file_of_secrets(tmp_path: Path, hook: Hook) -> None:
    run = make(tmp_path / "gpt-1", on=("start",))
    (run / "job.toml").write_text((run / "job.toml").read_text() + '[secrets]\nfile = ".env"\n')
    (tmp_path / ".env").write_text(f"HOOK=json://127.0.0.1:{hook.server_port}/x\n")
    event(run, "start", nodes="n1")
    assert "HOOK was told" in watch(run).stderr


def test_what_is_long_past_is_not_told(tmp_path: Path, hook: Hook) -> None:
    run = make(tmp_path / "gpt-1")
    event(run, "start", nodes="n1", epoch=0)  # type: ignore[arg-type]
    said: list[str] = []
    tell(host_status.of_record(run), ON, {"HOOK": f"json://127.0.0.1:{hook.server_port}/"}, say=said.append)
    assert (said, hook.got) == (["gpt-1: start was too long ago to be told"], [])


def test_a_failed_run_is_told_of_once(tmp_path: Path) -> None:
    """Whether `on` has fail, end, or both; and one whose end nobody knows after a while."""
    run = make(tmp_path / "gpt-1")
    event(run, "start", nodes="n1")
    event(run, "end", exit_code="1")
    one = host_status.of_record(run)
    for on, wanted in ((("fail", "end"), ["fail"]), (("end",), ["end"]), (("fail",), ["fail"])):
        assert [found.event for found in happened(one, on, now=time.time())] == wanted  # type: ignore[arg-type]
    shutil.rmtree(run)
    run = make(tmp_path / "gpt-2")
    event(run, "start", nodes="n1")
    (lost,) = host_status.read_statuses([run], queue=lambda _: {})
    assert lost.state == "LOST"
    assert [found.event for found in happened(lost, ("fail",), now=time.time())] == []
    assert [found.event for found in happened(lost, ("fail",), now=time.time(), gone=True)] == ["fail"]


def test_a_job_that_tells_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="no notice can be sent"):
        Job.model_validate({"name": "a", "launcher": "ddp", "notify": {"on": ["end"]}})


def test_a_missing_url_stops_the_submit(tmp_path: Path) -> None:
    job = Job.model_validate({"name": "a", "launcher": "ddp", "notify": {"on": ["end"], "to": ["HOOK"], "by": "batch"}})
    with pytest.raises(ConfigError, match="HOOK is not set here"):
        secret.gather(job, job_dir=tmp_path, job_file="job.toml", environ={})
