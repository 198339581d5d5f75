"""`kit cancel` for runs of a cluster over ssh: one program cancels with Slurm and records it, at most once."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kit.errors import SlurmError
from kit.hosts.remote_clusters import RemoteCluster
from kit.hosts.status import Status
from kit.ssh import run_folder_mirror as mirrors
from kit.ssh import shell_program
from kit.ssh.answers import Reply
from kit.ssh.connection import LineError

# Pauses before repeating a request after a broken connection, in seconds.
_AGAIN_S = (1.0, 3.0, 9.0)


def send(cluster: RemoteCluster, at_once: Sequence[Status], gently: Sequence[Status]) -> None:
    """Make Slurm end some jobs, and ask others to end. SlurmError when Slurm refuses.

    A job is never asked twice: a batch script takes the second request as an order to end at once.
    """
    lines = [f"{'waiting' if one.state == 'PENDING' else 'now'} {one.job_id} {_path(cluster, one)}" for one in at_once]
    lines += [f"gently {one.job_id} {_path(cluster, one)}" for one in gently]
    nonce = f"cancel-{time.time_ns():x}"
    constants = {
        **mirrors.folders(cluster.rules),
        "NONCE": nonce,
        "ARGV": shell_program.Words(("printf", "%s\\n", *lines)),
    }
    for pause in (*_AGAIN_S, None):
        try:
            _require_taken(cluster.connection.ask("cancel", constants))
        except LineError:
            if pause is None:
                raise
            time.sleep(pause)
        else:
            # The queue that came with the last answer is older than this.
            cluster.asked = None
            return


def _path(cluster: RemoteCluster, one: Status) -> str:
    return cluster.mirror.name_of(one.run_dir)


def _require_taken(reply: Reply) -> None:
    for name, code in reply.codes.items():
        if code != 0:
            raise SlurmError(f"scancel, {name.replace('_', ' ')}: {reply.stderr.strip() or 'refused'}")
