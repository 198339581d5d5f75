"""The clusters of a project that are reached over ssh: asked together, each with a time-out of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kit import config, data_folders
from kit.errors import ConfigError, KitError, RunError, ToolError, UsageError
from kit.remote import run_folder_mirror as mirrors
from kit.remote.run_folder_mirror import ClusterAnswer, Mirror
from kit.runs import index, known_files, run_facts
from kit.slurm import accounting
from kit.slurm.client import JobId, QueuedJob
from kit.slurm.run_local_or_ssh import OverSsh

if TYPE_CHECKING:
    from kit.remote.connection import Connection
    from kit.spec.cluster import Cluster

# An answer is as good as new for as long as one command takes to read it.
_FRESH_S = 2.0


@dataclass
class RemoteCluster:
    """One cluster over ssh. silent: why it does not answer; empty while it does."""

    name: str
    rules: Cluster
    connection: Connection
    mirror: Mirror
    silent: str = ""
    asked: ClusterAnswer | None = None
    asked_at: float = field(default=0.0)

    def refresh(self, *, plan: bool = False) -> ClusterAnswer:
        """Bring the mirror up to date, with Slurm's queue: one request."""
        timeout = None if plan else self.connection.timeout
        self.asked = self.mirror.refresh(self.connection, self.rules, plan=plan, timeout=timeout)
        self.asked_at, self.silent = time.monotonic(), ""
        self._settle(self.asked)
        return self.asked

    def env(self, inherited: Mapping[str, str] | None = None) -> OverSsh:
        """The environment of its Slurm's commands."""
        return OverSsh(self.connection, inherited)

    def fetch(self, run_dir: Path, *, accounting_too: bool = True) -> None:
        """Bring a run's files up to date, and ask what accounting knows of its job: one request."""
        job_id = run_facts.read(run_dir).job_id if accounting_too else None
        sacct = accounting.question([job_id]) if job_id is not None else ()
        self.mirror.fetch(self.connection, self.rules, run_dir, sacct=sacct)

    def fetch_whole(self, run_dir: Path) -> None:
        """The same with all that a repetition or an export needs: its programs and its snapshot. At most two requests."""
        from kit.runs import remote_snapshots

        self.mirror.fetch(self.connection, self.rules, run_dir, whole=True)
        if tree := run_facts.read(run_dir).tree:
            remote_snapshots.fetch(self, tree)

    def fetch_sweep(self, folder: Path) -> None:
        """Bring the files of all points of a sweep up to date: one request."""
        self.mirror.fetch(self.connection, self.rules, folder)

    def _settle(self, asked: ClusterAnswer) -> None:
        """A run whose submit was cut off after Slurm had taken it gets its job's number, found by its batch script."""
        from kit.runs.remote_submit import settle

        unknown = [path for path, one in index.runs(self.mirror.runs) if one.slurm_id is None and not one.problem]
        cut = {path.name for path in unknown if f"{asked.there.runs}/{path.name}/batch.sh" in asked.keys}
        sweeps = {path.parent.parent.name for path in unknown if path.parent.name == index.POINTS}
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
            from kit.spec.cluster import Cluster

            rules = config.load_model(entry.path, Cluster)
        except ConfigError:
            return None
        _known[name] = made(name, rules)
    return _known[name]


def made(name: str, rules: Cluster) -> RemoteCluster | None:
    """The same for a cluster that is read already."""
    if rules.ssh is None:
        return None
    known = _known.get(name)
    if known is not None and known.rules == rules:
        return known
    from kit.remote.connection import Connection

    connection = Connection(name, rules.ssh, timeout=rules.ssh.timeout_s)
    _known[name] = RemoteCluster(name, rules, connection, mirrors.of(name, rules))
    return _known[name]


def all_of(project: Path) -> list[RemoteCluster]:
    """All of a project."""
    found = (of(name, project=project) for name in data_folders.names("clusters", project_dir=project))
    return [one for one in found if one is not None]


def refresh(project: Path, names: Sequence[str | None] = (None,)) -> dict[str, str]:
    """Bring the mirrors up to date that these names of runs may be in, all at once; cluster -> why it does not answer."""
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
    """Whether a run of this name may be there: no other cluster is asked for a run whose whole name is known."""
    if name is None:
        return True
    if index.is_run(Path(name)):
        return mirrors.holding(Path(name).resolve()) == one.mirror
    if "/" in name:
        return False
    from kit.runs import find_runs

    known = [folder for folder in find_runs.folders(project) if index.is_run(folder / name)]
    return not known or one.mirror.runs in known


def holding(run_dir: Path) -> RemoteCluster | None:
    """The cluster that a mirrored run folder is of; None for a run of this machine."""
    mirror = mirrors.holding(run_dir)
    if mirror is None:
        return None
    found = of(mirror.cluster())
    if found is None or found.mirror != mirror:
        raise RunError(f"{run_dir}: clusters/{mirror.cluster()}.toml names another place by now", hint="kit runs")
    return found


def fetch(run_dir: Path) -> None:
    """Bring a run's files up to date, if it is of another machine. A cluster that was silent a moment ago is left alone."""
    found = holding(run_dir)
    if found is not None and not found.silent:
        found.fetch(run_dir)


def fetch_whole(run_dir: Path) -> None:
    """The same with a run's programs and its snapshot."""
    found = holding(run_dir)
    if found is not None:
        found.fetch_whole(run_dir)


def fetch_sweep(folder: Path) -> None:
    """The same for all points of a sweep: one request."""
    found = holding(folder)
    if found is not None and not found.silent:
        found.fetch_sweep(folder)


def queue(one: RemoteCluster) -> Mapping[JobId, QueuedJob] | None:
    """Slurm's queue as it came with the newest records; both are asked for when they are old. None where it does not answer."""
    from kit.slurm import client

    if one.silent:
        return None
    if one.asked is None or time.monotonic() - one.asked_at > _FRESH_S:
        one.refresh()
    return client.queue(env=one.env())


def require_here(run_dir: Path, command: str) -> None:
    """UsageError for a run of a cluster over ssh, where a command does not work there yet."""
    found = mirrors.holding(run_dir)
    if found is not None:
        refuse(found.cluster(), command)


def require_cluster_here(name: str | None, command: str) -> None:
    """The same before anything is planned. name: as `--cluster` has it."""
    project = data_folders.project()
    found = of(config.cluster_entry(name, project).name, project=project)
    if found is not None:
        refuse(found.name, command)


def refuse(cluster: str, command: str) -> NoReturn:
    """Say that a command does not work over ssh yet."""
    raise UsageError(
        f"{command} does not work over ssh yet, and cluster {cluster} is reached so", hint="run it on the login node"
    )


def is_line(error: KitError) -> bool:
    """Whether the connection broke, or none could be made: the same may work in a moment."""
    from kit.remote.connection import LineError

    return isinstance(error, LineError)
