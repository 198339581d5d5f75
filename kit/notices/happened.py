"""Finds the events of a run that deserve a notice, and words it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kit.health.run_record import Record
from kit.health.why import explain
from kit.hosts.status import Status
from kit.record import run_facts
from kit.schema.notify import Event

# A `kit watch` that was down does not tell of yesterday.
STALE_S = 3600.0
_LATE = {"LOST", "SUBMITTED"}


@dataclass(frozen=True, kw_only=True)
class Happened:
    """An event of a run. key: unique in the run, also after a requeue; a resumed run has new keys. at: seconds since the epoch."""

    event: Event
    key: str
    at: float


def happened(run: Status, on: Sequence[Event], *, now: float, gone: bool = False) -> list[Happened]:
    """The events of a run that `on` names, oldest first. A failed run gives one event, whether `on` has fail, end, or both.

    gone: Slurm lost the job long enough ago, and the run's record has no end; this counts as an end.
    """
    every = run_facts.events(run.run_dir)
    job = run.facts.slurm_id
    mine = [event for event in every if job is None or _since(event, run)]
    events: list[Happened] = []
    starts = [event for event in mine if event["event"] == "start"]
    if starts:
        events.append(Happened(event="start", key=f"start-{job}", at=_at(starts[0], now)))
    for event in mine:
        if event["event"] == "stall":
            number = str(event.get("number", "")) or str(event.get("epoch"))
            events.append(Happened(event="stall", key=f"stall-{job}-{number}", at=_at(event, now)))
    if not run.active and (run.state not in _LATE or (gone and run.state == "LOST")):
        at = _at(mine[-1], now) if run.exit_code is not None and mine else now
        failed = run.state != "COMPLETED" or bool(run.exit_code)
        event_of: Event = "fail" if failed and "fail" in on else "end"
        events.append(Happened(event=event_of, key=f"end-{job}", at=at))
    return [one for one in events if one.event in on]


def _since(event: Mapping[str, object], run: Status) -> bool:
    """Whether an event belongs to this submission. Events of earlier submissions of the folder were sent when they happened."""
    if "_" in str(run.facts.slurm_id):
        # A point of a sweep is submitted once, and its script knows another number of its job.
        return True
    return str(event.get("job_id")) in {str(run.facts.slurm_id), str(run.job_id), *map(str, run.facts.links)}


def _at(event: Mapping[str, object], now: float) -> float:
    epoch = event.get("epoch")
    return float(epoch) if isinstance(epoch, int | float) else now


def text(run: Status, event: Event) -> tuple[str, str]:
    """The title and the body of a notice."""
    name = run.run_dir.name
    facts = f"job {run.job_id} on {run.facts.cluster}, nodes {run.nodes or 'not known'}"
    if event == "start":
        return f"{name}: started", facts
    if event == "stall":
        return f"{name}: ranks are stalled", "\n".join([*_stalled(run), facts, f"kit why {name}"])
    code = "" if run.exit_code is None else f", exit code {run.exit_code}"
    answer = explain(Record(status=run))
    said = [answer.line, answer.advice, facts, answer.next]
    return f"{name}: {run.state}{code}", "\n".join(filter(None, said))


def _stalled(run: Status) -> Iterable[str]:
    newest = next((e for e in reversed(run_facts.events(run.run_dir)) if e["event"] == "stall"), {})
    if newest:
        where = f"rank {newest.get('rank')} on {newest.get('node')}"
        yield f"{where}, step {newest.get('step')} ({newest.get('phase')}), for {newest.get('idle')} s"
