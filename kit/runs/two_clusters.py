"""One DiLoCo training on two clusters: a run on each, and the relay that their groups meet at.

The groups are split over the clusters. Each run is an ordinary one, of its cluster; both name the other, hold one token and
the relay's address. The relay is the first run's: launchers/diloco/relay.py, started on this machine, from the run's own
copy of it. It ends by itself when Slurm has no job of that run any more.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kit import config, data_folders, shell
from kit.config import Sources
from kit.errors import ConfigError, Fault, RunError, ToolError, UsageError
from kit.runs import chain, find_runs, secret, submit
from kit.runs.manifest import Manifest
from kit.runs.submit import Partner, Prepared
from kit.spec.cluster import Cluster, RelayRules
from kit.spec.job import Job
from kit.spec.run_paths import RunPaths

# How long a relay may take to listen.
_LISTENS_S = 20.0
_LOOK_S = 0.1


@dataclass(frozen=True, kw_only=True)
class TwoRuns:
    """The two runs of a training, the first one's cluster being that with the relay."""

    first: Prepared
    second: Prepared
    relay: RelayRules
    port: int

    @property
    def runs(self) -> tuple[Prepared, Prepared]:
        """Both, the first one first."""
        return self.first, self.second


def asked_for(job: Path, clusters: Sequence[str], overrides: Sequence[str]) -> bool:
    """Whether the job is one to be split over the clusters that are named, rather than to run on one of them."""
    if len(clusters) < 2:
        return False
    sources = config.read_job(config.job_path(job), cluster=clusters[0], overrides=list(overrides))
    table = sources.merged().get("diloco")
    return isinstance(table, Mapping) and table.get("across") is True


def prepare(
    job: Path,
    clusters: Sequence[str],
    *,
    overrides: Sequence[str] = (),
    containers: bool = True,
    now: datetime | None = None,
) -> TwoRuns:
    """Read, check and plan both runs; nothing is written. ConfigError and UsageError with what does not fit."""
    if len(clusters) != 2 or len(set(clusters)) != 2:
        problem = f"--cluster {','.join(clusters)}: a training is split over two clusters"
        raise UsageError(problem, hint="name two, or set diloco.across = false: the job runs where it starts first")
    sources = [config.read_job(config.job_path(job), cluster=name, overrides=[*overrides]) for name in clusters]
    resolved = sources[0].resolve()
    relay = _relay_of(sources)
    shares = split(resolved.job, file=resolved.job_file)
    port = free_port(relay)
    now = now or datetime.now(UTC)
    stem = f"{resolved.job.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    ids, token = [f"{stem}-{name}" for name in clusters], secrets.token_hex(32)
    made = []
    for index, (one, (nodes, first_group, groups)) in enumerate(zip(sources, shares, strict=True)):
        keys = {
            "resources": {"nodes": nodes},
            "diloco": {
                "groups": groups,
                "first_group": first_group,
                "relay": f"{(one.place.relay or relay).host}:{port}",
            },
        }
        own = one.resolve(keys, label=f"--cluster {','.join(clusters)}")
        plan = submit.prepare_resolved(own, one.job_file, containers=containers, now=now, run_id=ids[index])
        made.append(replace(plan, partner=Partner(run_id=ids[1 - index], token=token)))
    _require_equal_groups(made)
    return TwoRuns(first=made[0], second=made[1], relay=relay, port=port)


def _relay_of(sources: Sequence[Sources]) -> RelayRules:
    first, second = sources
    for one in sources:
        if one.place.ssh is not None:
            problem = "a training over two clusters needs both on this machine's side: the kit starts no relay over ssh"
            raise ConfigError.of(
                Fault(
                    file=config.shown(one.cluster.path),
                    key="ssh",
                    problem=problem,
                    hint="submit from a login node that has both clusters",
                )
            )
    if first.place.relay is None:
        problem = f"nothing says how the nodes of {second.cluster.name} reach the login node of {first.cluster.name}"
        hint = '[relay]\n       host = "login.pod"'
        raise ConfigError.of(Fault(file=config.shown(first.cluster.path), key="relay", problem=problem, hint=hint))
    return first.place.relay


def split(job: Job, *, file: str) -> list[tuple[int, int, int]]:
    """Of each cluster: its nodes, the number of its first group, and the groups of both. Of an odd number the first has more."""
    table, nodes = job.diloco, job.resources.nodes
    assert table is not None
    span, each = table.nodes_per_replica or 1, table.replicas_per_node or 1
    units = nodes // span
    if nodes % span or units < 2:
        problem = f"{nodes} nodes with nodes_per_replica = {span} cannot be split over two clusters: each needs a group at least"
        hint = f"nodes = {2 * span}" if units < 2 else f"nodes = {units * span}"
        raise ConfigError.of(Fault(file=file, key="resources.nodes", problem=problem, hint=hint))
    for key in ("groups", "first_group", "relay"):
        if key in table.model_fields_set:
            problem = "over two clusters 'kit submit' fills it in"
            raise ConfigError.of(Fault(file=file, key=f"diloco.{key}", problem=problem, hint="remove the line"))
    here = units - units // 2
    return [(here * span, 0, units * each), ((units - here) * span, here * each, units * each)]


def _require_equal_groups(made: Sequence[Prepared]) -> None:
    """ConfigError where a group of one cluster has more ranks: the batch is shared out over equal groups."""
    sizes = [{role.world_size for role in one.plan.roles if role.name.startswith("replica-")} for one in made]
    if sizes[0] != sizes[1]:
        ranks = [", ".join(map(str, sorted(one))) for one in sizes]
        names = [one.plan.cluster for one in made]
        problem = f"a group has {ranks[0]} ranks on {names[0]} and {ranks[1]} on {names[1]}"
        raise ConfigError.of(
            Fault(
                file=made[0].resolved.job_file, key="resources.gpus_per_node", problem=problem, hint="gpus_per_node = 1"
            )
        )


def free_port(rules: RelayRules) -> int:
    """The first port of the cluster's range that nobody listens on. ConfigError without any."""
    first, _, last = rules.ports.partition("-")
    for port in range(int(first), int(last or first) + 1):
        with socket.socket(socket.AF_INET6 if ":" in (rules.bind or "") else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((rules.bind or "", port))
            except OSError:
                continue
            return port
    raise ConfigError.of(
        Fault(
            file="[relay]",
            key="ports",
            problem=f"none of the ports {rules.ports} is free on this machine",
            hint='ports = "29700-29799"',
        )
    )


def submit_pair(pair: TwoRuns, *, say: Callable[[Prepared, Manifest], None]) -> None:
    """Submit both runs and start their relay. What was submitted is cancelled when the rest is refused.

    say: hears of each run as it is submitted.
    """
    for one in pair.runs:
        submit.require_ready(one)
        submit.ask_slurm(one)
    sent: list[tuple[Prepared, Manifest]] = []
    try:
        for one in pair.runs:
            sent.append((one, submit.submit(one)))
            if one is pair.first:
                start_relay(one.folder, pair.relay, pair.port, env=one.env)
            say(*sent[-1])
    except BaseException:
        for one, made in sent:
            chain.cancel([made.job_id] if made.job_id is not None else [], env=one.env)
            _note_cancelled(one.folder)
            print(f"kit: {one.plan.run_id}: cancelled, as the other half was not submitted", file=sys.stderr)
        raise


def _note_cancelled(run_dir: Path) -> None:
    """As `kit cancel` notes it of a job that has not begun: its batch script will say nothing."""
    secret.remove(run_dir)
    RunPaths(run_dir).cancelled.touch()


def start_relay(run_dir: Path, rules: RelayRules, port: int, *, env: Mapping[str, str]) -> None:
    """Start the relay of a run on this machine, and wait until it listens. ToolError, with what it said, when it does not."""
    paths = RunPaths(run_dir)
    argv = [sys.executable, str(paths.code / "relay.py"), str(run_dir), "--host", rules.host, "--port", str(port)]
    log = paths.logs / "relay.log"
    pid = shell.daemon([*argv, *(["--bind", rules.bind] if rules.bind else [])], log=log, env=env, cwd=run_dir)
    until = time.monotonic() + _LISTENS_S
    while relay_process(run_dir) != pid:
        if shell.ended(pid) or time.monotonic() > until:
            shell.end(pid)
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise ToolError(f"the relay does not start: {''.join(said)}", hint=f"its log is {log}")
        time.sleep(_LOOK_S)


def relay_process(run_dir: Path) -> int | None:
    """The process of a run's relay, where it is one of this machine and lives."""
    try:
        told: dict[str, Any] = json.loads((RunPaths(run_dir).state / "relay.json").read_text(encoding="utf-8"))
        pid, node, began = int(told["pid"]), told["node"], int(told["started"])
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    lives = node == socket.gethostname() and int(stat.rpartition(")")[2].split()[19]) == began
    return pid if lives else None


def folder_of(run_id: str) -> Path | None:
    """The folder of the other half; None where this project has none of that name."""
    try:
        return find_runs.find_one(run_id, find_runs.folders(data_folders.project()))
    except RunError:
        return None


def token_for(partner: str) -> str:
    """For a run that is resumed: the token that its other half still has, else a new one."""
    run_dir = folder_of(partner)
    kept = secret.read(run_dir).get(secret.RELAY_TOKEN) if run_dir else None
    return kept or secrets.token_hex(32)


def relay_again(run_dir: Path, job: Job, *, env: Mapping[str, str]) -> None:
    """Start the relay of a first run that is resumed, unless it is there, with the address that both halves know."""
    table = job.diloco
    if table is None or table.relay is None or table.first_group or relay_process(run_dir) is not None:
        return
    cluster = config.load_model(RunPaths(run_dir).cluster, Cluster)
    if cluster.relay is None:
        raise RunError(f"{run_dir.name}: its cluster has no [relay] any more")
    start_relay(run_dir, cluster.relay, int(table.relay.rpartition(":")[2]), env=env)
