"""One DiLoCo training on two clusters: a run on each cluster, and a relay that connects their groups.

The groups are split over the clusters. Each run is an ordinary run of its cluster. Its files name the other run, the relay's
address, and a token that both share. The first run starts the relay (`pair_relay`). The relay ends when Slurm has no more jobs of
that run.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kit import config
from kit.config import Sources
from kit.errors import ConfigError, Fault, UsageError
from kit.hosts import pair_relay
from kit.hosts.clusters import ssh_host_for
from kit.record import secret
from kit.record.manifest import Manifest
from kit.schema.cluster import RelayRules
from kit.schema.job import Job
from kit.schema.run_paths import RunPaths
from kit.slurm import client
from kit.submission import lone_halves, prepare_run, submit
from kit.submission.prepare_run import Partner, Prepared


@dataclass(frozen=True, kw_only=True)
class TwoRuns:
    """The two runs of a training. The cluster of the first run has the relay."""

    first: Prepared
    second: Prepared
    relay: RelayRules
    port: int

    @property
    def runs(self) -> tuple[Prepared, Prepared]:
        """Both runs, in order."""
        return self.first, self.second


def asked_for(job: Path, clusters: Sequence[str], overrides: Sequence[str]) -> bool:
    """Whether these clusters train the job together, as `across` of [diloco] asks. Otherwise one of them runs it."""
    if len(clusters) < 2:
        return False
    sources = config.read_job(config.job_path(job), cluster=clusters[0], overrides=list(overrides))
    table = sources.merged().get("diloco")
    return isinstance(table, Mapping) and table.get("across") is True


def prepare_pair(
    job: Path,
    clusters: Sequence[str],
    *,
    overrides: Sequence[str] = (),
    containers: bool = True,
    now: datetime | None = None,
) -> TwoRuns:
    """Read, check and plan both runs; nothing is written. ConfigError or UsageError if the job cannot be split."""
    if len(clusters) != 2 or len(set(clusters)) != 2:
        problem = f"--cluster {','.join(clusters)}: a training is split over two clusters"
        raise UsageError(problem, hint="name two, or set diloco.across = false: the job runs where it starts first")
    sources = [config.read_job(config.job_path(job), cluster=name, overrides=[*overrides]) for name in clusters]
    resolved = sources[0].resolve()
    relay = _relay_of(sources)
    shares = split(resolved.job, file=resolved.job_file)
    port = pair_relay.free_port(relay, ssh_host_for(sources[0].cluster.name, sources[0].place))
    now = now or datetime.now(UTC)
    stem = f"{resolved.job.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    ids, token = [f"{stem}-{name}" for name in clusters], secrets.token_hex(32)
    halves = []
    for index, (source, (nodes, first_group, groups)) in enumerate(zip(sources, shares, strict=True)):
        keys = {
            "resources": {"nodes": nodes},
            "diloco": {
                "groups": groups,
                "first_group": first_group,
                "relay": f"{(source.place.relay or relay).host}:{port}",
            },
        }
        own = source.resolve(keys, label=f"--cluster {','.join(clusters)}")
        plan = prepare_run.prepare_resolved(own, source.job_file, containers=containers, now=now, run_id=ids[index])
        halves.append(replace(plan, partner=Partner(run_id=ids[1 - index], token=token)))
    _require_equal_groups(halves)
    return TwoRuns(first=halves[0], second=halves[1], relay=relay, port=port)


def _relay_of(sources: Sequence[Sources]) -> RelayRules:
    first, second = sources
    if first.place.relay is None:
        problem = f"nothing says how the nodes of {second.cluster.name} reach the login node of {first.cluster.name}"
        hint = '[relay]\n       host = "login.pod"'
        raise ConfigError.of(Fault(file=config.shown(first.cluster.path), key="relay", problem=problem, hint=hint))
    return first.place.relay


def split(job: Job, *, file: str) -> list[tuple[int, int, int]]:
    """For each cluster: its nodes, the number of its first group, and the number of all groups. If the number of
    groups is odd, the first cluster gets one more."""
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
            problem = "for a training over two clusters, 'kit submit' sets this key itself"
            raise ConfigError.of(Fault(file=file, key=f"diloco.{key}", problem=problem, hint="remove the line"))
    here = units - units // 2
    return [(here * span, 0, units * each), ((units - here) * span, here * each, units * each)]


def _require_equal_groups(halves: Sequence[Prepared]) -> None:
    """ConfigError where a group of one cluster has more ranks: the batch is shared out over equal groups."""
    sizes = [{role.world_size for role in one.plan.roles if role.name.startswith("replica-")} for one in halves]
    if sizes[0] != sizes[1]:
        ranks = [", ".join(map(str, sorted(one))) for one in sizes]
        names = [one.plan.cluster for one in halves]
        problem = f"a group has {ranks[0]} ranks on {names[0]} and {ranks[1]} on {names[1]}"
        raise ConfigError.of(
            Fault(
                file=halves[0].resolved.job_file,
                key="resources.gpus_per_node",
                problem=problem,
                hint="gpus_per_node = 1",
            )
        )


def submit_pair(pair: TwoRuns, *, say: Callable[[Prepared, Manifest], None]) -> None:
    """Submit both runs and start their relay. If one of these steps fails, the submitted runs are cancelled.

    say: called with each run after both were submitted.
    """
    for run in pair.runs:
        submit.make_ready(run)
    sent: list[tuple[Prepared, Manifest]] = []
    try:
        with lone_halves.both_or_none() as about_to_submit:
            for run in pair.runs:
                about_to_submit(run.host, run.folder)
                sent.append((run, submit.submit(run, ready=True)))
                if run is pair.first:
                    pair_relay.start(run.folder, pair.relay, pair.port, env=run.env)
    except BaseException:
        for run, manifest in sent:
            if run.host.shares_files:
                client.cancel_each([manifest.job_id] if manifest.job_id is not None else [], env=run.env)
                _note_cancelled(run.folder)
        for run in pair.runs:
            _say_cancelled(run, submitted=any(run is other for other, _ in sent))
        raise
    for run, manifest in sent:
        say(run, manifest)


def _say_cancelled(run: Prepared, *, submitted: bool) -> None:
    """Print whether a half is cancelled. Over ssh, a half may exist although its submit failed."""
    if not run.host.shares_files and lone_halves.is_noted(run.host, run.folder):
        print(
            f"kit: {run.plan.run_id}: the next command that reaches {run.plan.cluster} cancels it, if it is there",
            file=sys.stderr,
        )
    elif submitted:
        print(f"kit: {run.plan.run_id}: cancelled, as the other half was not submitted", file=sys.stderr)


def _note_cancelled(run_dir: Path) -> None:
    """Record the cancel as `kit cancel` does for a job that has not begun: its batch script will record nothing."""
    secret.remove(run_dir)
    RunPaths(run_dir).cancelled.touch()
