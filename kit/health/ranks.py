"""Which rank is to blame, and by which rule.

The first rank that recorded an end is mostly the culprit. One that only lost its connection to another, or waited for it, is its
victim: then the others' logs are read for what happened first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from kit.errors import RunError
from kit.health import frameworks, programs
from kit.health.answer import Answer, Evidence, Rule, filled
from kit.health.endings import Ending, ending
from kit.health.record import MOST_RANKS, Failed, Log, Record
from kit.spec.paths import CONTAINER_RUN, CONTAINER_WORKSPACE

_RULES = (*frameworks.ALL, *programs.RULES)
_FAILED_SOME = "it ended with exit code {code}"
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
class Found:
    """What a rank's end says. values: fill the rule's sentences.

    certain: an exception or a message says it, not the exit code alone.
    """

    failed: Failed
    rule: Rule
    ending: Ending
    values: dict[str, object]
    log: Log
    certain: bool

    def line(self) -> str:
        """What happened, with the place in the user's code."""
        place = f" at {self.ending.place}" if self.ending.place and self.certain else ""
        return filled(self.rule.says, self.values).strip() + place


def answer(record: Record) -> Answer | None:
    """Why the ranks of the last start failed; None when none recorded an end."""
    found = [judge(record, one) for one in record.failed[:MOST_RANKS]]
    if not found:
        return None
    first = found[0]
    culprit = next((one for one in found if not one.rule.victim and one.certain), None)
    if first.rule.victim or not first.certain:
        culprit = (culprit if first.rule.victim else None) or _among_the_rest(record, first)
    if culprit is None or culprit.failed == first.failed:
        return _answered(record, first, f"{_named(first)} failed first: {first.line()}", first)
    tail = f"; {_named(first)}, the first to end: {first.line()}" if first.rule.victim else ""
    return _answered(record, culprit, f"{_named(culprit)} failed: {culprit.line()}{tail}", culprit, first)


def judge(record: Record, failed: Failed) -> Found:
    """One rank by its log and its exit code."""
    log = record.rank_log(failed.rank, failed.role)
    end = ending(log, _roots(record))
    rule, values = _matched(end, failed)
    known = {
        "rank": failed.rank,
        "node": failed.node,
        "code": failed.code,
        "last": end.quoted,
        "exception": end.says,
        **values,
    }
    certain = bool(end.type) or rule in _RULES or rule.id in {"exit-code", "setup-line"}
    return Found(failed=failed, rule=rule, ending=end, values=known, log=log, certain=certain)


def _matched(end: Ending, failed: Failed) -> tuple[Rule, dict[str, object]]:
    if (
        end.type
        and PurePosixPath(end.place.partition(":")[0]).match("*megatron/training/arguments.py")
        and (found := frameworks.MEGATRON.search(end.text))
    ):
        return frameworks.MEGATRON, _groups(found.groupdict())
    for rule in _RULES:
        if (rule.code is None or rule.code == failed.code) and (found := rule.search(end.text)):
            return rule, _groups(found.groupdict())
    if end.type:
        return (_ASSERTION if end.type == "AssertionError" else _EXCEPTION), {}
    for rule in programs.BY_CODE:
        if rule.code in {None, failed.code} and (found := rule.search(end.text)):
            return rule, _groups(found.groupdict())
    raise AssertionError("the last rule takes any end")


def _groups(found: dict[str, str | None]) -> dict[str, object]:
    return {name: value.strip() if value else "" for name, value in found.items()}


def _among_the_rest(record: Record, first: Found) -> Found | None:
    """A rank that raised an exception of its own, and was ended before it could record that."""
    known = {one.rank for one in record.failed if one.role == first.failed.role}
    for role, rank in record.ranks():
        if rank in known or role != first.failed.role:
            continue
        log = record.rank_log(rank, role)
        one = Failed(rank=rank, code=0, node=record.host_of(log), role=role, at=0.0)
        found = judge(record, one)
        if found.ending.type and not found.rule.victim:
            return found
    return None


def _roots(record: Record) -> list[tuple[str, str]]:
    """Folders of the user's code and of the kit's copy of it, and what they are called in an answer."""
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


def _named(one: Found) -> str:
    role = f"role {one.failed.role}: " if one.failed.role else ""
    return f"{role}rank {one.failed.rank}" + (f" on {one.failed.node}" if one.failed.node else "")


def _answered(record: Record, culprit: Found, line: str, *cited: Found) -> Answer:
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
