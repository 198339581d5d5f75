"""Explains a run, for `kit why`, `kit status`, `--wait` and the Python API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kit.health.answer import Answer, Evidence, Verdict
from kit.hosts.status import Status


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """How a run ended, or why it waits, and what to do next: the answer of `kit why`.

    run: its id. rule: the one that decided (docs/reference/rules.md). line: the reason in one sentence. advice: what to do.
    next: the command to run. evidence: the lines of the run folder that the reason was read from.
    """

    run: str
    state: str
    rule: str
    verdict: Verdict
    line: str
    advice: str
    next: str
    evidence: tuple[Evidence, ...] = ()


def explain(run: Status) -> Answer:
    """The answer of the rules for a run with a known status. For a waiting job, Slurm is asked once more."""
    from kit.health.run_record import Record
    from kit.health.why import explain as by_rules
    from kit.hosts.clusters import find_host
    from kit.slurm import client

    start = ""
    if run.state == "PENDING" and run.job_id is not None:
        start = client.expected_start(run.job_id, env=find_host(run.facts.cluster).env())
    return by_rules(Record(status=run, expected_start=start))


def explanation(run: Status, *, say: Callable[[str], None] | None = None) -> Explanation:
    """The same, with the run's id and state, and the last step of a program that reports none.

    say: called with a line before the ranks of a silent job are looked at; None: they are not looked at.
    """
    from kit.health.run_record import Record
    from kit.health.why import with_last_step

    answer = explain(run)
    if say is not None:
        answer = looked(run, answer, say=say)
    return Explanation(run=run.run_dir.name, state=run.state, **vars(with_last_step(Record(status=run), answer)))


def looked(run: Status, answer: Answer, *, say: Callable[[str], None]) -> Answer:
    """The same, unless a running job has said nothing for a while: then its ranks are looked at, by one step as of `kit stacks`."""
    from kit.errors import KitError
    from kit.health import silence
    from kit.health.rules import stall_rules
    from kit.health.run_record import Record
    from kit.sessions import stacks

    record = Record(status=run)
    if answer.rule != "running" or (quiet := silence.seconds(record)) is None:
        return answer
    say(f"{run.run_dir.name}: its logs have been silent for {quiet:.0f} s; looking at its ranks")
    try:
        texts = stacks.gather(run, rank=None)
    except KitError:
        # Another user's job, or a busy controller: what the files say stays true.
        return answer
    advice = "nothing is wrong as far as Slurm, the logs and one look at the ranks say: kit stacks shows more"
    return stall_rules.looked_at(record, texts) or replace(answer, advice=advice)


def first_line(one: Status) -> str:
    """The line that `kit status` and `--wait` show for a run that did not end well; empty for any other run."""
    if one.active or one.state in {"COMPLETED", "SUBMITTED"}:
        return ""
    return explain(one).line
