"""Clusters over ssh, without a line: what is sent as a program, how an answer is read, what a mirror takes."""

from __future__ import annotations

import getpass
import gzip
import io
import json
import subprocess
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from kit.config import load_model
from kit.errors import ConfigError, ToolError
from kit.hosts.ssh import SshHost
from kit.schema.cluster import Cluster
from kit.slurm import client
from kit.ssh import answers, run_folder_mirror, shell_program
from kit.ssh.connection import Connection
from kit.ssh.run_folder_mirror import ClusterAnswer, Mirror

HOSTILE = ["", " ", "'", '"', "$(touch owned)", "`touch owned`", "a\nb", "-x", "\\", "*", "ü"]


def sh(text: str, cwd: Path, *, data: bytes = b"") -> answers.Reply:
    """A program as the other side runs it, by this machine's sh."""
    command = f'p=$(head -c {len(text.encode())}) && eval "$p"'
    done = subprocess.run(["sh", "-c", command], input=text.encode() + data, capture_output=True, cwd=cwd, check=False)
    _, found, packed = done.stdout.partition(b"\nmark\n")
    assert found, done
    return answers.read_reply(gzip.decompress(packed), stderr=done.stderr.decode())


def test_words_arrive_as_they_are(tmp_path: Path) -> None:
    constants = {"ARGV": shell_program.Words(("printf", "<%s>", *HOSTILE)), "INPUT": 0}
    reply = sh(shell_program.text("run", constants, mark="mark", environment={"NAME": "$(touch owned)"}), tmp_path)
    assert reply.whole
    assert reply.completed("run", ["printf"]).stdout == "".join(f"<{word}>" for word in HOSTILE)
    assert [*tmp_path.iterdir()] == []


def test_a_commands_input_and_code_arrive(tmp_path: Path) -> None:
    constants = {"ARGV": shell_program.Words(("sh", "-c", "cat; echo said >&2; exit 3")), "INPUT": 5}
    done = sh(shell_program.text("run", constants, mark="mark"), tmp_path, data=b"hello").completed("run", ["sh"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "hello", "said")


def test_slurms_commands_get_the_list_and_what_the_job_inherits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "wrong")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    text = shell_program.text(
        "run", {"ARGV": shell_program.Words(("env",)), "INPUT": 0}, mark="mark", environment={"MINE": "1"}
    )
    lines = sh(text, tmp_path).completed("run", ["env"]).stdout.splitlines()
    assert "MINE=1" in lines
    assert "SLURM_CONF=/etc/slurm.conf" in lines
    assert not [line for line in lines if line.startswith("SBATCH_")]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("{home}/kit/runs", "/h/kit/runs"),
        ("~/x y", "/h/x y"),
        ("/scratch/{user}/$(id)'s", "/scratch/u/$(id)'s"),
        ("{data}/images", "/d/images"),
        ("/plain", "/plain"),
    ],
)
def test_placeholders_are_filled_over_there(path: str, found: str) -> None:
    text = f"HOME=/h KIT_USER=u KIT_DATA=/d\nprintf %s {shell_program.filled(path)}"
    assert subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout == found


def test_a_program_knows_who_the_user_is_before_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    places = {"RUNS": shell_program.filled("/scratch/{user}/runs"), "STORE": shell_program.filled("{data}/images")}
    wanted = {**places, "TREE": "", "ARGV": shell_program.Words(("printf", "%s\\n", "0" * 64))}
    text = shell_program.text("have", wanted, mark="mark").replace(
        "main() {", 'main() {\n    section places 0 "$RUNS $STORE"', 1
    )
    reply = sh(text, tmp_path)
    assert reply.texts["places"] == f"/scratch/{getpass.getuser()}/runs /h/.local/share/kit/images"
    assert reply.texts["images"].split() == ["0" * 64, "none"]


def test_half_an_answer_is_not_whole() -> None:
    whole = b"answer queue 0 5\nabcde\ngrown 3 2 a/logs/x.log\nde\nend\n"
    reply = answers.read_reply(whole, stderr="")
    assert reply.whole
    assert reply.texts == {"queue": "abcde"}
    assert reply.grown == [answers.Grown(path="a/logs/x.log", offset=3, content=b"de")]
    for length in range(len(whole)):
        assert not answers.read_reply(whole[:length], stderr="").whole


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", ".ssh/id", "a/.hidden", "a\nb", "", "a//b"])
def test_a_mirror_takes_no_file_that_leads_out(tmp_path: Path, name: str) -> None:
    reply = _reply({name: b"x"}, [f"new 1 1 1.0 {name}"])
    with pytest.raises(ToolError, match="which is not a path of a file in a run folder"):
        Mirror(tmp_path)._apply(reply, tmp_path / "index", b"")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_mirror_follows_what_changes(tmp_path: Path) -> None:
    place, state = Mirror(tmp_path), tmp_path / "index"
    place._apply(
        _reply(
            {"r/manifest.json": b"{}", "r/logs/a.log": b"one\n"},
            ["new 1 2 1.0 r/manifest.json", "new 2 4 1.0 r/logs/a.log"],
        ),
        state,
        b"",
    )
    grown = _reply({}, ["grown 4 2 8 2.0 r/logs/a.log"])
    grown.grown = [answers.Grown(path="r/logs/a.log", offset=4, content=b"two\n")]
    place._apply(grown, state, state.read_bytes())
    assert (place.runs / "r/logs/a.log").read_text() == "one\ntwo\n"
    # What is said to be new and did not come (it went away meanwhile) is asked for again.
    place._apply(_reply({}, ["new 3 1 1.0 r/state/x"]), state, state.read_bytes())
    assert state.read_text().splitlines() == ["1 2 1.0 r/manifest.json", "2 8 2.0 r/logs/a.log"]
    place._apply(_reply({}, ["gone 1 2 1.0 r/manifest.json"]), state, state.read_bytes())
    assert not (place.runs / "r").exists()


def _reply(files: dict[str, bytes], changes: list[str]) -> answers.Reply:
    sent = [answers.Sent(path=name, content=content, mtime=1.0) for name, content in files.items()]
    return answers.Reply(whole=True, codes={"changes": 0}, texts={"changes": "\n".join(changes)}, files=sent)


def test_only_regular_files_of_an_archive_are_taken() -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        plain = tarfile.TarInfo("file")
        plain.size = 2
        archive.addfile(plain, io.BytesIO(b"ab"))
    assert [one.path for one in answers.read_reply(b"end\n" + sink.getvalue(), stderr="").files] == ["file"]


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "a;b", "$(id)", "", "-l", "a\nb", "a'b"])
def test_a_host_that_is_none_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match=r"ssh\.host"):
        _cluster(tmp_path, host)


@pytest.mark.parametrize("host", ["login.pod", "ada@login-1.pod", "pod", "10.0.0.1", "fe80::1%eth0"])
def test_a_host_is_taken_as_ssh_takes_it(tmp_path: Path, host: str) -> None:
    assert _cluster(tmp_path, host).ssh is not None


def test_no_folder_of_this_machine_is_meant_over_there(tmp_path: Path) -> None:
    assert _cluster(tmp_path, "pod").runs == "{home}/kit/runs"
    with pytest.raises(ConfigError, match=r"paths\.runs.*\{project\} is a folder of this machine"):
        _cluster(tmp_path, "pod", '[paths]\nruns = "{project}/runs"\n')
    with pytest.raises(ConfigError, match="an embedded cluster runs on this machine and takes no ssh"):
        _cluster(tmp_path, "pod", embedded=True)


def test_another_host_has_another_mirror(tmp_path: Path) -> None:
    roots = {run_folder_mirror.find_mirror("pod", _cluster(tmp_path, host)).root for host in ("a", "b", "a")}
    assert len(roots) == 2


def _cluster(folder: Path, host: str, more: str = "", *, embedded: bool = False) -> Cluster:
    path = folder / "pod.toml"
    text = f"embedded = {str(embedded).lower()}\n[ssh]\nhost = {json.dumps(host)}\n[node]\ncpus = 4\n{more}"
    path.write_text(text)
    return load_model(path, Cluster)


@pytest.mark.parametrize(("age", "used", "asks"), [(10.0, False, 0), (10.0, True, 1), (1.0, True, 0), (60.0, False, 1)])
def test_a_command_reads_the_queue_that_came_with_its_first_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age: float, used: bool, asks: int
) -> None:
    """Also if its other requests took long; a command that follows a run asks again."""
    asked: list[bool] = []
    host = SshHost("pod", _cluster(tmp_path, "pod"), cast(Connection, SimpleNamespace()), Mirror(tmp_path))
    host.asked, host.asked_at, host.used = cast(ClusterAnswer, object()), time.monotonic() - age, used
    monkeypatch.setattr(SshHost, "refresh", lambda _: asked.append(True))
    monkeypatch.setattr(client, "queue", lambda **_: {})
    assert host.queue() == {}
    assert (len(asked), host.used) == (asks, True)
