"""Removes everything of a cluster. It needs only the folder's path, because a killed start may have recorded little."""

from __future__ import annotations

import contextlib
import os
import shutil
import time

from kit import shell
from kit.errors import SlurmError, ToolError
from kit.slurm.embedded import cgroup_support, nodes, process
from kit.slurm.embedded.cluster_record import EmbeddedCluster
from kit.slurm.embedded.daemons import MARK
from kit.slurm.embedded.paths import EmbeddedPaths

# Seconds that running jobs get to end after TERM. Remaining processes get KILL with their node.
_JOBS_S = 3.0
_GRACE_S = 1.0
_ROUNDS = 5
_HOLDERS = frozenset({"unshare", "bash", "sleep"})
_CLIENTS = frozenset({"srun", "salloc", "sbatch", "sattach"})


def cancel_jobs(cluster: EmbeddedCluster) -> None:
    """Cancel all jobs and wait a limited time until they are gone, so that programs and waiting clients can end by themselves."""
    deadline = time.monotonic() + _JOBS_S
    # Continue the removal even if the controller does not answer.
    with contextlib.suppress(ToolError):
        if jobs := set(_ask(cluster, "squeue", "--noheader", "--format=%A").split()):
            _ask(cluster, "scancel", *sorted(jobs))
        while time.monotonic() < deadline and _ask(cluster, "squeue", "--noheader"):
            time.sleep(0.1)


def remove(layout: EmbeddedPaths) -> bool:
    """End every process of the cluster, then remove its network and its folder. Return whether there was anything to remove.

    SlurmError when a process does not end, or when the folder contains something that the kit did not put there.
    """
    _check_is_ours(layout)
    existed = _end_processes(layout)
    if (cluster := EmbeddedCluster.load(layout)) and cluster.cgroups:
        cgroup_support.remove(node.name for node in cluster.nodes)
    nodes.remove_interface(layout)
    if layout.folder.exists():
        existed = True
        _remove_folder(layout)
    return existed


def _remove_folder(layout: EmbeddedPaths) -> None:
    """Remove the folder, the record last, so that an interrupted removal can be repeated."""
    for path in layout.folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != layout.record:
            path.unlink()
    layout.record.unlink(missing_ok=True)
    layout.folder.rmdir()


def _check_is_ours(layout: EmbeddedPaths) -> None:
    if not layout.folder.exists() or layout.record.exists():
        return
    if not layout.folder.is_dir() or any(path != layout.unfinished_record for path in layout.folder.iterdir()):
        raise SlurmError(
            f"{layout.folder}: not a cluster's folder; nothing was touched", hint="name another: --dir PATH"
        )


def _end_processes(layout: EmbeddedPaths) -> bool:
    had_processes = False
    for round_ in range(_ROUNDS):
        # A node's first process ignores TERM and ends the whole node, so it gets KILL. slurmctld and munged end cleanly on TERM.
        holders = process.matching(lambda pid: _carries_mark(layout, pid) and process.program(pid) in _HOLDERS)
        process.kill(holders)
        rest = process.matching(lambda pid: _belongs(layout, pid))
        if not holders and not rest:
            return had_processes
        had_processes = True
        process.end(rest, grace_s=_GRACE_S if round_ == 0 else 0)
    left = process.matching(lambda pid: _belongs(layout, pid))
    if left:
        named = ", ".join(f"{one.pid} ({process.program(one.pid)})" for one in left)
        raise SlurmError(f"{layout.folder}: processes that do not end: {named}", hint="`ps` says what they wait for")
    return had_processes


def _carries_mark(layout: EmbeddedPaths, pid: int) -> bool:
    return process.environ(pid).get(MARK) == str(layout.folder)


def _belongs(layout: EmbeddedPaths, pid: int) -> bool:
    """Whether a process belongs to the cluster: a daemon, a task of a job, or a Slurm client that waits for one.

    SLURM_CONF alone is not sufficient, because users export it in their shells. slurmstepd also gives tasks SLURMD_NODENAME.
    """
    if _carries_mark(layout, pid):
        return True
    variables = process.environ(pid)
    if variables.get("SLURM_CONF") != str(layout.slurm_conf):
        return False
    return "SLURMD_NODENAME" in variables or process.program(pid) in _CLIENTS


def _ask(cluster: EmbeddedCluster, *argv: str) -> str:
    return shell.run(argv, env={**os.environ, **cluster.env()}, timeout=_JOBS_S).stdout
