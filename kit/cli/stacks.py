"""kit stacks."""

from __future__ import annotations

import json
from typing import Annotated

from kit.cli.json_options import Json
from kit.cli.runs import RunName, RunsDir, folders
from kit.cli.typer_later import typer


def stacks(
    run: RunName = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Show only this rank.")] = None,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """Show the current Python stacks, processes and open files of the ranks of a running job. The ranks are not stopped."""
    from kit.cli.wait_and_follow import queue
    from kit.runs import find_runs, which_slurm
    from kit.runs import stacks as of_ranks
    from kit.runs import status as of
    from kit.safe_text import clean

    run_dir = find_runs.find_one(run, folders(runs_dir, run))
    (one,) = of.of([run_dir], queue=queue())
    found = of_ranks.gather(one, rank=rank, env=which_slurm.env_of(one.facts.cluster))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for name, text in found.items():
        print(f"==> {name.removesuffix('.txt')} <==")
        print("\n".join(clean(line) for line in text.splitlines()))
