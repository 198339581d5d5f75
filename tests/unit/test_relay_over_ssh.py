"""The relay's program on a login node, by this machine's sh: a free port, its start, what became of it, the token."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.errors import ConfigError, ToolError
from kit.hosts import clusters, pair_relay
from kit.hosts.ssh import SshHost
from kit.schema.cluster import Cluster, RelayRules
from kit.ssh import run_folder_mirror as mirrors
from kit.ssh import shell_program
from kit.ssh.answers import Reply
from tests.support import REPO
from tests.unit.test_remote import sh

TOKEN = "0123456789abcdef" * 4


class HereConnection:
    """In the place of ssh: the program runs in a shell of this machine. path: of the login's PATH."""

    host = "login.a"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = ""

    def ask(self, name: str, constants: dict[str, object], *, looking: bool) -> Reply:
        assert looking
        return sh(shell_program.text(name, constants, mark="mark", path=self.path), self.folder)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshHost:
    """A cluster whose runs are in a folder of this machine, with a run that has a job; Slurm answers that it runs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = tmp_path / "runs" / "gpt-a"
    for name in ("state", "code", "logs"):
        (run / name).mkdir(parents=True)
    shutil.copy(REPO / "launchers/diloco/relay.py", run / "code")
    (run / ".secrets").write_text(f"export OTHER='a b'\nexport KIT_RELAY_TOKEN={TOKEN}\n")
    (run / "manifest.json").write_text(json.dumps({"job_id": 7}))
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\necho RUNNING\n")
    squeue.chmod(0o755)
    rules = Cluster.model_validate(
        {"ssh": {"host": "login.a"}, "node": {"cpus": 4}, "paths": {"runs": str(tmp_path / "runs")}}
    )
    connection: Any = HereConnection(tmp_path)
    connection.path = str(tmp_path / "bin")

    made = SshHost("a", rules, connection, mirrors.find_mirror("a", rules))
    monkeypatch.setattr(clusters, "mirrored_host", lambda run_dir: made)
    return made


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def asked(cluster: SshHost) -> str:
    """What `kit status` gets with the run's files."""
    constants = {
        "RUNS": str(cluster.rules.paths.runs),
        "RUN": "gpt-a",
        "RELAY": 1,
        "STORE": "",
        "QUEUE": "",
        "WHOLE": "",
    }
    known = {"KNOWN": 0, "JOBS": "", "ARGV": shell_program.Words(("true",))}
    connection: Any = cluster.connection
    return sh(shell_program.text("fetch", {**constants, **known}, mark="mark"), connection.folder).texts["relay"]


def test_a_relay_is_started_once_and_its_state_is_seen(cluster: SshHost) -> None:
    rules = RelayRules(host="127.0.0.1", ports="41000-41999", bind="127.0.0.1")
    run = Path(cluster.rules.paths.runs) / "gpt-a"
    mirrored = cluster.mirror.runs / "gpt-a"
    assert asked(cluster) == "none"
    port = pair_relay.free_port(rules, cluster)
    assert 41000 <= port <= 41999
    pair_relay.start(mirrored, rules, port, env={})
    told = json.loads((run / "state" / "relay.json").read_text())
    try:
        assert (told["port"], asked(cluster)) == (port, "up")
        assert TOKEN.encode() not in Path(f"/proc/{told['pid']}/cmdline").read_bytes()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            assert connection.recv(64).startswith(b"kit-relay 1 ")
        pair_relay.start(mirrored, rules, port, env={})
        assert json.loads((run / "state" / "relay.json").read_text()) == told
        alone = RelayRules(host="127.0.0.1", ports=str(port), bind="127.0.0.1")
        with pytest.raises(ConfigError, match=f"none of the ports {port} is free on login.a"):
            pair_relay.free_port(alone, cluster)
    finally:
        os.kill(told["pid"], signal.SIGKILL)
    # It may be a zombie now.
    until(lambda: asked(cluster) == "gone")
    (run / "state" / "relay.json").write_text(json.dumps({**told, "node": "login2"}) + "\n")
    assert asked(cluster) == "on login2"


def test_a_relay_that_cannot_start_says_why(cluster: SshHost) -> None:
    rules = RelayRules(host="127.0.0.1", ports="41000-41999", bind="127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ToolError) as caught:
        there = cluster.mirror.runs / "gpt-a"
        cluster.mirror.root.mkdir(parents=True)
        facts = dict.fromkeys(("user", "uid", "home", "data", "store"), "") | {"runs": "/there"}
        (cluster.mirror.root / "mirror.json").write_text(json.dumps({"cluster": "a", "there": facts}))
        pair_relay.start(there, rules, taken.getsockname()[1], env={})
    assert "cluster a: the relay does not start on login.a: " in caught.value.message
    assert "cannot listen on port" in caught.value.message
    assert caught.value.hint == "read the relay's log: /there/gpt-a/logs/relay.log"


def test_a_resumed_half_takes_the_token_that_the_other_still_has_over_there(
    cluster: SshHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_relay, "folder_of", lambda run_id: cluster.mirror.runs / run_id)
    assert pair_relay.token_for("gpt-a") == TOKEN
    (Path(cluster.rules.paths.runs) / "gpt-a" / ".secrets").unlink()
    assert pair_relay.token_for("gpt-a") != TOKEN


def test_a_login_node_without_a_python_for_it_is_named(cluster: SshHost, tmp_path: Path) -> None:
    for name in ("python3", *(f"python3.{minor}" for minor in range(8, 15))):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\necho Python 3.6.8\nexit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    with pytest.raises(ToolError) as caught:
        pair_relay.free_port(RelayRules(host="h"), cluster)
    assert caught.value.message == "cluster a: the relay needs Python 3.8 or newer on login.a, which has Python 3.6.8"
