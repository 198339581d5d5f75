"""What became of runs: Slurm's queue, asked once for all of them, and the events that each batch script recorded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kit.runs import secret
from kit.runs.manifest import Manifest, read
from kit.slurm.accounting import Accounted
from kit.slurm.client import ACTIVE, JobId, QueuedJob
from kit.spec.paths import RunPaths

_POLL_FIRST_S, _POLL_MOST_S = 0.3, 5.0
# How long a job may be neither in the queue nor ended in its own record: a new job shows up late, an ended one writes late.
_SETTLE_S = 10.0
# After this long a job that Slurm does not know has been forgotten.
_FORGOTTEN_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Status:
    """One run.

    state: Slurm's while it knows the job; then COMPLETED or FAILED by the run's own record; without one CANCELLED when `kit cancel`
    came before the job began, else LOST. accounted: what Slurm's accounting knows, where it was asked (`history.add`).
    """

    manifest: Manifest
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
        """Whether Slurm still has something to do for it."""
        return self.state in ACTIVE


def events(run_dir: Path) -> list[dict[str, object]]:
    """The batch script's own record, oldest first. A last line that is cut off (a full disk, a dead node) is left out."""
    try:
        lines = RunPaths(run_dir).events.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    kept = []
    for line in lines:
        try:
            kept.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return kept


def of(run_dirs: Sequence[Path], *, queue: Callable[[str], dict[JobId, QueuedJob]]) -> list[Status]:
    """The status of many runs. `queue` is asked once per cluster."""
    manifests = [read(RunPaths(p).manifest) for p in run_dirs]
    queues = {name: queue(name) for name in dict.fromkeys(m.cluster for m in manifests)}
    found = [_status(p, m, queues[m.cluster]) for p, m in zip(run_dirs, manifests, strict=True)]
    for one in found:
        _clean(one)
    return found


def wait(run_dir: Path, *, queue: Callable[[str], dict[JobId, QueuedJob]], on_poll: Callable[[Status], None]) -> Status:
    """Wait until a run has ended. `on_poll` hears its status at every look; looks come at 0.3 s and slow down to 5 s."""
    pause, unsettled = _POLL_FIRST_S, 0.0
    while True:
        (status,) = of([run_dir], queue=queue)
        on_poll(status)
        if not status.active and (status.state not in {"LOST", "SUBMITTED"} or unsettled >= _SETTLE_S):
            return status
        unsettled = unsettled + pause if not status.active else 0.0
        time.sleep(pause)
        pause = min(pause * 1.2, _POLL_MOST_S)


def _status(run_dir: Path, manifest: Manifest, queue: dict[JobId, QueuedJob]) -> Status:
    recorded = events(run_dir)
    starts = [e for e in recorded if e["event"] == "start"]
    ended = recorded[-1] if recorded and recorded[-1]["event"] == "end" else None
    job_id = _job_of(manifest, starts, queue)
    queued = queue.get(job_id) if job_id is not None else None
    code = int(str(ended["exit_code"])) if ended else None
    state = _state(queued, code, submitted=job_id is not None, cancelled=_was_cancelled(run_dir, manifest))
    return Status(
        manifest=manifest,
        run_dir=run_dir,
        job_id=job_id,
        state=state,
        exit_code=code,
        nodes=(queued.nodes if queued else "") or (str(starts[-1]["nodes"]) if starts else ""),
        elapsed=queued.elapsed if queued else "",
        reason=_reason(queued, state, recorded),
        restarts=max((int(str(e["restart"])) for e in starts), default=0),
    )


def _reason(queued: QueuedJob | None, state: str, recorded: list[dict[str, object]]) -> str:
    """Slurm's own, and that the batch script had no last word, where it began and did not end."""
    said = queued.reason if queued and queued.reason != "None" else ""
    if state in ACTIVE or not recorded or recorded[-1]["event"] in {"end", "requeue"}:
        return said
    return ": ".join(filter(None, [said, "the batch script was killed, or its node was lost: it recorded no end"]))


def _clean(one: Status) -> None:
    """Remove what a batch script that was killed, or never started, could not remove itself."""
    if one.active or one.exit_code is not None or one.state == "SUBMITTED":
        return
    age = (datetime.now(UTC) - one.manifest.submitted_at).total_seconds()
    # A job that Slurm does not know may be one that it does not know yet.
    if one.state != "LOST" or age > _FORGOTTEN_S:
        secret.remove(one.run_dir)
        (RunPaths(one.run_dir).state / ".reserve").unlink(missing_ok=True)


def _job_of(manifest: Manifest, starts: list[dict[str, object]], queue: dict[JobId, QueuedJob]) -> JobId | None:
    """The run's job; of a chain's links the first that is not over, else the last that has started."""
    started = [int(str(e["job_id"])) for e in starts]
    if manifest.slurm_id is None:
        return started[0] if started else None
    links: tuple[JobId, ...] = (manifest.slurm_id, *manifest.links)
    on = [link for link in links if link in queue and queue[link].state in ACTIVE]
    over = [link for link in links if link in started]
    return (on or over[-1:] or links)[0]


def _was_cancelled(run_dir: Path, manifest: Manifest) -> bool:
    """Whether it was cancelled while it waited, and not submitted again since."""
    try:
        return RunPaths(run_dir).cancelled.stat().st_mtime >= manifest.submitted_at.timestamp()
    except FileNotFoundError:
        return False


def _state(queued: QueuedJob | None, code: int | None, *, submitted: bool, cancelled: bool) -> str:
    if queued is not None:
        return queued.state
    if code is not None:
        return "COMPLETED" if code == 0 else "FAILED"
    return "CANCELLED" if cancelled else "LOST" if submitted else "SUBMITTED"
