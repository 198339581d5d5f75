"""kit rerun --rotate."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from kit.cli.print_json import print_json
from kit.files.safe_text import clean

if TYPE_CHECKING:
    from kit.health.rotate_ranks import Rotated, Rotation


def rotate(run: str, *, from_step: int | None, overrides: list[str], avoid: bool, dry_run: bool, as_json: bool) -> None:
    """Run the last steps of a run three times, each time with its ranks on other nodes, and name the node with deviating
    numbers."""
    from kit.cli.runs import folders
    from kit.cli.submit_messages import show_warnings
    from kit.health import rotate_ranks
    from kit.hosts import clusters
    from kit.record import find_runs

    run_dir = find_runs.find_one(run, folders(None, run))
    clusters.require_here(run_dir, "'kit rerun --rotate'")
    rotation = rotate_ranks.plan_rotation(run_dir, from_step=from_step, overrides=overrides)
    show_warnings(rotation.runs[:1])
    where = "its beginning" if rotation.from_step is None else f"step {rotation.from_step}"
    _say(f"{rotation.run_dir.name} from {where}, three times:")
    if dry_run:
        for order in rotation.orders:
            _say(f"  ranks on {' '.join(order)}")
        return
    try:
        done = rotate_ranks.run(rotation, _say)
    except KeyboardInterrupt:
        _say("the runs continue: kit runs lists them, kit cancel ends them")
        raise
    if as_json:
        print_json("rerun", _facts(rotation, done))
    else:
        print(clean(conclusion(done)))
        for one in done.placements:
            print(clean(f"  {one.run_id}: ranks on {' '.join(one.order)}"))
    _offer(rotation, done, avoid=avoid, ask=not as_json and sys.stdin.isatty())


def conclusion(done: Rotated) -> str:
    """The result in one sentence."""
    result = done.found
    if not result.compared:
        return (
            "no rank reported what it computes: a program of torch does by itself, another writes records with `rank` and `step` "
            "to metrics.jsonl"
        )
    if not result.parted:
        return f"no node computes wrong numbers: {result.compared} numbers of each rank are equal to the last bit in all runs"
    if result.node is None:
        return (
            "the runs differ, but no node explains it: the program is not deterministic, or its reductions depend on where its "
            "ranks are"
        )
    first = min(result.suspects, key=lambda one: (one.run, one.rank))
    runs = len({one.run for one in result.suspects})
    had = sum(result.node in one.order for one in done.placements)
    return (
        f"node {result.node} computes wrong numbers: in {runs} of the {had} runs that had it, its ranks were the first to differ "
        f"(rank {first.rank}, {first.name}, at step {first.step} of {done.placements[first.run].run_id})"
    )


def _offer(rotation: Rotation, done: Rotated, *, avoid: bool, ask: bool) -> None:
    from kit.hosts import avoided_nodes

    node = done.found.node
    if node is None:
        return
    if avoid or (ask and typer.confirm(f"Exclude {node} from new jobs for a day?", err=True)):
        reason = f"computes wrong numbers: kit rerun {rotation.run_dir.name} --rotate"
        avoided_nodes.add(rotation.runs[0].site.runs_dir, node, reason)
        _say(f"new jobs exclude {node} for a day: kit nodes, kit nodes --forget {node}")
    else:
        _say(f"try: kit nodes --avoid {node} excludes it from new jobs for a day; report it to who runs the cluster")


def _facts(made: Rotation, done: Rotated) -> dict[str, object]:
    return {
        "run": str(made.run_dir),
        "from_step": made.from_step,
        "runs": [
            {"run_dir": str(place), "nodes": one.order}
            for place, one in zip(done.run_dirs, done.placements, strict=True)
        ],
        "compared": done.found.compared,
        "parted": done.found.parted,
        "node": done.found.node,
        "suspects": [
            {"rank": s.rank, "step": s.step, "number": s.name, "run_id": done.placements[s.run].run_id, "node": s.node}
            for s in done.found.suspects
        ],
        "conclusion": conclusion(done),
    }


def _say(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)
