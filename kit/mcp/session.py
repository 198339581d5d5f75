"""All that one server knows: its project, the user's limits, its plans, what was spent, and what it has told of."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from kit.hosts.recent_queue import RecentQueue
from kit.mcp import limits as limiting
from kit.mcp import outcomes
from kit.mcp.limits import Limits
from kit.mcp.plans import Plans
from kit.mcp.spending import SpendingRecord
from kit.submission import catch_up

_RUNS = "runs"


@dataclass(frozen=True, kw_only=True)
class AgentSession:
    """One server. limits_file: read again for each call, so that its user can change it at any time. told: how many starts
    and stalls of a submission a wait has returned. recent: the queue as waits saw it last.
    """

    project: Path
    limits_file: Path
    plans: Plans = field(default_factory=Plans)
    told: Counter[object] = field(default_factory=Counter)
    recent: RecentQueue = field(default_factory=lambda: RecentQueue(catch_up.queue()))

    @property
    def ledger(self) -> SpendingRecord:
        """What all servers of this project have spent."""
        return SpendingRecord(self.project / _RUNS, settle=outcomes.settle)

    def limits(self) -> Limits:
        """The limits as they are now; errors as in `limits.read_limits`."""
        return limiting.read_limits(self.limits_file, project=self.project)

    def limits_to_write(self) -> Limits:
        """The same for what submits or cancels: ConfigError in read-only mode."""
        found = self.limits()
        limiting.require_writable(found, self.limits_file)
        return found
