"""The hosts of a project's clusters. Clusters over ssh are asked in parallel, each with its own time-out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from kit import config, data_folders
from kit.errors import ConfigError, RunError, ToolError, UsageError
from kit.hosts.host import Host
from kit.hosts.local import LocalHost
from kit.record import find_runs, index, known_files
from kit.ssh import run_folder_mirror as mirrors

if TYPE_CHECKING:
    from kit.hosts.ssh import SshHost
    from kit.schema.cluster import Cluster

_known: dict[str, SshHost | None] = {}


def find_host(name: str) -> Host:
    """The host of the cluster of this name: this machine, if its file says nothing of ssh or cannot be read."""
    return find_ssh_host(name) or LocalHost(name=name)


def host_for(name: str, rules: Cluster, *, project: Path) -> Host:
    """The host of a cluster whose file was read."""
    found = ssh_host_for(name, rules)
    return found or LocalHost(name=name, project=project, runs=find_runs.folder_of(rules, project))


def host_of_run(run_dir: Path) -> Host:
    """The host with a run's own folder, of which this is a mirror or the folder itself. A sweep's point may have no folder yet."""
    if mirrored := mirrored_host(run_dir):
        return mirrored
    ((_, facts),) = index.facts([run_dir])
    return LocalHost(name=facts.cluster)


def find_ssh_host(name: str, *, project: Path | None = None) -> SshHost | None:
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
        _known[name] = ssh_host_for(name, rules)
    return _known[name]


def ssh_host_for(name: str, rules: Cluster) -> SshHost | None:
    """The cluster of this name, from the rules of its file; None if it is reached without ssh."""
    if rules.ssh is None:
        return None
    known = _known.get(name)
    if known is not None and known.rules == rules:
        return known
    from kit.hosts.ssh import SshHost
    from kit.ssh.connection import Connection

    connection = Connection(name, rules.ssh, timeout=rules.ssh.timeout_s)
    _known[name] = SshHost(name, rules, connection, mirrors.find_mirror(name, rules))
    return _known[name]


def ssh_hosts(project: Path) -> list[SshHost]:
    """All clusters over ssh of a project."""
    found = (find_ssh_host(name, project=project) for name in data_folders.names("clusters", project_dir=project))
    return [one for one in found if one is not None]


def refresh(
    project: Path, names: Sequence[str | None] = (None,), *, then: Callable[[SshHost], None] = lambda _: None
) -> dict[str, str]:
    """Update the mirrors that may contain runs of these names, all in parallel; cluster -> reason why it does not answer.

    then: called for each cluster that answers, while the others are asked.
    """
    wanted = [host for host in ssh_hosts(project) if any(_may_be_in(host, name, project) for name in names)]
    if wanted:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max_workers=len(wanted)) as pool:
            list(pool.map(lambda host: _try(host, then), wanted))
    return {host.name: host.silent for host in wanted if host.silent}


def _try(one: SshHost, then: Callable[[SshHost], None]) -> None:
    try:
        one.refresh()
        then(one)
    except ToolError as error:
        one.silent = error.message + (f"\n  try: {error.hint}" if error.hint else "")


def _may_be_in(host: SshHost, name: str | None, project: Path) -> bool:
    """Whether a run of this name may be on a cluster. For a complete, known name only one cluster is asked."""
    if name is None:
        return True
    if index.is_run(Path(name)):
        return mirrors.holding(Path(name).resolve()) == host.mirror
    if "/" in name:
        return False
    known = [folder for folder in find_runs.folders(project) if index.is_run(folder / name)]
    return not known or host.mirror.runs in known


def mirrored_host(run_dir: Path) -> SshHost | None:
    """The cluster of a mirrored run folder; None for a run of this machine."""
    mirror = mirrors.holding(run_dir)
    if mirror is None:
        return None
    host = find_ssh_host(mirror.cluster())
    if host is None or host.mirror != mirror:
        raise RunError(
            f"{run_dir}: clusters/{mirror.cluster()}.toml now names another host or another folder of runs",
            hint="kit runs",
        )
    return host


def fetch(run_dir: Path) -> None:
    """Update a run's files, if it is on a cluster over ssh. A cluster that did not answer a moment ago is skipped."""
    found = mirrored_host(run_dir)
    if found is not None and not found.silent:
        found.fetch(run_dir)


def fetch_whole(run_dir: Path) -> None:
    """Update a run's files, with its programs and its snapshot."""
    found = mirrored_host(run_dir)
    if found is not None:
        found.fetch_whole(run_dir)


def fetch_sweep(folder: Path) -> None:
    """Update the files of all points of a sweep, in one request."""
    found = mirrored_host(folder)
    if found is not None and not found.silent:
        found.fetch_sweep(folder)


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
