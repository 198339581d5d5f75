"""Status of runs: from Slurm's queue, asked once for all of them, and from the events that each batch script recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kit.hosts import open_submissions
from kit.hosts.host import Queue
from kit.hosts.patient_queue import PatientQueue
from kit.record import foreign_runs, how_ended, index, run_facts, unmade_points
from kit.record.run_facts import Facts
from kit.schema.run_paths import RunPaths
from kit.slurm.accounting import Accounted
from kit.slurm.client import ACTIVE, JobId, QueuedJob
from kit.ssh import run_folder_mirror as mirrors

if TYPE_CHECKING:
    from kit.record.manifest import Manifest

# Seconds between two reads of a job's own record, which is a file, and between two requests to Slurm. The controller has to serve
# all users, so it is asked less often.
_LOOK_S, _ASK_S = 0.3, 5.0
_SOONER_S = (0.3, 0.6, 1.2, 2.4)
# The state of a job whose cluster cannot be reached, unless its own record says how it ended.
UNKNOWN = "UNKNOWN"

# How long a job may be neither in the queue nor ended in its own record: both may be updated late.
_SETTLE_S = 10.0
# After this time, Slurm has forgotten a job that it does not know.
_FORGOTTEN_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Status:
    """One run.

    state: Slurm's state while it knows the job; then COMPLETED or FAILED from the run's own record. Without such a record,
    CANCELLED if `kit cancel` came before the job began, else LOST. UNREADABLE, with the reason, if its manifest cannot be read.
    UNKNOWN if it had not ended when it was last seen, and its cluster cannot be reached, or does not show another user's jobs.
    accounted: the data of Slurm's accounting, if it was asked (`from_accounting.add`).
    """

    facts: Facts
    run_dir: Path
    job_id: JobId | None
    state: str
    exit_code: int | None
    nodes: str
    elapsed: str
    reason: str
    restarts: int
    accounted: Accounted | None = None

    @property
    def active(self) -> bool:
        """Whether Slurm still has the job."""
        return self.state in ACTIVE

    @cached_property
    def manifest(self) -> Manifest:
        """Its manifest, read when first used; RunError if it cannot be read."""
        from kit.record.manifest import read_manifest

        return read_manifest(RunPaths(self.run_dir).manifest)


def read_statuses(run_dirs: Sequence[Path], *, queue: Queue, folder_first: bool = True) -> list[Status]:
    """The status of some runs. `queue` is called once per cluster. folder_first: as in `of_facts`."""
    runs = index.facts(run_dirs)
    elsewhere = {path for path, _ in runs if mirrors.holding(path)}
    if not elsewhere:
        return of_facts(runs, queue=queue, folder_first=folder_first)
    # For a cluster over ssh, this also updates the runs' records.
    answers = {name: queue(name) for name in dict.fromkeys(facts.cluster for _, facts in runs if not facts.problem)}
    again = [(path, run_facts.read_facts(path) if path in elsewhere else facts) for path, facts in runs]
    return of_facts(
        again, queue=lambda name: answers[name] if name in answers else queue(name), folder_first=folder_first
    )


def of_record(run_dir: Path) -> Status:
    """The status from the run's own record alone, for its batch script: Slurm is not asked, and nothing is removed."""
    one = run_facts.read_facts(run_dir)
    state = "RUNNING" if one.exit_code is None else "FAILED" if one.exit_code else "COMPLETED"
    return Status(
        facts=one, run_dir=run_dir, job_id=_job_of(one, {}), state=state, exit_code=one.exit_code, nodes=one.nodes, elapsed="",
        reason="", restarts=one.restarts,
    )  # fmt: skip


def of_facts(runs: Sequence[tuple[Path, Facts]], *, queue: Queue, folder_first: bool = True) -> list[Status]:
    """The same for runs whose facts were read already.

    folder_first: runs that have closed their own record are answered from it, and Slurm is asked only about others. A submission
    whose outcome was not known is settled first. While that is open, its run is UNKNOWN.
    """
    unsettled = open_submissions.settle(runs)
    if unsettled:
        runs = [(path, run_facts.read_facts(path) if unsettled.get(path) == "" else facts) for path, facts in runs]
    over = {path for path, facts in runs if folder_first and path not in unsettled and how_ended.is_over(path, facts)}
    asked = dict.fromkeys(facts.cluster for path, facts in runs if not facts.problem and path not in over)
    queues = {name: queue(name) for name in asked}
    statuses = [
        _of_folder(path, facts)
        if path in over
        else _newest(_status(path, facts, queues.get(facts.cluster, {})), queues)
        for path, facts in runs
    ]
    statuses = _with_foreign(statuses)
    if unsettled:
        statuses = [_unconfirmed(run, unsettled.get(run.run_dir, "")) for run in statuses]
    for run in statuses:
        _clean(run)
    return statuses


def _with_foreign(statuses: list[Status]) -> list[Status]:
    """The same, where other users' runs are LOST only if Slurm, asked for their jobs by number, does not know them."""
    wanted: dict[str, list[Status]] = {}
    for run in statuses:
        if run.state == "LOST" and foreign_runs.is_foreign(run.run_dir):
            wanted.setdefault(run.facts.cluster, []).append(run)
    if not wanted:
        return statuses
    from kit.hosts import other_jobs

    answers = {
        cluster: other_jobs.find_foreign(
            cluster, [run.job_id for run in those if run.job_id is not None], [run.run_dir for run in those]
        )
        for cluster, those in wanted.items()
    }
    foreign = {run.run_dir for those in wanted.values() for run in those}
    return [_asked_for(run, answers[run.facts.cluster]) if run.run_dir in foreign else run for run in statuses]


def _asked_for(one: Status, answer: foreign_runs.ForeignJobs) -> Status:
    now = _status(one.run_dir, one.facts, answer.jobs)
    if now.state != "LOST":
        return now
    if foreign_runs.hides_its_record(one.run_dir):
        return replace(now, state=UNKNOWN, reason="another user's run, whose state/ you may not read")
    if not answer.whole:
        return replace(now, state=UNKNOWN, reason="another user's run, and Slurm does not show you other users' jobs")
    return now


def _of_folder(run_dir: Path, facts: Facts) -> Status:
    """The status of a run that has ended, without Slurm."""
    job_id: JobId | None = facts.slurm_id if facts.slurm_id is not None else facts.job_id
    state = how_ended.state(run_dir, facts)
    return Status(
        facts=facts, run_dir=run_dir, job_id=job_id, state=state, exit_code=facts.exit_code, nodes=facts.nodes,
        elapsed=how_ended.elapsed(run_dir) if facts.exit_code else "", reason=how_ended.reason(state), restarts=facts.restarts,
    )  # fmt: skip


def _unconfirmed(one: Status, reason: str) -> Status:
    return replace(one, state=UNKNOWN, reason=reason) if reason and not one.active else one


def _newest(run: Status, queues: Mapping[str, Mapping[JobId, QueuedJob] | None]) -> Status:
    """The status from the run's present record, if Slurm says that it has ended and the record, read earlier, does not.

    A job may end while Slurm is asked, even one that had not started before: a busy controller takes seconds to answer. Without a
    second look, such a run would count as one whose batch script was killed. A run that never started, and that Slurm does not
    know, gets no second look: there may be thousands of them.
    """
    if run.active or run.exit_code is not None or run.state == UNKNOWN:
        return run
    if not run.facts.started and run.job_id not in (queues.get(run.facts.cluster) or {}):
        return run
    now = run_facts.read_facts(run.run_dir)
    return run if now == run.facts else _status(run.run_dir, now, queues.get(now.cluster, {}))


def wait(run_dir: Path, *, queue: Queue, on_poll: Callable[[Status], None]) -> Status:
    """Wait until a run has ended. `on_poll` is called with its status after each request to Slurm.

    Slurm is asked every five seconds, and whenever the run's own record says that its job has started, is requeued or has ended.
    After the end, Slurm's last state follows within a second or two, so some requests come sooner. While Slurm does not answer, the
    run's own record alone tells its end; NoAnswerError if that takes too long. The end is complete when the logs are merged.
    """
    patient = PatientQueue(queue)
    unsettled, sooner = 0.0, iter(_SOONER_S)
    while True:
        asked = time.monotonic()
        # Slurm too has to be done with the job, if it answers.
        (status,) = read_statuses([run_dir], queue=patient, folder_first=False)
        on_poll(status)
        over = not status.active and status.state != UNKNOWN
        if over and (_is_complete(status) or unsettled >= _SETTLE_S):
            return _of_folder(run_dir, status.facts) if how_ended.is_over(run_dir, status.facts) else status
        pause = next(sooner, _ASK_S) if status.exit_code is not None else _ASK_S
        turn = _turn(status.facts)
        while time.monotonic() < asked + pause and _turn(run_facts.read_facts(run_dir)) == turn:
            time.sleep(_LOOK_S)
        unsettled = unsettled + time.monotonic() - asked if over else 0.0


def _is_complete(one: Status) -> bool:
    """Whether a run has recorded all of its end. The batch script records its code first, and then merges the logs."""
    if one.state in {"LOST", "SUBMITTED"}:
        return False
    return one.exit_code is None or run_facts.is_closed(one.run_dir)


def _turn(one: Facts) -> tuple[object, ...]:
    """The part of a run's record that changes when Slurm's state of its job does."""
    return one.started, one.restarts, one.exit_code, one.last_event == "requeue"


def _status(run_dir: Path, facts: Facts, answered: Mapping[JobId, QueuedJob] | None) -> Status:
    queue = answered or {}
    job_id = _job_of(facts, queue)
    queued = queue.get(job_id) if job_id is not None else None
    state = _state(queued, facts, submitted=job_id is not None or facts.imported, run_dir=run_dir)
    if answered is None and state in {"LOST", "SUBMITTED"}:
        state = UNKNOWN
    return Status(
        facts=facts,
        run_dir=run_dir,
        job_id=job_id,
        state=state,
        exit_code=facts.exit_code,
        nodes=(queued.nodes if queued else "") or facts.nodes,
        elapsed=queued.elapsed if queued else "",
        reason=facts.problem or _reason(queued, state, facts.last_event),
        restarts=facts.restarts,
    )


def _reason(queued: QueuedJob | None, state: str, last_event: str) -> str:
    """Slurm's reason. If the batch script has begun and recorded no end, that is added."""
    said = queued.reason if queued and queued.reason != "None" else ""
    if state in ACTIVE or last_event in {"", "end", "requeue"}:
        return said
    return ": ".join(filter(None, [said, "the batch script was killed, or its node was lost: it recorded no end"]))


def _clean(run: Status) -> None:
    """Remove the files that a killed batch script, or one that never started, could not remove itself. Only of the user's own run:
    root may look at a run whose owner's jobs it does not know.
    """
    if run.active or run.exit_code is not None or run.state in {"SUBMITTED", UNKNOWN, run_facts.UNREADABLE}:
        return
    # A job that Slurm does not know may be too new.
    forgotten = run.state != "LOST" or time.time() - run.facts.submitted_at > _FORGOTTEN_S
    if forgotten and not foreign_runs.is_foreign(run.run_dir):
        from kit.record import secret

        secret.remove(run.run_dir)
        (RunPaths(run.run_dir).state / ".reserve").unlink(missing_ok=True)


def _job_of(facts: Facts, queue: Mapping[JobId, QueuedJob]) -> JobId | None:
    """The run's job. For a chain: the first link that has not ended, else the last one that has started."""
    if facts.slurm_id is None:
        return facts.job_id
    links: tuple[JobId, ...] = (facts.slurm_id, *facts.links)
    on = [link for link in links if link in queue and queue[link].state in ACTIVE]
    over = [link for link in links if link in facts.started]
    return (on or over[-1:] or links)[0]


def _was_cancelled(run_dir: Path, facts: Facts) -> bool:
    """Whether its newest job was cancelled while it waited, and has not begun all the same. `kit resume` removes the mark."""
    try:
        cancelled = unmade_points.cancelled(run_dir).stat().st_mtime
    except OSError:
        return False
    try:
        begun = RunPaths(run_dir).events.stat().st_mtime
    except OSError:
        begun = 0.0
    return cancelled >= max(facts.submitted_at, begun)


def _state(queued: QueuedJob | None, facts: Facts, *, submitted: bool, run_dir: Path) -> str:
    if facts.problem:
        return run_facts.UNREADABLE
    if queued is not None:
        # The mark of a preemption stays on a job that has gone back to the queue since, whatever its end. A batch script
        # that was itself preempted records no 0.
        return "COMPLETED" if queued.state == "PREEMPTED" and facts.exit_code == 0 else queued.state
    # A resumed run has the end of its earlier job. The cancel of the later one, which never began, counts.
    if _was_cancelled(run_dir, facts):
        return "CANCELLED"
    if facts.exit_code is not None:
        return how_ended.state(run_dir, facts)
    return "LOST" if submitted else "SUBMITTED"
