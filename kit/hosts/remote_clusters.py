"""The clusters of a project that are reached over ssh. They are asked in parallel, each with its own time-out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kit import config, data_folders
from kit.errors import ConfigError, RunError, ToolError, UsageError
from kit.record import index, known_files, run_facts
from kit.record.unmade_points import POINTS
from kit.slurm import accounting
from kit.slurm.client import JobId, QueuedJob
from kit.slurm.run_local_or_ssh import OverSsh
from kit.ssh import run_folder_mirror as mirrors
from kit.ssh.run_folder_mirror import ClusterAnswer, Mirror

if TYPE_CHECKING:
    from kit.schema.cluster import Cluster
    from kit.ssh.connection import Connection

# How old an answer may be when it is used for the first time: a command asks, does its other requests, and then reads the answer.
# On a busy machine or over a slow line that takes long. It is used again for about the time of one command.
_FIRST_USE_S, _FRESH_S = 30.0, 2.0


@dataclass
class RemoteCluster:
    """One cluster over ssh. silent: the reason why it does not answer; empty if it does.

    asked, asked_at, used: the last answer, its time, and whether its queue was read. relays: run -> state of its relay (trainings
    over two clusters), from the last update of the run's files.
    """

    name: str
    rules: Cluster
    connection: Connection
    mirror: Mirror
    silent: str = ""
    asked: ClusterAnswer | None = None
    asked_at: float = 0.0
    used: bool = False
    relays: dict[str, str] = field(default_factory=dict)

    def refresh(self, *, plan: bool = False) -> ClusterAnswer:
        """Update the mirror, with Slurm's queue, in one request."""
        timeout = None if plan else self.connection.timeout
        self.asked = self.mirror.refresh(self.connection, self.rules, plan=plan, timeout=timeout)
        self.asked_at, self.used, self.silent = time.monotonic(), False, ""
        self._record_interrupted_submits(self.asked)
        if self.mirror.unwanted.is_dir():
            from kit.pair import lone_halves

            lone_halves.cancel_there(self)
        return self.asked

    def env(self, inherited: Mapping[str, str] | None = None) -> OverSsh:
        """The environment for its Slurm commands."""
        return OverSsh(self.connection, inherited)

    def fetch(self, run_dir: Path, *, accounting_too: bool = True) -> None:
        """Update a run's files, and ask accounting for its job, in one request."""
        facts = run_facts.read(run_dir)
        sacct = accounting.question([facts.job_id]) if accounting_too and facts.job_id is not None else ()
        relay = facts.partner is not None
        said = self.mirror.fetch(self.connection, self.rules, run_dir, sacct=sacct, relay=relay)
        if said:
            self.relays[run_dir.name] = said

    def fetch_whole(self, run_dir: Path) -> None:
        """Update all files that a repetition or an export needs, with programs and snapshot. At most two requests."""
        from kit.hosts import remote_snapshots

        self.mirror.fetch(self.connection, self.rules, run_dir, whole=True)
        if tree := run_facts.read(run_dir).tree:
            remote_snapshots.fetch(self, tree)

    def fetch_sweep(self, folder: Path) -> None:
        """Update the files of all points of a sweep, in one request."""
        self.mirror.fetch(self.connection, self.rules, folder)

    def _record_interrupted_submits(self, asked: ClusterAnswer) -> None:
        """Record the job's number of runs whose submit was interrupted after Slurm had accepted it.

        The batch script identifies the job.
        """
        from kit.submit.remote_submit import settle

        unknown = [path for path, one in index.runs(self.mirror.runs) if one.slurm_id is None and not one.problem]
        cut = {path.name for path in unknown if f"{asked.there.runs}/{path.name}/batch.sh" in asked.keys}
        sweeps = {path.parent.parent.name for path in unknown if path.parent.name == POINTS}
        for script in asked.keys if sweeps else ():
            folder, _, name = script.removeprefix(f"{asked.there.runs}/").partition("/arrays/")
            if folder in sweeps and name.partition("/")[0].isdecimal():
                cut.add(f"{folder}/{name.partition('/')[0]}")
        for name in sorted(cut):
            settle(self, name)
        if cut:
            self.mirror.refresh(self.connection, self.rules)


_known: dict[str, RemoteCluster | None] = {}


def of(name: str, *, project: Path | None = None) -> RemoteCluster | None:
    """The cluster of this name; None for one of this machine, or one whose file cannot be read."""
    if name not in _known:
        try:
            entry = data_folders.find("clusters", name, project_dir=project or data_folders.project())
            if not known_files.cluster(entry.path).ssh:
                _known[name] = None
                return None
            from kit.schema.cluster import Cluster

            rules = config.load_model(entry.path, Cluster)
        except ConfigError:
            return None
        _known[name] = made(name, rules)
    return _known[name]


def made(name: str, rules: Cluster) -> RemoteCluster | None:
    """The cluster of this name, from the rules of its file; None if it is reached without ssh."""
    if rules.ssh is None:
        return None
    known = _known.get(name)
    if known is not None and known.rules == rules:
        return known
    from kit.ssh.connection import Connection

    connection = Connection(name, rules.ssh, timeout=rules.ssh.timeout_s)
    _known[name] = RemoteCluster(name, rules, connection, mirrors.of(name, rules))
    return _known[name]


def all_of(project: Path) -> list[RemoteCluster]:
    """All clusters over ssh of a project."""
    found = (of(name, project=project) for name in data_folders.names("clusters", project_dir=project))
    return [one for one in found if one is not None]


def refresh(project: Path, names: Sequence[str | None] = (None,)) -> dict[str, str]:
    """Update the mirrors that may contain runs of these names, all in parallel; cluster -> reason why it does not answer."""
    wanted = [one for one in all_of(project) if any(_may_be_in(one, name, project) for name in names)]
    if wanted:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max_workers=len(wanted)) as pool:
            list(pool.map(_try, wanted))
    return {one.name: one.silent for one in wanted if one.silent}


def _try(one: RemoteCluster) -> None:
    try:
        one.refresh()
    except ToolError as error:
        one.silent = error.message + (f"\n  try: {error.hint}" if error.hint else "")


def _may_be_in(one: RemoteCluster, name: str | None, project: Path) -> bool:
    """Whether a run of this name may be on a cluster. For a complete, known name only one cluster is asked."""
    if name is None:
        return True
    if index.is_run(Path(name)):
        return mirrors.holding(Path(name).resolve()) == one.mirror
    if "/" in name:
        return False
    from kit.record import find_runs

    known = [folder for folder in find_runs.folders(project) if index.is_run(folder / name)]
    return not known or one.mirror.runs in known


def holding(run_dir: Path) -> RemoteCluster | None:
    """The cluster of a mirrored run folder; None for a run of this machine."""
    mirror = mirrors.holding(run_dir)
    if mirror is None:
        return None
    found = of(mirror.cluster())
    if found is None or found.mirror != mirror:
        raise RunError(
            f"{run_dir}: clusters/{mirror.cluster()}.toml now names another host or another folder of runs",
            hint="kit runs",
        )
    return found


def fetch(run_dir: Path) -> None:
    """Update a run's files, if it is on a cluster over ssh. A cluster that did not answer a moment ago is skipped."""
    found = holding(run_dir)
    if found is not None and not found.silent:
        found.fetch(run_dir)


def fetch_whole(run_dir: Path) -> None:
    """Update a run's files, with its programs and its snapshot."""
    found = holding(run_dir)
    if found is not None:
        found.fetch_whole(run_dir)


def fetch_sweep(folder: Path) -> None:
    """Update the files of all points of a sweep, in one request."""
    found = holding(folder)
    if found is not None and not found.silent:
        found.fetch_sweep(folder)


def queue(one: RemoteCluster) -> Mapping[JobId, QueuedJob] | None:
    """Slurm's queue from the last update of the records. If that is old, both are fetched. None if the cluster does not answer."""
    from kit.slurm import client

    if one.silent:
        return None
    if one.asked is None or time.monotonic() - one.asked_at > (_FRESH_S if one.used else _FIRST_USE_S):
        one.refresh()
    one.used = True
    return client.queue(env=one.env())


def require_here(run_dir: Path, command: str) -> None:
    """UsageError for a run of a cluster over ssh, if a command does not support it yet."""
    found = mirrors.holding(run_dir)
    if found is not None:
        refuse(found.cluster(), command)


def refuse(cluster: str, command: str) -> NoReturn:
    """Report that a command does not support ssh yet."""
    raise UsageError(
        f"{command} does not work over ssh yet, and cluster {cluster} is reached over ssh",
        hint="run it on the login node",
    )
