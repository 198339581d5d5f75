"""Cancels one half of a training over two clusters if the other half was not submitted, even after a lost connection or a killed
kit.

`kit submit` notes each half over ssh in the mirror of its cluster before it submits it, and removes the notes when both are
submitted. The next command that reaches a cluster with such a note cancels the half, unless that submit still runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.errors import JobRefusedError, KitError
from kit.owning_process import Owner
from kit.remote.run_folder_mirror import Mirror
from kit.runs import atomic_write, remote_cancel, run_facts, status
from kit.runs.remote_clusters import RemoteCluster
from kit.slurm import client

# The text of a note whose submit has failed. Before that, it is the process that submits.
_FAILED = "failed"
# After this time, no job of an interrupted submit appears any more.
_FORGET_S = 86_400.0


@contextmanager
def both_or_none() -> Iterator[Callable[[RemoteCluster | None, str], None]]:
    """Within the block, both halves are submitted. If it is left by an error, the halves over ssh that exist are cancelled.

    The block calls the function before it submits a half: with its cluster, or None for one of this machine, and its run's id.
    A cluster that does not answer keeps its note.
    """
    tried: list[tuple[RemoteCluster | None, str]] = []

    def about_to_submit(cluster: RemoteCluster | None, run_id: str) -> None:
        tried.append((cluster, run_id))
        if cluster:
            _note(cluster.mirror, run_id, str(Owner.current()))

    try:
        yield about_to_submit
    except BaseException as error:
        if isinstance(error, JobRefusedError):
            # Nothing of a half that Slurm refused is left.
            _forget(*tried.pop())
        for cluster, run_id in tried:
            if cluster:
                _note(cluster.mirror, run_id, _FAILED)
                with contextlib.suppress(KitError):
                    cluster.refresh()
        raise
    for half in tried:
        _forget(*half)


def _forget(cluster: RemoteCluster | None, run_id: str) -> None:
    if cluster:
        (cluster.mirror.unwanted / run_id).unlink(missing_ok=True)


def cancel(cluster: RemoteCluster) -> None:
    """Cancel the halves that have a note in this cluster's mirror. The mirror must be up to date."""
    for note in _unwanted(cluster.mirror):
        run_dir = cluster.mirror.runs / note.name
        facts = run_facts.read(run_dir)
        if facts.slurm_id is None:
            # Its submit may still be under way on the cluster, without this machine.
            if time.time() - note.stat().st_mtime > _FORGET_S:
                note.unlink(missing_ok=True)
            continue
        (one,) = status.of_facts([(run_dir, facts)], queue=lambda _: client.queue(env=cluster.env()))
        if one.active:
            remote_cancel.send(cluster, [one], [])
        note.unlink(missing_ok=True)


def is_noted(cluster: RemoteCluster, run_id: str) -> bool:
    """Whether a half still has to be cancelled."""
    return (cluster.mirror.unwanted / run_id).exists()


def _unwanted(mirror: Mirror) -> list[Path]:
    try:
        notes = sorted(one for one in mirror.unwanted.iterdir() if not one.name.startswith("."))
        return [one for one in notes if _is_unwanted(one.read_text(encoding="utf-8"))]
    except OSError:
        return []


def _is_unwanted(note: str) -> bool:
    """Whether the submit has failed, or its process has died. A process of another host may still be submitting."""
    submits = Owner.parse(note)
    return note == _FAILED if submits is None else submits.alive() is False


def _note(mirror: Mirror, run_id: str, text: str) -> None:
    mirror.unwanted.mkdir(parents=True, exist_ok=True)
    atomic_write.write(mirror.unwanted / run_id, text)
