"""Starts the relay of a training over two clusters on the first cluster's login node, and reports whether it runs.

If the login node is reached over ssh, templates/remote/relay.sh starts the relay there; otherwise it starts on this machine. In
both cases the relay is the run's own copy of launchers/diloco/relay.py, and reads its token from the run's file of secrets.
"""

from __future__ import annotations

import json
import random
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit import config, data_folders, shell
from kit.errors import ConfigError, Fault, RunError, ToolError
from kit.files import untrusted_files
from kit.hosts import clusters
from kit.hosts.ssh import SshHost
from kit.record import find_runs, secret
from kit.schema.cluster import Cluster, RelayRules
from kit.schema.job import Job
from kit.schema.run_paths import RunPaths
from kit.slurm.embedded import process as processes
from kit.slurm.embedded.cluster_record import ProcessId
from kit.ssh import run_folder_mirror as mirrors
from kit.ssh.answers import Reply

UP = "up"
# Its process died; or it was told to end, by a logout say.
DOWN = ("gone", "none")
# How long a relay may take to listen.
_LISTENS_S = 20.0
_LOOK_S = 0.1


def free_port(rules: RelayRules, remote: SshHost | None = None) -> int:
    """A port of the range that is free on the login node. ConfigError if none is free; ToolError if the login node has no Python.

    remote: the first cluster, if it is reached over ssh.
    """
    first, last = _range(rules)
    port = _free_port_there(rules, remote) if remote else _free_port_here(rules)
    if port is None:
        where = remote.connection.host if remote else "this machine"
        problem = f"none of the ports {rules.ports} is free on {where}"
        hint = 'ports = "29700-29799"' if (first, last) == (29600, 29699) else 'ports = "29600-29699"'
        raise ConfigError.of(Fault(file="[relay]", key="ports", problem=problem, hint=hint))
    return port


def _free_port_here(rules: RelayRules) -> int | None:
    first, last = _range(rules)
    for port in range(first, last + 1):
        with socket.socket(socket.AF_INET6 if ":" in (rules.bind or "") else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((rules.bind or "", port))
            except OSError:
                continue
            return port
    return None


def _free_port_there(rules: RelayRules, remote: SshHost) -> int | None:
    first, last = _range(rules)
    # The relay starts some requests later. So two submits at a time should not begin at the same port.
    words = {"FIRST": first, "LAST": last, "FROM": random.randint(first, last)}
    reply = _ask(remote, "port", **words)
    if not reply.text("python").strip():
        seen = reply.text("version").strip()
        host = remote.connection.host
        problem = f"cluster {remote.name}: the relay needs Python 3.8 or newer on {host}, which has {seen or 'none'}"
        hint = f'path = "/opt/python/bin" under [ssh] of clusters/{remote.name}.toml, where a newer one is'
        raise ToolError(problem, hint=hint)
    port = reply.text("port").strip()
    return int(port) if port else None


def _range(rules: RelayRules) -> tuple[int, int]:
    first, _, last = rules.ports.partition("-")
    return int(first), int(last or first)


def start(run_dir: Path, rules: RelayRules, port: int, *, env: Mapping[str, str]) -> None:
    """Start the relay of a run, and wait until it listens. ToolError, with its last output, if it does not.

    run_dir: of the run on the first cluster; over ssh, its mirror. If the relay runs already, do nothing.
    """
    remote = clusters.mirrored_host(run_dir)
    if remote:
        _start_there(run_dir, remote, rules, port)
    elif process(run_dir) is None:
        _start_here(run_dir, rules, port, env=env)


def _start_here(run_dir: Path, rules: RelayRules, port: int, *, env: Mapping[str, str]) -> None:
    paths = RunPaths(run_dir)
    argv = [sys.executable, str(paths.code / "relay.py"), str(run_dir), "--host", rules.host, "--port", str(port)]
    log = paths.logs / "relay.log"
    pid = shell.daemon([*argv, *(["--bind", rules.bind] if rules.bind else [])], log=log, env=env, cwd=run_dir)
    until = time.monotonic() + _LISTENS_S
    while process(run_dir) != pid:
        if shell.ended(pid) or time.monotonic() > until:
            shell.end(pid)
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise ToolError(f"the relay does not start: {''.join(said)}", hint=f"read the relay's log: {log}")
        time.sleep(_LOOK_S)


def _start_there(run_dir: Path, remote: SshHost, rules: RelayRules, port: int) -> None:
    words = {"RUN": remote.mirror.name_of(run_dir), "NODES_USE": rules.host, "PORT": port, "BIND": rules.bind or ""}
    # After a broken connection it is asked again: it starts no second one.
    reply = _ask(remote, "start", **words)
    if reply.text("relay").strip() != UP:
        problem = (
            f"cluster {remote.name}: the relay does not start on {remote.connection.host}: {reply.text('said').strip()}"
        )
        raise ToolError(problem, hint=f"read the relay's log: {remote.mirror.path_there(run_dir)}/logs/relay.log")


def _ask(remote: SshHost, what: str, **words: object) -> Reply:
    given = {"RUN": "", "FIRST": 0, "LAST": 0, "FROM": 0, "PORT": 0, "NODES_USE": "", "BIND": ""}
    constants = {**mirrors.folders(remote.rules), **given, **words, "DO": what}
    return remote.connection.ask("relay", constants, looking=True)


def state(run_dir: Path) -> str:
    """The state of a run's relay: up; gone, if its process died; "on NODE", if it runs on another login node; none, if there is
    none.

    For a run over ssh, the state comes with the run's files; it is unknown if the cluster did not answer.
    """
    remote = clusters.mirrored_host(run_dir)
    if remote:
        return remote.relays.get(run_dir.name, "unknown")
    told = _record(run_dir)
    if told is None:
        return "none"
    if told["node"] != socket.gethostname():
        return f"on {told['node']}"
    return UP if process(run_dir) else "gone"


def seen_from(half: Path, other: Path) -> str | None:
    """The state of the relay, from either run of a training over two clusters; None if that run's job cannot be read.

    half: one of the two runs; its files must be up to date.
    """
    first = first_of(half, other)
    if first == other:
        clusters.fetch(other)
    return state(first) if first else None


def first_of(half: Path, other: Path) -> Path | None:
    """The run that started the relay: `half` or its partner. None if the job of `half` cannot be read; its files must be up to
    date."""
    try:
        table = config.load_model(RunPaths(half).job, Job).diloco
    except ConfigError:
        return None
    return half if table is None or not table.first_group else other


def process(run_dir: Path) -> int | None:
    """The process of a run's relay; None if it does not run on this machine."""
    told = _record(run_dir)
    try:
        if told is None or told["node"] != socket.gethostname():
            return None
        pid, started = int(told["pid"]), int(told["started"])
    except (ValueError, TypeError):
        return None
    return pid if processes.is_alive(ProcessId(pid=pid, start=started)) else None


def _record(run_dir: Path) -> dict[str, Any] | None:
    try:
        told: dict[str, Any] = json.loads(untrusted_files.read_text(RunPaths(run_dir).state / "relay.json"))
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) and told.keys() >= {"pid", "node", "started"} else None


def folder_of(run_id: str) -> Path | None:
    """The folder of the partner's run; None if this project has no run of that name."""
    try:
        return find_runs.find_one(run_id, find_runs.folders(data_folders.project()))
    except RunError:
        return None


def token_for(partner: str) -> str:
    """The relay's token for a resumed run of a training over two clusters: the partner's token if it has one, else a new one."""
    run_dir = folder_of(partner)
    remote = clusters.mirrored_host(run_dir) if run_dir else None
    kept = ""
    if run_dir and remote:
        kept = _ask(remote, "token", RUN=remote.mirror.name_of(run_dir)).text("token").strip()
    elif run_dir:
        kept = secret.read_secrets(run_dir).get(secret.RELAY_TOKEN, "")
    return kept or secrets.token_hex(32)


def start_again(run_dir: Path, job: Job, *, env: Mapping[str, str]) -> None:
    """Start the relay again, unless it runs, at the address that both runs know. The run is the one that started it first."""
    table = job.diloco
    if table is None or table.relay is None or table.first_group:
        return
    cluster = config.load_model(RunPaths(run_dir).cluster, Cluster)
    if cluster.relay is None:
        raise RunError(f"{run_dir.name}: its cluster has no [relay] any more")
    start(run_dir, cluster.relay, int(table.relay.rpartition(":")[2]), env=env)
