"""Rules for ends by Slurm or the user, and for runs that have not ended: on Slurm's state, the events and the batch log."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kit.files import untrusted_files
from kit.health.answer import (
    AGAIN,
    JOB,
    LOGS,
    NODE,
    NOTHING,
    RESUME,
    STATUS,
    SUBMIT,
    WAIT,
    WITHOUT_NODE,
    Answer,
    Evidence,
    Rule,
    Verdict,
    filled,
)
from kit.health.rules import pending_reasons, stall_rules
from kit.health.run_record import Record, shown
from kit.hosts.status import UNKNOWN
from kit.record.how_ended import SLURM_ENDED
from kit.record.run_facts import UNREADABLE
from kit.schema.run_paths import RunPaths

_EVENTS = "state/events.jsonl"

# What templates/core/lib/retry.sh records of a preempted job whose ranks ended with 0: 128 + SIGTERM.
_DOUBTED = 143


def answer(
    record: Record,
    rule: str,
    verdict: Verdict,
    line: str,
    *,
    advice: str = "",
    then: str = "",
    evidence: tuple[Evidence, ...] = (),
) -> Answer:
    """An answer whose sentences are filled with the run's values."""
    known = record.values
    return Answer(
        rule=rule,
        verdict=verdict,
        line=filled(line, known),
        advice=filled(advice, known),
        next=filled(then, known),
        evidence=evidence,
    )


def cite(record: Record, pattern: str) -> tuple[Evidence, ...]:
    """The last matching line of the batch log."""
    for place in range(len(record.batch.lines) - 1, -1, -1):
        line = record.batch.lines[place]
        if re.search(pattern, line):
            return (Evidence(file=record.batch.name, line=record.batch.number(place), text=shown(line)),)
    return ()


def unfinished(record: Record) -> Answer | None:
    """The answer for a run that waits, runs, or was never started; None if it has ended."""
    run = record.status
    if run.state == UNREADABLE:
        advice = "restore the file, or remove the folder; the logs are still there"
        evidence = (Evidence(file="manifest.json", line=0, text=shown(run.reason)),)
        return answer(
            record,
            "unreadable",
            JOB,
            "its manifest cannot be read: the file is damaged, or of a newer kit",
            advice=advice,
            then=LOGS,
            evidence=evidence,
        )
    if run.state == "SUBMITTED":
        advice = "the submit was cut off before sbatch answered"
        return answer(
            record, "never-submitted", AGAIN, "it never reached Slurm: it has no job number", advice=advice, then=SUBMIT
        )
    if run.state == UNKNOWN:
        # No verdict without evidence: the run may wait, run or have ended.
        reason = shown(run.reason or "Slurm does not answer").replace("{", "(").replace("}", ")")
        return answer(
            record,
            "not-known",
            WAIT,
            f"its state is not known now: {reason}",
            advice="ask again once Slurm answers; the logs are in the run's folder",
            then=STATUS,
            evidence=_newest_line(record),
        )
    if run.state == "PENDING" or run.state.startswith("REQUEUE"):
        return _waiting(record)
    if run.active:
        stalled = stall_rules.live(record) if run.state == "RUNNING" else None
        return stalled or answer(
            record,
            "running",
            WAIT,
            "it runs on {nodes}, for {elapsed}" + (f"; {record.torchrun_restarts}" if record.torchrun_restarts else ""),
            advice="nothing is wrong as far as Slurm and the logs say",
            then="kit logs {run} --follow",
            evidence=_newest_line(record),
        )
    return None


def _waiting(record: Record) -> Answer:
    one = record.status
    start = f"; Slurm expects to start it at {record.expected_start}" if record.expected_start else ""
    reason = one.reason.partition(": the batch script")[0]
    if record.events and record.events[-1]["event"] == "requeue":
        after, evidence = _why_requeued(record)
        line = f"it is back in the queue after {after}, and continues from its newest checkpoint{start}"
        return answer(
            record,
            "requeued",
            WAIT,
            line,
            advice="Slurm holds a requeued job for about two minutes",
            then=STATUS,
            evidence=evidence,
        )
    for rule in pending_reasons.RULES:
        if found := rule.search(reason):
            line = filled(rule.says, found.groupdict()) + start
            evidence = (Evidence(file="squeue", line=0, text=reason),)
            return answer(record, rule.id, rule.verdict, line, advice=rule.advice, then=rule.next, evidence=evidence)
    raise AssertionError("the last rule takes any reason")


def _why_requeued(record: Record) -> tuple[str, tuple[Evidence, ...]]:
    """Why the newest start ended, and what shows it.

    Slurm writes a line for each start that it ends, also where the batch script asked for the requeue. When a node is lost, Slurm
    ends the ranks of the other nodes, and what these ended with says nothing.
    """
    ended = cite(record, SLURM_ENDED)
    if ended and "DUE TO NODE FAILURE" in ended[0].text:
        return "the loss of a node", ended
    code = record.events[-1].get("exit_code")
    return f"exit code {code}", (Evidence(file=_EVENTS, line=0, text=f"requeue, exit_code {code}"),)


def _newest_line(record: Record) -> tuple[Evidence, ...]:
    """The last line of the most recently written log."""
    logs = [path for path in RunPaths(record.run_dir).logs.glob("**/rank-*.log") if path.is_file()]
    if not logs:
        return ()
    log = record.log(max(logs, key=lambda path: path.stat().st_mtime), most=64 << 10)
    return (
        (Evidence(file=log.name, line=log.number(len(log.lines) - 1), text=shown(log.lines[-1])),) if log.lines else ()
    )


class _SlurmsLine(NamedTuple):
    """Slurm's own line on the end of a job, and its reason in that line; both empty where there is none."""

    evidence: tuple[Evidence, ...]
    why: str


def _time_limit(record: Record, line: _SlurmsLine) -> tuple[Evidence, ...] | None:
    return line.evidence if record.status.state == "TIMEOUT" or line.why == "TIME LIMIT" else None


def _preempted_and_done(record: Record, _line: _SlurmsLine) -> tuple[Evidence, ...] | None:
    if record.status.exit_code != _DOUBTED:
        return None
    return cite(record, "Slurm preempted the job, and the ranks ended with 0") or None


def _preempted(record: Record, line: _SlurmsLine) -> tuple[Evidence, ...] | None:
    return line.evidence if record.status.state == "PREEMPTED" or line.why == "PREEMPTION" else None


def _never_started(record: Record, _line: _SlurmsLine) -> tuple[Evidence, ...] | None:
    one = record.status
    if one.state != "CANCELLED" or not one.reason.startswith("DependencyNeverSatisfied"):
        return None
    return (Evidence(file="squeue", line=0, text=one.reason),)


def _lost_node(record: Record, line: _SlurmsLine) -> tuple[Evidence, ...] | None:
    one = record.status
    lost = one.state in {"NODE_FAIL", "BOOT_FAIL"} or line.why == "NODE FAILURE" or "NodeDown" in one.reason
    return line.evidence if lost else None


ENDS: tuple[tuple[Rule, Callable[[Record, _SlurmsLine], tuple[Evidence, ...] | None]], ...] = (
    (
        Rule(
            id="time-limit",
            verdict=JOB,
            pattern="",
            says="it ran into its time limit and was ended by Slurm after {elapsed}",
            advice="save before the limit: leave slurm.lead as it is and set retry.requeue, or ask for more resources.time",
            next=RESUME,
        ),
        _time_limit,
    ),
    (
        Rule(
            id="preempted",
            verdict=AGAIN,
            pattern="",
            says="it was preempted, and its ranks ended with 0: whether they were done is not known",
            advice="end with 128 + the signal when the work is cut short; a 0 is taken for an end, and nothing is queued again",
            next=RESUME,
        ),
        _preempted_and_done,
    ),
    (
        Rule(
            id="preempted",
            verdict=AGAIN,
            pattern="",
            says="it was preempted: a job of higher priority took its nodes",
            advice="set retry.requeue, and a preempted job goes back to the queue by itself",
            next=RESUME,
        ),
        _preempted,
    ),
    (
        Rule(
            id="dependency-failed",
            verdict=JOB,
            pattern="",
            says="Slurm dropped it: the job that it depends on ended the wrong way",
            advice="look why the job that it depends on failed, and submit both again",
            next=SUBMIT,
        ),
        _never_started,
    ),
    (
        Rule(
            id="node-lost",
            verdict=NODE,
            pattern="",
            says="a node of it was lost (it had {lost})",
            advice="leave the node out, and tell the administrator; retry.requeue or retry.spares do so by themselves",
            next=WITHOUT_NODE.replace("{node}", "{lost}"),
        ),
        _lost_node,
    ),
)


def outside(record: Record) -> Answer | None:
    """The answer for an end from outside the program: a cancel, a limit, a preemption, a lost node."""
    line = _slurms_line(record)
    lost = record.status.nodes or record.status.facts.nodes
    for rule, look in ENDS:
        if (evidence := look(record, line)) is not None:
            says, then = (text.replace("{lost}", lost) for text in (rule.says, rule.next))
            return answer(record, rule.id, rule.verdict, says, advice=rule.advice, then=then, evidence=evidence)
    return _asked_to_end(record, line.evidence)


def _asked_to_end(record: Record, evidence: tuple[Evidence, ...]) -> Answer | None:
    run = record.status
    # A request to end that came later outweighs the lead signal.
    signals = [event.get("name") for event in record.events if event["event"] == "signal"]
    lead = signals[-1:] == ["USR1"] and run.exit_code is not None
    if lead and (late := cite(record, r"the ranks did not end within \d+ s after USR1")):
        advice = "save at the signal before the limit (slurm.signal), or give it more time: slurm.lead"
        return answer(
            record,
            "time-limit-unsaved",
            JOB,
            "its time limit came, and the ranks did not end in the lead time",
            advice=advice,
            then=LOGS,
            evidence=late,
        )
    if lead:
        advice = "continue from the checkpoint; with retry.requeue the kit does so by itself"
        return answer(
            record,
            "time-limit-saved",
            AGAIN,
            "its time limit came, and the ranks ended after the lead signal and saved",
            advice=advice,
            then=RESUME,
            evidence=cite(record, "after USR1|got USR1"),
        )
    if run.state != "CANCELLED" and not (record.has_event("signal", name="TERM") and run.exit_code == 143):
        return None
    waited = not record.events
    if _cancelled_by(record) or not evidence:
        line = f"it was cancelled by {_who(record)}" + (" before it began" if waited else "")
        return answer(
            record,
            "cancelled",
            NOTHING,
            line,
            advice="it continues from its newest checkpoint when it is resumed",
            then=RESUME,
            evidence=cite(record, "got TERM"),
        )
    advice = "kit cancel gives ranks the seconds of slurm.grace to save; after scancel they have Slurm's KillWait"
    return answer(
        record,
        "cancelled-by-slurm",
        NOTHING,
        f"it was cancelled with scancel, by {_who(record)}",
        advice=advice,
        then=RESUME,
        evidence=evidence,
    )


def _who(record: Record) -> str:
    """The user who cancelled the run: from the note of `kit cancel`, or from Slurm's accounting."""
    accounted = record.status.accounted
    return (
        _cancelled_by(record)
        or (accounted.cancelled_by if accounted and accounted.cancelled_by else "")
        or "a user that Slurm does not name"
    )


def _cancelled_by(record: Record) -> str:
    """The user who cancelled the run with `kit cancel` since its last submit; empty if nobody did."""
    path = RunPaths(record.run_dir).cancelled_by
    try:
        if path.stat().st_mtime < record.status.facts.submitted_at:
            return ""
        return shown(untrusted_files.read_text(path, most=4096).strip()) or "kit cancel"
    except OSError:
        return ""


def _slurms_line(record: Record) -> _SlurmsLine:
    """Slurm's own line in the logs of batch script and launchers, and its reason for ending the job."""
    logs = RunPaths(record.run_dir).logs
    tasks: list[Path] = sorted(logs.glob("**/task-*.log"))[:8]
    for log in [record.batch, record.batch_output, *map(record.log, tasks)]:
        for place, line in enumerate(log.lines):
            if (found := re.search(SLURM_ENDED, line)) and ("JOB" in found[0] or found["why"]):
                evidence = Evidence(file=log.name, line=log.number(place), text=shown(line))
                return _SlurmsLine(evidence=(evidence,), why=found["why"] or "")
    return _SlurmsLine(evidence=(), why="")


def silent(record: Record) -> Answer | None:
    """The answer for a run whose batch script recorded no end."""
    run = record.status
    if run.state == "LOST":
        advice = "Slurm may have been set up anew, or lost its state; nothing runs any more"
        return answer(
            record,
            "lost",
            AGAIN,
            "it recorded no end, and Slurm does not know its job any more",
            advice=advice,
            then=RESUME,
            evidence=_last_event(record),
        )
    if run.exit_code is None and record.events:
        advice = "submit again; if it comes back, tell the administrator of node {nodes}"
        line = "the batch script was killed, or its node was lost: it recorded no end"
        return answer(record, "batch-killed", NODE, line, advice=advice, then=RESUME, evidence=_last_event(record))
    return None


def _last_event(record: Record) -> tuple[Evidence, ...]:
    if not record.events:
        return ()
    last = record.events[-1]
    return (Evidence(file=_EVENTS, line=0, text=f"{last['event']} at {last.get('time', '')}"),)
