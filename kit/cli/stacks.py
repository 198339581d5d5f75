"""kit stacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from kit.cli.json_options import Json
from kit.cli.print_json import print_json
from kit.cli.runs import RunName, RunsDir, folders

# With more ranks, and no --all, they are shown in groups; with more groups, those of fewer ranks are shown.
_MOST_RANKS, _MOST_GROUPS = 8, 20


def stacks(
    run: RunName = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Show only this rank.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show each rank's own, however many there are.")] = False,
    runs_dir: RunsDir = None,
    as_json: Json = False,
) -> None:
    """Show the current Python stacks, processes and open files of the ranks of a running job. The ranks are not stopped.

    With more than 8 ranks, those with the same stack are one group, and the smallest group is last.
    """
    from kit.cli.wait_and_follow import queue
    from kit.files.safe_text import clean
    from kit.hosts import status as host_status
    from kit.record import find_runs
    from kit.sessions import stacks as of_ranks

    run_dir = find_runs.find_one(run, folders(runs_dir, run))
    (one,) = host_status.read_statuses([run_dir], queue=queue())
    texts = of_ranks.gather(one, rank=rank)
    if as_json:
        print_json("stacks", {"run": run_dir.name, "stacks": dict(texts)})
        return
    if rank is None and not every and len(texts) > _MOST_RANKS:
        _show_groups(texts, run_dir.name)
        return
    for name, text in texts.items():
        print(f"==> {name.removesuffix('.txt')} <==")
        print("\n".join(clean(line) for line in text.splitlines()))


def _show_groups(texts: Mapping[str, str], name: str) -> None:
    from kit.files.safe_text import clean
    from kit.health import stack_groups
    from kit.sweeps.points.key_names import ranges

    groups = stack_groups.group_ranks(texts)
    left_out = groups[1 : 1 - _MOST_GROUPS] if len(groups) > _MOST_GROUPS else []
    for group in [*groups[:1], *groups[1 + len(left_out) :]]:
        count = f"{len(group.ranks)} ranks" if len(group.ranks) > 1 else "1 rank"
        print(f"==> {clean(group.role)}{': ' if group.role else ''}{count}: {ranges(group.ranks)} <==")
        print("\n".join(clean(line) for line in group.lines))
    silent = [path for path in texts if path.rpartition("/")[2].startswith("node-")]
    if silent:
        print(f"==> no rank was found on {len(silent)} nodes <==")
        print(clean(", ".join(path.rpartition("/")[2].removeprefix("node-").removesuffix(".txt") for path in silent)))
    if left_out:
        print(f"{len(left_out)} more groups of {sum(len(group.ranks) for group in left_out)} ranks")
    print(f"try: kit stacks {name} --rank {groups[-1].ranks[0]}" if groups else f"try: kit top {name}")
