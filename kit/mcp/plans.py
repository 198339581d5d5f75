"""Plans that wait for their confirmation. Each is submitted once, as it was shown, or not at all."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass

from kit.errors import RunError
from kit.mcp.cost import Cost
from kit.mcp.spending import Spent
from kit.submission.prepare_run import Prepared

# Plans of one server. The oldest are forgotten first.
_MOST = 100


@dataclass(frozen=True, kw_only=True)
class Pending:
    """A plan that was shown. confirmed: returns what to submit; PlanChangedError if planning again gives another result."""

    ready: Prepared
    cost: Cost
    confirmed: Callable[[], Prepared]


class Plans:
    """The plans of one server, by their ids. They end with the server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[str, Pending] = {}
        self._used: dict[str, str] = {}

    def add(self, pending: Pending) -> str:
        """Keep a plan; returns its id."""
        plan_id = f"plan-{secrets.token_hex(6)}"
        with self._lock:
            self._pending[plan_id] = pending
            for old in [*self._pending][:-_MOST]:
                del self._pending[old]
        return plan_id

    def take(self, plan_id: str, *, earlier: Callable[[], list[Spent]]) -> Pending:
        """The plan, which nobody can take again. RunError for a plan that was used, also in an earlier server, or is unknown.

        earlier: the record of spending, which is read only for a plan that is not here.
        """
        with self._lock:
            pending = self._pending.pop(plan_id, None)
            if pending is not None:
                self._used[plan_id] = pending.ready.plan.run_id
                return pending
            used = self._used.get(plan_id)
        entry = next((one for one in earlier() if one.plan == plan_id), None)
        if entry is not None:
            outcome = {"dropped": "nothing was submitted", "planned": "whether Slurm has taken it is not known yet"}
            said = outcome.get(entry.state, f"Slurm has taken it as job {entry.job_id}")
            problem = f"{plan_id} was used already, for run {entry.run}: {said}"
            raise RunError(
                problem, hint="plan_job, for another run" if entry.state != "planned" else f"run_status {entry.run}"
            )
        if used is not None:
            raise RunError(f"{plan_id} was used already, and run {used} was not submitted", hint="plan_job")
        raise RunError(
            f"{plan_id!r}: there is no such plan in this server", hint="plan_job, then submit_run with its plan_id"
        )
