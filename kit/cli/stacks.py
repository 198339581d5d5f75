"""kit stacks."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from kit.cli.runs import AsJson, RunName, RunsDir, folders


def stacks(
    run: RunName = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="This rank alone.")] = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Show where the ranks of a running job are, now: Python stacks, processes, open files. Nothing is stopped."""
    from kit.cli.follow import queue
    from kit.runs import queues, registry
    from kit.runs import stacks as of_ranks
    from kit.runs import status as of
    from kit.text import clean

    (one,) = of.of([registry.find_one(run, folders(runs_dir))], queue=queue())
    found = of_ranks.gather(one, rank=rank, env=queues.env_of(one.facts.cluster))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name, text in found.items():
        print(f"==> {name.removesuffix('.txt')} <==")
        print("\n".join(clean(line) for line in text.splitlines()))
