"""plan_job, rerun and submit_run. A submit is two calls: the first says what it costs, the second submits exactly that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from kit import api
from kit.answers import planned_job
from kit.errors import ConfigError, Fault, KitError, PlanChangedError, UnconfirmedError
from kit.mcp import as_data, cost, find_own, spending
from kit.mcp import limits as limiting
from kit.mcp.limits import Limits
from kit.mcp.plans import Pending
from kit.mcp.session import AgentSession
from kit.submission import rerun as repeating
from kit.submission import submit as sending
from kit.submission.prepare_run import Prepared

_NEXT = "submit_run with this plan_id submits exactly this plan, once"


def plan_job(session: AgentSession, *, job_file: str, cluster: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Plan a job file of the project."""
    limits = session.limits_to_write()
    path = find_own.job_file(session, job_file)
    planned = api.plan(path, cluster=cluster, overrides=overrides)
    return _shown(session, planned.prepared, limits, lambda: planned_job.as_planned(planned))


def rerun(
    session: AgentSession, *, run: str, cluster: str | None, overrides: Sequence[str], from_step: int | None
) -> dict[str, Any]:
    """Plan a repetition of a run of this user's."""
    limits = session.limits_to_write()
    run_dir = find_own.find_run(run, to="repeat it")

    def planned() -> Prepared:
        return repeating.prepare_rerun(run_dir, cluster=cluster, overrides=overrides, from_step=from_step)

    ready = planned()
    answer = _shown(session, ready, limits, lambda: _unchanged(ready, planned()))
    return {**answer, "differences": [as_data.text(line) for line in repeating.differences(ready)]}


def submit_run(session: AgentSession, *, plan_id: str) -> dict[str, Any]:
    """Submit a plan. What it may use is recorded before sbatch runs, and dropped if there is no job."""
    limits = session.limits_to_write()
    pending = session.plans.take(plan_id, earlier=session.ledger.entries)
    ready = pending.confirmed()
    plan = ready.plan
    _require_allowed(session, ready, pending.cost, limits)
    entry = spending.planned(ready, plan_id, pending.cost)
    session.ledger.reserve(entry, limits, file=session.limits_file)
    try:
        record = sending.submit(ready)
    except UnconfirmedError:
        # Slurm may have the job, so it counts. The next look settles it.
        raise
    except KitError:
        session.ledger.settle(plan.run_id, "dropped")
        raise
    session.ledger.settle(plan.run_id, "submitted", job_id=str(record.job_id))
    return {
        "run": plan.run_id,
        "job_id": str(record.job_id),
        "cluster": plan.cluster,
        "cost": pending.cost.as_data(),
        "next": f"wait_for_runs with runs = [{plan.run_id!r}]",
    }


def _shown(session: AgentSession, ready: Prepared, limits: Limits, confirmed: Callable[[], Prepared]) -> dict[str, Any]:
    """The answer to a plan within all limits, which is kept."""
    asked = cost.compute_cost(ready.plan)
    known = _require_allowed(session, ready, asked, limits)
    plan_id = session.plans.add(Pending(ready=ready, cost=asked, confirmed=confirmed))
    plan = ready.plan
    return as_data.marked(
        {
            "name": plan.job.name,
            "job_file": str(ready.job_file),
            "images": sorted(_images(ready)),
            "warnings": [asdict(one) for one in ready.warnings],
        },
        plan_id=plan_id,
        run=plan.run_id,
        cluster=plan.cluster,
        cost=asked.as_data(),
        spent=known,
        next=_NEXT,
    )


def _require_allowed(
    session: AgentSession, ready: Prepared, asked: cost.Cost, limits: Limits
) -> dict[str, dict[str, float]]:
    """What was spent. ConfigError with every limit that the run exceeds."""
    import time

    now, known = time.time(), session.ledger.entries()
    file = str(session.limits_file)
    made = ready.plan
    found = limiting.faults(limits, nodes=asked.nodes, cluster=made.cluster, images=_images(ready), file=file)
    found += [Fault(**{**vars(one), "file": file}) for one in spending.over(known, asked, limits, now=now)]
    if found:
        raise ConfigError.of(*found)
    return spending.totals(known, now=now)


def _images(ready: Prepared) -> frozenset[str]:
    """The images of the job and its roles, as the job names them."""
    job = ready.plan.job
    named = {job.image_name, *(role.image for role in job.roles.values())}
    return frozenset(one for one in named if one)


def _unchanged(before: Prepared, now: Prepared) -> Prepared:
    """The first of two plans of the same rerun. PlanChangedError if they differ."""
    parts: dict[str, Callable[[Prepared], object]] = {
        "the job": lambda one: one.plan.job,
        "the cluster": lambda one: one.resolved.cluster,
        "an image": lambda one: [(pin.image, pin.digest) for pin in one.plan.decisions.pins.distinct],
        "the code": lambda one: one.plan.decisions.site.snapshot,
    }
    changed = [name for name, part in parts.items() if part(before) != part(now)]
    if changed:
        problem = f"changed since {before.plan.run_id} was planned: {', '.join(changed)}"
        raise PlanChangedError(problem, hint="plan again, and submit the new plan")
    return before
