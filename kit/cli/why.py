"""kit why."""

from __future__ import annotations

import dataclasses
import sys

from kit.cli.json_options import Json
from kit.cli.print_json import print_json
from kit.cli.runs import RunName, RunsDir, find_dir
from kit.files.safe_text import clean


def why(run: RunName = None, runs_dir: RunsDir = None, as_json: Json = False) -> None:
    """Explain how a run ended, or why it waits, and what to do next."""
    from kit.answers import run_status
    from kit.answers.explain_run import explanation
    from kit.cli.runs import warn
    from kit.cli.wait_and_follow import queue_for_display

    status = run_status.status_of(find_dir(run, runs_dir), queue=queue_for_display(), say=warn)
    answer = explanation(status, say=lambda text: print(clean(text), file=sys.stderr))
    if as_json:
        print_json("why", dataclasses.asdict(answer))
        return
    print(clean(f"{status.run_dir.name}: {answer.line}"))
    rows = [("verdict", f"{answer.verdict} (rule {answer.rule})"), ("advice", answer.advice)]
    rows += [
        ("evidence", f"{cited.file}{f':{cited.line}' if cited.line else ''}: {cited.text}") for cited in answer.evidence
    ]
    if partner := status.facts.partner:
        rows.append(("partner", f"'kit why {partner}' tells of the other half of the training"))
    for name, value in [*rows, ("next", answer.next)]:
        if value:
            print(f"  {name:<8}  {clean(value)}")
