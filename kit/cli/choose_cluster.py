"""`--cluster any`, or a list: chooses the cluster on which the job starts first, by `kit when`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kit.files.safe_text import clean

if TYPE_CHECKING:
    from kit.forecast.answers import WhenAnswer

ANY = "any"
# How long to wait for one cluster to plan the job and its queue, in addition to the time-out of one over ssh.
_PATIENCE_S = 30.0


def chosen(job: Path, cluster: str, *, overrides: list[str], containers: bool) -> str:
    """The name of the chosen cluster. cluster: ANY, or several names with commas.

    Clusters that do not answer in time, or refuse the job, are reported; ConfigError if all do.
    """
    from kit.errors import UsageError
    from kit.forecast import answers

    names = answers.every_cluster() if cluster == ANY else [name.strip() for name in cluster.split(",")]
    found = _asked(job, list(dict.fromkeys(names)), overrides=overrides, containers=containers)
    # Of equal starts, the cluster that was named first.
    best = min(found, key=lambda one: (_begins(one), names.index(one.cluster)), default=None)
    if best is None:
        raise UsageError(f"--cluster {cluster}: none of {', '.join(names)} takes the job", hint="kit when --everywhere")
    print(f"kit: {clean(answers.line(best, several=True))}", file=sys.stderr)
    return best.cluster


def _begins(one: WhenAnswer) -> float:
    at = one.start.expected if one.start else None
    # Estimates that differ by less than half a minute count as equal.
    return max(at - one.now, 0.0) // 30 if at is not None else float("inf")


def _asked(job: Path, names: Sequence[str], *, overrides: list[str], containers: bool) -> list[WhenAnswer]:
    """The answers of all clusters for the job as written. They are asked in parallel, with a limit on the waiting time."""
    from kit.errors import KitError
    from kit.forecast import answers
    from kit.hosts import clusters

    replies: dict[str, list[WhenAnswer]] = {}
    problems: dict[str, str] = {}

    def ask(name: str) -> None:
        try:
            replies[name] = answers.ask(job, clusters=[name], overrides=overrides, containers=containers)
        except KitError as error:
            problems[name] = error.message.splitlines()[0]

    started = {name: threading.Thread(target=ask, args=(name,), daemon=True) for name in names}
    for thread in started.values():
        thread.start()
    taken = []
    for name, thread in started.items():
        remote = clusters.find_ssh_host(name)
        thread.join(_PATIENCE_S + (2 * remote.connection.timeout if remote else 0.0))
        own = [one for one in replies.get(name, ()) if one.as_written and one.pieces == 1]
        taken += [one for one in own if one.start is not None]
        refused = next((one.refused for one in own if one.start is None), "")
        if problem := problems.get(name) or refused or ("does not answer" if thread.is_alive() else ""):
            print(f"kit: {name}: {clean(problem)}", file=sys.stderr)
    return taken
