"""Finds the rank to blame, and the rule for its end.

The first rank that recorded an end is usually the culprit. But if it only lost its connection to another rank, or waited for one,
it is a victim. Then the other ranks' logs are searched for the first cause.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from kit.errors import RunError
from kit.health import collectives, flight_records
from kit.health.answer import Answer, Evidence, Rule, filled
from kit.health.log_endings import Ending, ending
from kit.health.rules import framework_rules, program_rules
from kit.health.run_record import MOST_RANKS, Log, RankFailure, Record
from kit.schema.run_paths import CONTAINER_RUN, CONTAINER_WORKSPACE

_RULES = (*framework_rules.ALL, *program_rules.RULES)
# 128 + SIGABRT, and 128 + SIGSEGV where faulthandler's report of the abort failed. C and C++ programs print these lines before they
# abort.
_ABORTED = {134, 139}
_ABORT_MESSAGE = re.compile(r"^terminate called without|^ *what\(\): |Assertion .* failed")
# Rules of ranks that waited for others until a time-out.
_TIME_OUTS = {"nccl-timeout", "collective-timeout"}
_EXCEPTION = Rule(
    id="exception",
    verdict="fix the code",
    pattern="",
    says="{exception}",
    advice="the traceback in its log shows how it came there",
)
_ASSERTION = replace(
    _EXCEPTION, id="assertion", advice="the program's own check failed: its message says what it wants"
)


@dataclass(frozen=True, kw_only=True)
class RuleMatch:
    """A rule that matches a rank's end. values: fill the placeholders of the rule's sentences.

    certain: an exception or a message supports the rule, not only the exit code.
    """

    failed: RankFailure
    rule: Rule
    ending: Ending
    values: dict[str, object]
    log: Log
    certain: bool

    def line(self) -> str:
        """One sentence: the cause, with the place in the user's code."""
        place = f" at {self.ending.place}" if self.ending.place and self.certain else ""
        return filled(self.rule.says, self.values).strip() + place


def answer(record: Record) -> Answer | None:
    """The answer for the ranks of the last start; None if none recorded an end."""
    verdicts = [judge(record, failed) for failed in record.failed[:MOST_RANKS]]
    if not verdicts:
        return None
    first = verdicts[0]
    if mismatch := next((verdict for verdict in verdicts if verdict.rule.id == "collective-mismatch"), None):
        return _collective_mismatch(record, mismatch)
    culprit = next((verdict for verdict in verdicts if not verdict.rule.victim and verdict.certain), None)
    if first.rule.victim or not first.certain:
        culprit = (culprit if first.rule.victim else None) or _unrecorded_culprit(record, first)
    if culprit is None and first.rule.id in _TIME_OUTS and (missed := _missed_collective(record, first)):
        return missed
    if culprit is None or culprit.failed == first.failed:
        return _answered(record, first, f"{_named(first)} failed first: {first.line()}", first)
    tail = f"; {_named(first)}, the first to end: {first.line()}" if first.rule.victim else ""
    return _answered(record, culprit, f"{_named(culprit)} failed: {culprit.line()}{tail}", culprit, first)


def _collective_mismatch(record: Record, mismatch: RuleMatch) -> Answer:
    """Find the rank that called another collective, from the lines that each rank's flight recorder printed at its end.

    gloo's own message comes from the rank that received, even if another rank is to blame.
    """
    said_by = next((at for at, line in enumerate(mismatch.log.lines) if mismatch.rule.search(line)), None)
    if said_by is not None:
        quoted = mismatch.log.lines[said_by].strip()
        mismatch = replace(mismatch, ending=replace(mismatch.ending, line=mismatch.log.number(said_by), quoted=quoted))
    places = [(role, rank) for role, rank in record.ranks() if role == mismatch.failed.role]
    logs = [record.rank_log(rank, role) for role, rank in places]
    sequences = [collectives.parse(enumerate(log.lines)) for log in logs]
    odd = collectives.odd(sequences)
    here = next((n for n, (_, rank) in enumerate(places) if rank == mismatch.failed.rank), -1)
    others = next((calls[-1] for calls in sequences if calls), None)
    if (
        odd is None
        and others
        and here >= 0
        and not sequences[here]
        and _expects_less(mismatch, others.sizes, len(places))
    ):
        # gloo itself ended this rank before it printed its collectives, and the other ranks agree.
        line = f"{_named(mismatch)} called a collective with other tensors than the other ranks: their last is {others.what}"
        return _answered(record, mismatch, line, mismatch)
    if odd is None or odd.how == "behind":
        return _answered(record, mismatch, f"{_named(mismatch)} failed first: {mismatch.line()}", mismatch)
    rank, log = places[odd.places[0]][1], logs[odd.places[0]]
    blamed = judge(
        record,
        RankFailure(rank=rank, code=mismatch.failed.code, node=record.host_of(log), role=mismatch.failed.role, at=0),
    )
    blamed = replace(blamed, rule=mismatch.rule, values={**mismatch.values, "rank": rank, "node": blamed.failed.node})
    line = (
        f"{_named(blamed)} called {odd.own.what}, and {len(sequences) - len(odd.places)} ranks called {odd.others.what}"
    )
    shows = replace(
        blamed, ending=replace(blamed.ending, line=log.number(odd.own.line), quoted=log.lines[odd.own.line])
    )
    return _answered(record, blamed, line, shows, mismatch)


def _missed_collective(record: Record, first: RuleMatch) -> Answer | None:
    """Find the rank that the others waited for until a time-out, in the dumps of torch's flight recorder."""
    dumps = flight_records.read_dumps(record.run_dir, first.failed.role)
    found = dumps.odd()
    if found is None:
        return None
    how, ranks = found
    node = record.host_of(record.rank_log(ranks[0], first.failed.role))
    culprit = replace(first, failed=replace(first.failed, rank=ranks[0], node=node))
    others = len(dumps.calls) - len(ranks)
    more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    if how.how == "behind":
        line = f"did not come to {how.others.what}, which {others} others called; its last was {how.own.what}"
    else:
        line = f"called {how.own.what}, and {others} others called {how.others.what}"
    line = f"{_named(culprit)}{more} {line}; {_named(first)}, the first to end: {first.line()}"
    own = Evidence(file=dumps.files[ranks[0]], line=0, text=f"its last call: {how.own.what}")
    answered = _answered(record, first, line.replace("{", "(").replace("}", ")"), first)
    return replace(answered, evidence=(own, *answered.evidence))


def _expects_less(found: RuleMatch, sizes: str, world: int) -> bool:
    """Whether gloo's message means that this rank's own tensor is smaller: it received the usual part of the others' tensors."""
    received, expected = float(str(found.values["received"] or 0)), float(str(found.values["expected"] or 0))
    usual = 4.0 * math.prod(int(n) for n in re.findall(r"\d+", sizes)) / (2 * world)
    return abs(received - usual) < abs(expected - usual)


def judge(record: Record, failed: RankFailure) -> RuleMatch:
    """Match one rank's log and exit code with the rules."""
    log = record.rank_log(failed.rank, failed.role)
    end = ending(log, _roots(record))
    rule, values = _matched(end if failed.code not in _ABORTED else replace(end, text=_last_words(log, end)), failed)
    known = {
        "rank": failed.rank,
        "node": failed.node,
        "code": failed.code,
        "last": end.quoted,
        "exception": end.says,
        **values,
    }
    certain = bool(end.type) or rule in _RULES or rule.id in {"exit-code", "setup-line"}
    return RuleMatch(failed=failed, rule=rule, ending=end, values=known, log=log, certain=certain)


def _last_words(log: Log, end: Ending) -> str:
    """The text of an aborted program: the abort message may come before faulthandler's stacks."""
    return "\n".join([*(line for line in log.lines if _ABORT_MESSAGE.search(line)), end.text])


def _matched(end: Ending, failed: RankFailure) -> tuple[Rule, dict[str, object]]:
    if (
        end.type
        and PurePosixPath(end.place.partition(":")[0]).match("*megatron/training/arguments.py")
        and (match := framework_rules.MEGATRON.search(end.text))
    ):
        return framework_rules.MEGATRON, _groups(match.groupdict())
    for rule in _RULES:
        if (rule.code is None or rule.code == failed.code) and (match := rule.search(end.text)):
            return rule, _groups(match.groupdict())
    if end.type:
        return (_ASSERTION if end.type == "AssertionError" else _EXCEPTION), {}
    for rule in program_rules.BY_CODE:
        if rule.code in {None, failed.code} and (match := rule.search(end.text)):
            return rule, _groups(match.groupdict())
    raise AssertionError("the last rule takes any end")


def _groups(found: dict[str, str | None]) -> dict[str, object]:
    return {name: value.strip() if value else "" for name, value in found.items()}


def _unrecorded_culprit(record: Record, first: RuleMatch) -> RuleMatch | None:
    """A rank that raised its own exception and was ended before it could record that."""
    known = {failed.rank for failed in record.failed if failed.role == first.failed.role}
    for role, rank in record.ranks():
        if rank in known or role != first.failed.role:
            continue
        log = record.rank_log(rank, role)
        failed = RankFailure(rank=rank, code=0, node=record.host_of(log), role=role, at=0.0)
        found = judge(record, failed)
        if found.ending.type and not found.rule.victim:
            return found
    return None


def _roots(record: Record) -> list[tuple[str, str]]:
    """Folders of the user's code and of the kit's copy of it, each with its name in an answer."""
    try:
        job_folder = str(PurePosixPath(record.status.manifest.job_file).parent)
    except RunError:
        job_folder = ""
    run = str(record.run_dir)
    return [
        (CONTAINER_WORKSPACE, ""),
        (f"{run}/workspace", ""),
        (f"{CONTAINER_RUN}/code", "code/"),
        (f"{run}/code", "code/"),
        (CONTAINER_RUN, ""),
        (job_folder, ""),
    ]


def _named(one: RuleMatch) -> str:
    role = f"role {one.failed.role}: " if one.failed.role else ""
    return f"{role}rank {one.failed.rank}" + (f" on {one.failed.node}" if one.failed.node else "")


def _answered(record: Record, culprit: RuleMatch, line: str, *cited: RuleMatch) -> Answer:
    values = {**record.values, "run_dir": record.run_dir, **culprit.values}
    return Answer(
        rule=culprit.rule.id,
        verdict=culprit.rule.verdict,
        line=line,
        advice=filled(culprit.rule.advice, values),
        next=filled(culprit.rule.next, values),
        evidence=tuple(
            Evidence(file=one.log.name, line=one.ending.line, text=one.ending.quoted) for one in cited if one.log.lines
        ),
    )
