"""run_status, explain_run, read_log, compare_runs, list_runs and cancel_run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kit.answers import explain_run as explaining
from kit.answers import run_status as shown
from kit.answers.explain_run import explain
from kit.comparison import recorded_run
from kit.comparison.compare import compare
from kit.errors import RunError
from kit.hosts import clusters
from kit.hosts import status as host_status
from kit.hosts.status import Status
from kit.mcp import as_data, find_own
from kit.mcp import read_log as log
from kit.mcp.session import AgentSession
from kit.record import foreign_runs
from kit.submission import cancel as cancelling
from kit.submission import catch_up


def _silent(_: str) -> None:
    """What the commands print to stderr beside their result."""


def _status(run: str, *, to: str) -> Status:
    return shown.status_of(find_own.find_run(run, to=to), queue=catch_up.queue(), say=_silent)


def run_status(session: AgentSession, *, run: str) -> dict[str, Any]:
    """The state of one run."""
    one = _status(run, to="show its state")
    full = shown.shown(one, queue=catch_up.queue(), say=_silent)
    return as_data.marked(asdict(full), run=as_data.text(one.run_dir.name), state=one.state, exit_code=one.exit_code)


def explain_run(session: AgentSession, *, run: str) -> dict[str, Any]:
    """Why a run ended or waits. The verdict and the rule are the kit's own words; all else may quote a program."""
    one = _status(run, to="explain it")
    answer = explaining.explanation(one)
    return as_data.marked(
        asdict(answer), run=as_data.text(one.run_dir.name), state=one.state, verdict=answer.verdict, rule=answer.rule
    )


def read_log(
    session: AgentSession, *, run: str, log_name: str | None, rank: int | None, offset: int | None, most_bytes: int
) -> dict[str, Any]:
    """A part of one log."""
    run_dir = find_own.find_run(run, to="read its logs")
    names = log.names(run_dir, rank=rank)
    if not names:
        of_rank = "" if rank is None else f" of rank {rank}"
        raise RunError(f"run {run_dir.name} has no log{of_rank} yet", hint=f"run_status {run_dir.name}")
    name = log_name or names[0]
    found = log.read_log_part(run_dir, name, offset=offset, most=most_bytes, project=session.project)
    text = found.pop("text")
    return {**found, "logs": [as_data.text(one) for one in log.names(run_dir)[:100]], as_data.FIELD: {"text": text}}


def compare_runs(session: AgentSession, *, a: str, b: str) -> dict[str, Any]:
    """The differences of two runs, the most important first."""
    both = [_status(name, to="compare it") for name in (a, b)]
    made = compare(*(recorded_run.read_run(one, explain(one)) for one in both))
    return as_data.marked(made.model_dump(mode="json"))


def list_runs(session: AgentSession, *, newest: int) -> dict[str, Any]:
    """This user's newest runs of the project, and which of them agents have submitted."""
    found = shown.list_statuses(None, queue=catch_up.queue(), say=_silent)
    mine = [one for one in found if not foreign_runs.is_foreign(one.run_dir)]
    spent = {one.run for one in session.ledger.entries()}
    keys = ("run", "job_id", "state", "exit_code", "cluster", "nodes", "elapsed", "image", "rerun_of", "submitted_at")
    rows = []
    for run in reversed(mine[-newest:]):
        row = asdict(shown.listed(run))
        rows.append({**{key: row[key] for key in keys}, "by_agent": run.run_dir.name in spent})
    return as_data.marked(rows, count=len(mine))


def cancel_run(session: AgentSession, *, run: str) -> dict[str, Any]:
    """Cancel a run: one that kit mcp has submitted, or any of this user's, if the limits allow that."""
    limits = session.limits_to_write()
    run_dir = find_own.find_run(run, to="cancel its job")
    if limits.cancel == "own" and run_dir.name not in {one.run for one in session.ledger.entries()}:
        raise RunError(
            f"run {run_dir.name} was not submitted by kit mcp, and {session.limits_file} allows to cancel own runs only",
            hint='ask the user, who may write: cancel = "mine"',
        )
    (target,) = host_status.read_statuses([run_dir], queue=catch_up.queue())
    if target.active:
        cancelling.cancel([target], host=clusters.host_of_run(run_dir))
    return {"run": as_data.text(run_dir.name), "was": target.state, "cancelled": target.active}
