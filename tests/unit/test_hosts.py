"""Hosts: what cancel asks of one, and that this machine and a login node do the same with a run's folder."""

from __future__ import annotations

import getpass
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kit.errors import RunError, SlurmError
from kit.hosts import clusters
from kit.hosts.host import Host, JobToEnd
from kit.hosts.local import LocalHost
from kit.hosts.ssh import SshHost
from kit.planning.batch_file import AVOID_DIR
from kit.record import manifest
from kit.schema.cluster import Cluster
from kit.schema.run_paths import RunPaths
from kit.slurm.client import QueuedJob
from kit.ssh import run_folder_mirror, shell_program
from kit.ssh.answers import Reply
from kit.ssh.connection import LineError
from kit.submission import catch_up
from tests.unit.fake_host import FakeHost
from tests.unit.test_remote import sh
from tests.unit.test_status import run_dir

__all__ = ["run_dir"]

SCANCEL = """#!/bin/sh
echo "$*" >>FOLDER/scancelled
case $* in *9*) echo 'Invalid job id' >&2; exit 1 ;; esac
"""


class HereConnection:
    """In the place of ssh: programs run in a shell of this machine. cuts: answers that are lost after the program ran."""

    host = "login.a"
    timeout = 1.0
    uid = str(os.getuid())

    def __init__(self, folder: Path) -> None:
        self.folder, self.cuts, self.known = folder, 0, {}  # type: ignore[var-annotated]
        self.name = "a"

    def ask(self, name: str, constants: dict[str, object], *, data: Any = (), **_: object) -> Reply:
        text = shell_program.text(name, constants, mark="mark", path=str(self.folder / "bin"))
        reply = sh(text, self.folder, data=b"".join(data))
        if self.cuts:
            self.cuts -= 1
            raise LineError("cut")
        return reply

    def run(self, argv: list[str], *, env: Mapping[str, str], **_: object) -> None:
        self.ask("run", {"ARGV": shell_program.Words(argv), "INPUT": 0})


@pytest.fixture(params=["local", "ssh"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host whose runs are in tmp_path/runs, with a scancel that refuses job 9."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("kit.hosts.ssh._AGAIN_S", (0.0,) * 3)
    for name, text in (
        ("scancel", SCANCEL),
        ("squeue", "#!/bin/sh\n"),
        ("sbatch", "#!/bin/sh\n"),
        ("srun", "#!/bin/sh\n"),
    ):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("FOLDER", str(tmp_path)))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "runs").mkdir(exist_ok=True)
    (tmp_path / "clusters").mkdir()
    text = f'[node]\ncpus = 4\n[paths]\nruns = "{tmp_path / "runs"}"\n'
    (tmp_path / "clusters" / "a.toml").write_text(text)
    if request.param == "local":
        return LocalHost(name="a", project=tmp_path)
    rules = Cluster.model_validate(
        {"ssh": {"host": "login.a"}, "node": {"cpus": 4}, "paths": {"runs": str(tmp_path / "runs")}}
    )
    connection: Any = HereConnection(tmp_path)
    return SshHost("a", rules, connection, run_folder_mirror.find_mirror("a", rules))


def run_of(host: Host, tmp_path: Path, name: str) -> Path:
    """The folder of a run on the cluster, with secrets."""
    folder = tmp_path / "runs" / name
    (folder / "state").mkdir(parents=True)
    (folder / ".secrets").write_text("export A=1\n")
    return folder


def as_read_here(host: Host, folder: Path) -> Path:
    return host.mirror.runs / folder.name if isinstance(host, SshHost) else folder


def test_a_cancel_leaves_the_same_record_on_both_kinds_of_host(host: Host, tmp_path: Path) -> None:
    waits, runs, asked = (run_of(host, tmp_path, name) for name in ("waits", "runs", "asked"))
    hows: dict[Path, Any] = {waits: "waiting", runs: "now", asked: "gently"}
    host.cancel(
        [
            JobToEnd(run_dir=as_read_here(host, folder), job_id=number, how=hows[folder], links=(number, 40 + number))
            for number, folder in enumerate(hows, 1)
        ]
    )
    said = (tmp_path / "scancelled").read_text().splitlines()
    at_once, gently = [line for line in said if "TERM" not in line], [line for line in said if "TERM" in line]
    assert sorted(" ".join(at_once).split()) == ["1", "2", "41", "42", "43"]
    assert gently == ["--batch --signal=TERM 3"]
    for folder, how in hows.items():
        paths = RunPaths(folder)
        assert paths.cancelled_by.read_text() == f"{getpass.getuser()}\n"
        assert (paths.cancelled.exists(), (folder / ".secrets").exists()) == (how == "waiting", how != "waiting")


def test_a_refused_cancel_says_so(host: Host, tmp_path: Path) -> None:
    folder = run_of(host, tmp_path, "gone")
    with pytest.raises(SlurmError, match="Invalid job id"):
        host.cancel([JobToEnd(run_dir=as_read_here(host, folder), job_id=9, how="now")])


@pytest.mark.parametrize("host", ["ssh"], indirect=True)
def test_a_lost_answer_asks_no_batch_script_twice(host: SshHost, tmp_path: Path) -> None:
    folder = run_of(host, tmp_path, "asked")
    host.connection.cuts = 2  # type: ignore[attr-defined]
    host.cancel([JobToEnd(run_dir=as_read_here(host, folder), job_id=3, how="gently")])
    assert (tmp_path / "scancelled").read_text() == "--batch --signal=TERM 3\n"


def test_nodes_are_avoided_and_used_again(host: Host, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / AVOID_DIR
    assert host.avoided() == []
    host.avoid("n2", "its fan; $(touch owned)")
    host.avoid("n1", "first")
    host.avoid("n1", "again")
    assert [(one.node, one.reason, one.recorded_by) for one in host.avoided()] == [
        ("n1", "again", ""),
        ("n2", "its fan; $(touch owned)", ""),
    ]
    old = time.time() - 25 * 3600
    os.utime(folder / "n2", (old, old))
    host.avoid("n3", "new")
    assert sorted(path.name for path in folder.iterdir()) == ["n1", "n3"], "a record is kept for a day"
    host.forget("n1")
    with pytest.raises(RunError, match="n1: not among the avoided nodes: n3"):
        host.forget("n1")


def test_a_queue_settles_what_was_interrupted_once_the_host_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = QueuedJob(job_id=7, state="RUNNING", reason="", nodes="", elapsed="")
    made = FakeHost("a", tmp_path, {7: job})
    monkeypatch.setattr(clusters, "find_host", lambda name: made)
    assert catch_up.queue()("a") == {7: job}
    assert (made.asked, made.settled) == (1, 1)


@pytest.mark.parametrize("host", ["ssh"], indirect=True)
def test_an_update_of_the_mirror_settles_nothing(host: SshHost, run_dir: Path, tmp_path: Path) -> None:
    """A run whose submit was interrupted is recorded in a step of its own."""
    run = run_of(host, tmp_path, "cut")
    manifest.read_manifest(RunPaths(run_dir).manifest).model_copy(update={"job_id": None}).write(RunPaths(run).manifest)
    (tmp_path / "bin" / "squeue").write_text(
        f"#!/bin/sh\ncase $* in *'kit|%F|%o'*) echo 'kit|5|{run}/batch.sh' ;; *%F*%k*) echo 'kit|5|{run}/batch.sh|x' ;; esac\n"
    )
    host.refresh()
    assert json.loads((run / "manifest.json").read_text())["job_id"] is None
    host.settle()
    assert json.loads((run / "manifest.json").read_text())["job_id"] == 5
    assert json.loads((host.mirror.runs / "cut" / "manifest.json").read_text())["job_id"] == 5
