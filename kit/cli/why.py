"""kit why."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from kit.cli.json_options import Json
from kit.cli.runs import RunName, RunsDir, find_dir
from kit.safe_text import clean

if TYPE_CHECKING:
    from kit.health.answer import Answer
    from kit.runs.status import Status


def why(run: RunName = None, runs_dir: RunsDir = None, as_json: Json = False) -> None:
    """Explain how a run ended, or why it waits, and what to do next."""
    from kit.cli.runs import warn
    from kit.cli.wait_and_follow import queue_for_display
    from kit.runs import from_accounting, which_slurm
    from kit.runs import status as of

    found = of.of([find_dir(run, runs_dir)], queue=queue_for_display())
    (one,) = from_accounting.add(found, ask=which_slurm.history(say=warn), every=True)
    answer = explain(one)
    if as_json:
        print(json.dumps({"run": one.run_dir.name, "state": one.state, **dataclasses.asdict(answer)}, indent=2))
        return
    print(clean(f"{one.run_dir.name}: {answer.line}"))
    rows = [("verdict", f"{answer.verdict} (rule {answer.rule})"), ("advice", answer.advice)]
    rows += [
        ("evidence", f"{cited.file}{f':{cited.line}' if cited.line else ''}: {cited.text}") for cited in answer.evidence
    ]
    if partner := one.facts.partner:
        rows.append(("partner", f"'kit why {partner}' tells of the other half of the training"))
    for name, value in [*rows, ("next", answer.next)]:
        if value:
            print(f"  {name:<8}  {clean(value)}")


def explain(one: Status) -> Answer:
    """The answer of `kit why` for a run with a known status. For a waiting job, Slurm is asked once more."""
    from kit.health.run_record import Record
    from kit.health.why import explain as by_rules
    from kit.runs import which_slurm
    from kit.slurm import client

    start = ""
    if one.state == "PENDING" and one.job_id is not None:
        start = client.expected_start(one.job_id, env=which_slurm.env_of(one.facts.cluster))
    return by_rules(Record(status=one, expected_start=start))


def first_line(one: Status) -> str:
    """The line that `kit status` and `--wait` show for a run that did not end well; empty for any other run."""
    if one.active or one.state in {"COMPLETED", "SUBMITTED"}:
        return ""
    return explain(one).line
