"""Facts that `kit runs` and `kit status` show, for both and for the Python API. No manifest is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kit.answers import named_runs
from kit.answers.explain_run import first_line
from kit.answers.named_runs import Say
from kit.hosts import from_accounting, other_jobs
from kit.hosts import status as host_status
from kit.hosts.host import Queue
from kit.hosts.status import Status
from kit.record import find_runs, metrics, resumed_from, run_facts
from kit.record.metrics import Latest, Quorum
from kit.record.unmade_points import POINTS
from kit.slurm.client import JobId


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """One run. state: Slurm's word, or LOST, SUBMITTED, UNKNOWN, UNREADABLE (docs/concepts/runs.md).

    exit_code: None until the run has ended. reason: Slurm's. elapsed: as squeue prints it. max_rss, cpu_time, nodes_by_start: only
    if Slurm's accounting was asked and knows the job. world_sizes: role -> ranks. submitted_at: ISO 8601, UTC.
    """

    run: str
    job_id: JobId | None
    state: str
    exit_code: int | None
    reason: str
    cluster: str
    nodes: str
    elapsed: str
    restarts: int
    max_rss: str | None
    cpu_time: str | None
    nodes_by_start: list[str] | None
    world_sizes: Mapping[str, int]
    launcher: str
    runtime: str
    image: str | None
    image_digest: str
    git: str | None
    workspace: str
    rerun_of: str | None
    submitted_at: str
    run_dir: str


@dataclass(frozen=True, kw_only=True)
class ListedRun(RunFacts):
    """A run in the list of all runs. partner: the run on the other cluster of a training over two clusters."""

    partner: str | None


@dataclass(frozen=True, kw_only=True)
class PartnerRun:
    """The other half of a training over two clusters. relay: its state, while one of the halves is active."""

    run: str
    cluster: str | None
    state: str
    job_id: JobId | None
    relay: str | None


@dataclass(frozen=True, kw_only=True)
class RunStatus(RunFacts):
    """All about one run's state.

    why: the reason in one sentence, if the run did not end well. training: what the program last reported. quorum: the last of
    replica groups. continued_at: where the last start continued. unwatched: node -> the user whose folder hides its reports.
    """

    why: str
    training: Latest | None
    quorum: Quorum | None
    continued_at: str | None
    unwatched: Mapping[str, str]
    partner: PartnerRun | None


def list_statuses(runs_dir: Path | None, *, queue: Queue, say: Say) -> list[Status]:
    """All runs of the project, or of one folder; oldest first. The queue of each cluster is read once for all its runs."""
    found = host_status.of_facts(find_runs.find_all(named_runs.folders(runs_dir, say=say)), queue=queue)
    if found_again(found):
        found = host_status.of_facts(find_runs.find_all(named_runs.folders(runs_dir, say=say)), queue=queue)
    return from_accounting.add(found, ask=other_jobs.ask_accounting(say=say))


def status_of(run_dir: Path, *, queue: Queue, say: Say) -> Status:
    """The status of one run with all that Slurm, and its accounting, know of it."""
    found = host_status.read_statuses([run_dir], queue=queue)
    if found_again(found):
        found = host_status.read_statuses([run_dir], queue=queue)
    (one,) = from_accounting.add(found, ask=other_jobs.ask_accounting(say=say), every=True)
    return one


def found_again(found: Iterable[Status]) -> bool:
    """Whether Slurm has jobs for points without one, because `kit sweep` was killed before it had recorded them."""
    points = [one.run_dir for one in found if one.job_id is None and one.run_dir.parent.name == POINTS]
    if not points:
        return False
    from kit.sweeps import lost_arrays

    return lost_arrays.noted(points)


def listed(one: Status) -> ListedRun:
    """A run in the list of all runs."""
    return ListedRun(**_facts(one), partner=one.facts.partner)


def shown(run: Status, *, queue: Queue, say: Say) -> RunStatus:
    """All about one run: its files are read, and the other half of a training over two clusters is asked for."""
    events = run_facts.events(run.run_dir)
    return RunStatus(
        **_facts(run),
        why=first_line(run),
        training=metrics.latest(run.run_dir),
        quorum=metrics.quorum(run.run_dir),
        continued_at=resumed_from.last(events),
        unwatched=_unwatched(events),
        partner=_partner(run, queue=queue, say=say),
    )


def _unwatched(events: Sequence[Mapping[str, object]]) -> dict[str, str]:
    return {str(event["node"]): str(event["owner"]) for event in events if event["event"] == "unwatched"}


def _facts(run: Status) -> dict[str, Any]:
    facts = run.facts
    return {
        "run": facts.run_id,
        "job_id": run.job_id,
        "state": run.state,
        "exit_code": run.exit_code,
        "reason": run.reason,
        "cluster": facts.cluster,
        "nodes": run.nodes,
        "elapsed": run.elapsed,
        "restarts": run.restarts,
        "max_rss": None,
        "cpu_time": None,
        "nodes_by_start": None,
        **from_accounting.facts(run.accounted),
        "world_sizes": facts.world_sizes,
        "launcher": facts.launcher,
        "runtime": facts.runtime,
        "image": facts.image_name,
        "image_digest": facts.image_digest,
        "git": facts.git,
        "workspace": facts.workspace,
        "rerun_of": facts.rerun_of,
        "submitted_at": datetime.fromtimestamp(facts.submitted_at, UTC).isoformat(timespec="seconds"),
        "run_dir": str(run.run_dir),
    }


def _partner(run: Status, *, queue: Queue, say: Say) -> PartnerRun | None:
    """The other half of a training over two clusters; None for any other run."""
    if (name := run.facts.partner) is None:
        return None
    from kit.hosts import pair_relay

    named_runs.folders(None, name, say=say)
    run_dir = pair_relay.folder_of(name)
    if run_dir is None:
        return PartnerRun(run=name, cluster=None, state="not found", job_id=None, relay=None)
    (other,) = host_status.read_statuses([run_dir], queue=queue)
    relay = pair_relay.seen_from(run.run_dir, run_dir) if run.active or other.active else None
    return PartnerRun(run=name, cluster=other.facts.cluster, state=other.state, job_id=other.job_id, relay=relay)
