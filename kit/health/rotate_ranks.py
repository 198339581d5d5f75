"""`kit rerun --rotate`: repeats a run's last steps three times, each time with the ranks one node further, to find a node that
computes wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from kit.config import Table
from kit.errors import RunError
from kit.health import miscomputing_nodes
from kit.health.miscomputing_nodes import Deviation, Placement
from kit.hosts import status
from kit.hosts.clusters import find_host
from kit.record import checkpoint_steps, metrics
from kit.schema.world_size_text import PLAIN
from kit.slurm import client, short_forms
from kit.submission import catch_up, rerun, submit
from kit.submission import recorded_inputs as reading
from kit.submission.prepare_run import Prepared
from kit.submission.recorded_inputs import Earlier

# Three, because with two different results nobody knows which one is right.
TIMES = 3
# Ranks must stay on their nodes: no other node takes over, and nothing is restarted.
_FIXED = {"rendezvous": "static"}


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """The planned runs.

    from_step: the checkpoint; None for the beginning. orders: the nodes of each run, in the order of the ranks.
    """

    run_dir: Path
    from_step: int | None
    orders: tuple[tuple[str, ...], ...]
    runs: tuple[Prepared, ...]


@dataclass(frozen=True, kw_only=True)
class Rotated:
    """The result. run_dirs: of the runs, in the order of the placements."""

    run_dirs: tuple[Path, ...]
    placements: tuple[Placement, ...]
    found: Deviation


def plan_rotation(
    run_dir: Path, *, from_step: int | None = None, overrides: Sequence[str] = (), now: datetime | None = None
) -> Rotation:
    """Plan the three runs; nothing is written.

    from_step: the checkpoint to begin at; None for the newest one before the last step that the run reported, or for the beginning
    if there is none. RunError for a run that cannot be rotated: its job has roles, or its cluster has fewer than three
    nodes.
    """
    first = reading.read_inputs(run_dir)
    if set(first.manifest.world_sizes) != {PLAIN}:
        raise RunError(
            f"run {run_dir.name} has roles ({', '.join(first.manifest.world_sizes)}): --rotate works only for a job without roles",
            hint=f"kit rerun {run_dir.name}, and kit diff",
        )
    orders = _orders(first)
    step = _last_checkpoint(run_dir) if from_step is None else from_step
    runs = []
    for order in orders:
        earlier = reading.read_inputs(run_dir, from_step=step)
        earlier = replace(earlier, node_order=order, job=_placed(earlier.job, order))
        runs.append(rerun.prepare_earlier(earlier, overrides=overrides, now=now))
    return Rotation(run_dir=run_dir, from_step=step, orders=orders, runs=tuple(runs))


def run(rotation: Rotation, say: Callable[[str], None]) -> Rotated:
    """Submit all three runs, wait for them, and compare. RunError if one of them does not end well."""
    for order, prepared in zip(rotation.orders, rotation.runs, strict=True):
        sent = submit.submit(prepared)
        say(f"job {sent.job_id}, run {sent.run_id}: ranks on {' '.join(order)}")
    placements = []
    for order, prepared in zip(rotation.orders, rotation.runs, strict=True):
        ended = status.wait(prepared.plan.run_dir, queue=catch_up.queue(), on_poll=lambda _: None)
        if ended.state != "COMPLETED" or ended.exit_code:
            raise RunError(
                f"run {prepared.plan.run_id} ended {ended.state}: what it computed is not compared",
                hint=f"kit why {prepared.plan.run_id}",
            )
        placements.append(
            Placement(
                run_id=prepared.plan.run_id,
                order=order,
                ranks_per_node=prepared.plan.decisions.main.ranks_per_node,
                numbers=miscomputing_nodes.read_numbers(prepared.plan.run_dir),
            )
        )
    return Rotated(
        run_dirs=tuple(prepared.plan.run_dir for prepared in rotation.runs),
        placements=tuple(placements),
        found=miscomputing_nodes.find(placements),
    )


def _placed(job: Table, order: Sequence[str]) -> Table:
    slurm = {**job.get("slurm", {}), "nodelist": ",".join(sorted(order)), "requeue": False}
    slurm.pop("exclude", None)
    retry = {**job.get("retry", {}), "in_allocation": 0, "requeue": 0, "spares": 0}
    torchrun = {"torchrun": {**job["torchrun"], "max_restarts": 0}} if "torchrun" in job else {}
    return {**job, **_FIXED, **torchrun, "slurm": slurm, "retry": retry}


def _orders(first: Earlier) -> tuple[tuple[str, ...], ...]:
    """The run's nodes, then the same shifted by one and by two in a ring of at least three nodes."""
    name = first.run_dir.name
    (one,) = status.read_statuses([first.run_dir], queue=catch_up.queue())
    env = find_host(one.facts.cluster).env()
    # Spare nodes come after the nodes of the ranks.
    mine = short_forms.expand_nodes(one.nodes)[: first.job["resources"]["nodes"]]
    if not mine:
        raise RunError(f"run {name}: its nodes are not known", hint=f"kit rerun {name}")
    there = client.nodes_in_service(env=env, partition=first.job.get("slurm", {}).get("partition"))
    others = [node for node in there if node not in mine]
    ring = [*mine, *others[: max(0, TIMES - len(mine))]]
    if len(ring) < TIMES:
        raise RunError(
            f"run {name} ran on {' '.join(mine)}, and --rotate needs three nodes, but {len(ring)} are in service: when only two "
            "nodes differ, nothing shows which one is wrong",
            hint=f"kit rerun {name} --cluster C, on a cluster with three nodes",
        )
    return tuple(tuple(ring[(place + shift) % len(ring)] for place in range(len(mine))) for shift in range(TIMES))


def _last_checkpoint(run_dir: Path) -> int | None:
    reported = metrics.latest(run_dir)
    last = reported.step if reported else None
    return max((step for step in checkpoint_steps.steps(run_dir) if last is None or step < last), default=None)
