"""Finds one answer for every run: applies the rules in order, the most certain first.

The answer is deterministic and needs no network. It uses the run folder and Slurm's answers.
"""

from __future__ import annotations

import time
from dataclasses import replace

from kit.health import blamed_rank, last_step, next_command
from kit.health.answer import AGAIN, CODE, JOB, LOGS, NOTHING, RANK_LOG, Answer, Evidence, Rule, filled
from kit.health.rules import batch_log_rules, slurm_state_rules, stall_rules
from kit.health.run_record import Log, Record, shown
from kit.schema.run_exit_codes import RunExitCode
from kit.schema.run_paths import RunPaths

_FATAL = r"^\S+ \S+: error: (?P<what>.+)"
_MOST_REPORTS = 64
# Rules of the batch log for what ends a job before its ranks start.
_BEFORE_RANKS = frozenset(
    (
        "all-reduce",
        "disk-full",
        "image-refused",
        "once-failed",
        "site-part-failed",
        "stage-failed",
        "stage-image",
        "stage-node",
    )
)


def explain(record: Record) -> Answer:
    """Find the reason for a run's state. Never raises, whatever the run's folder contains."""
    return next_command.for_run(record, _explained(record))


def with_last_step(record: Record, answer: Answer) -> Answer:
    """The same answer with the last step of a program that reports none to the kit, for a run that runs or did not end well."""
    running = record.status.state == "RUNNING"
    if answer.verdict == NOTHING or not record.starts() or (record.status.active and not running):
        return answer
    found = last_step.read_last_step(record.run_dir)
    if found is None:
        return answer
    text = f"{found.words(time.time() if running else None)} (from {shown(found.source)})"
    return replace(answer, evidence=(*answer.evidence, Evidence(file="last step", line=0, text=text)))


def _explained(record: Record) -> Answer:
    return (
        slurm_state_rules.unfinished(record)
        or _completed(record)
        or _certain(record)
        or slurm_state_rules.outside(record)
        or slurm_state_rules.silent(record)
        or stall_rules.ended(record)
        or _before_ranks(record)
        or _ranks(record)
        or _batch(record, batch_log_rules.BATCH)
        or _unknown(record)
    )


def _completed(record: Record) -> Answer | None:
    # A job that lost a node may record exit code 0: its ranks ended well after Slurm's TERM.
    if record.status.state != "COMPLETED":
        return None
    starts = record.starts()
    again = f", after {starts} starts" if starts > 1 else ""
    by_torchrun = f"; {record.torchrun_restarts}" if record.torchrun_restarts else ""
    return slurm_state_rules.answer(
        record,
        "completed",
        NOTHING,
        f"it ended well{again}{by_torchrun}{record.resumed}",
        then=LOGS,
        evidence=slurm_state_rules.cite(record, "end of job"),
    )


def _before_ranks(record: Record) -> Answer | None:
    """The reason why the ranks did not start: from the preflight's reports on nodes, then from the batch log."""
    if record.status.exit_code == RunExitCode.PREFLIGHT:
        folder = RunPaths(record.run_dir).state / "preflight"
        reports = sorted(folder.glob("*.failed"))[:_MOST_REPORTS]
        for rule in batch_log_rules.PREFLIGHT:
            for path in reports:
                if found := _in_log(record, rule, record.log(path)):
                    return found
    return _batch(record, tuple(rule for rule in batch_log_rules.BATCH if rule.id in _BEFORE_RANKS))


def _certain(record: Record) -> Answer | None:
    """Two lines that outweigh Slurm's state: a point without a run folder, and a job that Slurm cannot end any more, so that the
    batch script itself cancelled it.
    """
    return _batch(record, tuple(r for r in batch_log_rules.BATCH if r.id in {"stepd-killed", "point-not-made"}))


def _batch(record: Record, rules: tuple[Rule, ...]) -> Answer | None:
    """The first rule that matches the batch log, or a log with output of srun and Pyxis."""
    logs = RunPaths(record.run_dir).logs
    batch_logs = [
        record.batch,
        record.batch_output,
        *(record.log(path) for path in sorted(logs.glob("**/task-*.log"))[:8]),
        record.log(logs / "preflight.log"),
    ]
    for rule in rules:
        for log in batch_logs:
            if found := _in_log(record, rule, log):
                return found
    return None


def _in_log(record: Record, rule: Rule, log: Log) -> Answer | None:
    for index, line in enumerate(log.lines):
        if found := rule.search(line):
            values = {**record.values, **found.groupdict()}
            return Answer(
                rule=rule.id,
                verdict=rule.verdict,
                line=filled(rule.says, values),
                advice=filled(rule.advice, values),
                next=filled(LOGS if rule.next == RANK_LOG and not values.get("rank") else rule.next, values),
                evidence=(Evidence(file=log.name, line=log.number(index), text=shown(line)),),
            )
    return None


def _ranks(record: Record) -> Answer | None:
    answer = blamed_rank.answer(record)
    if answer is None:
        return None
    if answer.rule in {"killed", "terminated"} and (
        killed := _batch(record, tuple(r for r in batch_log_rules.BATCH if r.id in {"oom-killed", "srun-failed"}))
    ):
        return replace(killed, evidence=(*killed.evidence, *answer.evidence))
    starts = record.starts()
    if record.status.exit_code == RunExitCode.NO_PROGRESS:
        line = f"no progress: the last starts reached no new step; the last: {answer.line}"
        # Whatever the last start ended with, another one would not help.
        return replace(
            answer, rule="no-progress", line=line, verdict=JOB if answer.verdict == AGAIN else answer.verdict
        )
    if starts > 1:
        none_left = record.restarts and all(made >= most for most, made in record.restarts.values())
        line = f"after {starts} starts{' no restart is left' if none_left else ''}{record.resumed}; the last: {answer.line}"
        return replace(answer, rule="retries-exhausted" if none_left else answer.rule, line=line)
    if record.torchrun_restarts:
        return replace(answer, line=f"{record.torchrun_restarts}; the last: {answer.line}")
    return answer


def _unknown(record: Record) -> Answer:
    """No rule above matches: quote the batch script's last error."""
    log = record.batch
    for place in range(len(log.lines) - 1, -1, -1):
        if match := Rule(id="", verdict=CODE, pattern=_FATAL, says="", advice="").search(log.lines[place]):
            evidence = (Evidence(file=log.name, line=log.number(place), text=shown(log.lines[place])),)
            return slurm_state_rules.answer(
                record,
                "batch-error",
                AGAIN,
                shown(match["what"]).replace("{", "(").replace("}", ")"),
                then=LOGS,
                evidence=evidence,
            )
    code = record.status.exit_code
    if code and RunPaths(record.run_dir).script.is_file():
        return slurm_state_rules.answer(
            record,
            "unknown",
            CODE,
            f"its batch script ended with exit code {code}",
            advice="the end of its log shows which command failed",
            then=LOGS,
        )
    return slurm_state_rules.answer(
        record,
        "unknown",
        AGAIN,
        f"no rule knows this end: {record.status.state}, exit code {code if code is not None else 'unknown'}",
        advice="its logs say more",
        then=LOGS,
    )
