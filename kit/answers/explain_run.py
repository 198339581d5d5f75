"""Explains a run, for `kit why`, `kit status`, `--wait` and the Python API."""

from __future__ import annotations

from dataclasses import dataclass

from kit.health.answer import Answer, Evidence, Verdict
from kit.runs.status import Status


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


def explain(one: Status) -> Answer:
    """The answer of the rules for a run with a known status. For a waiting job, Slurm is asked once more."""
    from kit.health.run_record import Record
    from kit.health.why import explain as by_rules
    from kit.runs import which_slurm
    from kit.slurm import client

    start = ""
    if one.state == "PENDING" and one.job_id is not None:
        start = client.expected_start(one.job_id, env=which_slurm.env_of(one.facts.cluster))
    return by_rules(Record(status=one, expected_start=start))


def explanation(one: Status) -> Explanation:
    """The same, with the run's id and state."""
    return Explanation(run=one.run_dir.name, state=one.state, **vars(explain(one)))


def first_line(one: Status) -> str:
    """The line that `kit status` and `--wait` show for a run that did not end well; empty for any other run."""
    if one.active or one.state in {"COMPLETED", "SUBMITTED"}:
        return ""
    return explain(one).line
