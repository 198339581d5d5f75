"""Cancels one half of a training over two clusters if the other half was not submitted, even if the line or the kit broke first.

`kit submit` notes each half before it submits it: one over ssh in the mirror of its cluster, one of this machine in the user's
cache folder. It removes the notes when both are submitted. The next command that asks a cluster with such a note cancels the half,
unless that submit still runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kit.errors import JobRefusedError, KitError, SlurmError
from kit.files import atomic_write, untrusted_files
from kit.files.owning_process import Owner
from kit.hosts import status
from kit.hosts.remote_clusters import RemoteCluster
from kit.record import cache_files, run_facts
from kit.slurm import client
from kit.slurm.client import JobId, QueuedJob
from kit.submit import cancel, remote_cancel

# The first line of a note whose submit has failed. Before that, it is the process that submits.
_FAILED = "failed"
# After this time, no job of an interrupted submit appears any more.
_FORGET_S = 86_400.0


@contextmanager
def both_or_none() -> Iterator[Callable[[RemoteCluster | None, Path], None]]:
    """Within the block, both halves are submitted. If it is left by an error, the halves over ssh that exist are cancelled.

    The block calls the function before it submits a half: with its cluster, or None for this machine, and its run folder. A half
    that cannot be cancelled now keeps its note.
    """
    tried: list[tuple[RemoteCluster | None, Path]] = []

    def about_to_submit(cluster: RemoteCluster | None, run_dir: Path) -> None:
        tried.append((cluster, run_dir))
        _write(cluster, run_dir, str(Owner.current()))

    try:
        yield about_to_submit
    except BaseException as error:
        if isinstance(error, JobRefusedError):
            # Nothing of a half that Slurm refused is left.
            _forget(*tried.pop())
        for cluster, run_dir in tried:
            _write(cluster, run_dir, _FAILED)
            if cluster:
                with contextlib.suppress(KitError):
                    cluster.refresh()
        raise
    for half in tried:
        _forget(*half)


def cancel_there(cluster: RemoteCluster) -> None:
    """Cancel the noted halves of a cluster over ssh whose mirror was updated just now."""
    for note, _ in _unwanted(cluster.mirror.unwanted):
        run_dir = cluster.mirror.runs / note.name
        facts = run_facts.read(run_dir)
        if facts.slurm_id is None:
            # Its submit may still be under way on the cluster, without this machine.
            _forget_old(note)
            continue
        (one,) = status.of_facts([(run_dir, facts)], queue=lambda _: client.queue(env=cluster.env()))
        if one.active:
            remote_cancel.send(cluster, [one], [])
        note.unlink(missing_ok=True)


def cancel_here(name: str, jobs: Mapping[JobId, QueuedJob], *, env: Mapping[str, str]) -> bool:
    """Cancel the noted halves of a cluster of this machine, with the jobs that it has. Returns whether there were any to cancel."""
    cancelled = False
    for note, folder in _unwanted(cache_files.halves()):
        run_dir = Path(folder)
        facts = run_facts.read(run_dir)
        if facts.slurm_id is None:
            _forget_old(note)
        elif facts.cluster == name:
            (one,) = status.of_facts([(run_dir, facts)], queue=lambda _: jobs)
            if one.active:
                try:
                    cancel.cancel([one], env=env)
                except SlurmError:
                    continue  # another command has, or the next one will
                cancelled = True
            _remove(note)
    return cancelled


def is_noted(cluster: RemoteCluster | None, run_dir: Path) -> bool:
    """Whether a half still has to be cancelled."""
    return _place(cluster, run_dir).exists()


def _unwanted(folder: Path) -> list[tuple[Path, str]]:
    """The notes of halves whose submit has failed, and the rest of their text: the run folder of one of this machine."""
    found = []
    with contextlib.suppress(OSError):
        for note in sorted(folder.iterdir()):
            with contextlib.suppress(OSError, ValueError):
                submits, _, rest = untrusted_files.read_text(note).partition("\n")
                if not note.name.startswith(".") and _has_failed(submits):
                    found.append((note, rest.strip()))
    return found


def _has_failed(submits: str) -> bool:
    """Whether the submit has failed, or its process has died. A process of another host may still be submitting."""
    owner = Owner.parse(submits)
    return submits == _FAILED if owner is None else owner.alive() is False


def _write(cluster: RemoteCluster | None, run_dir: Path, submits: str) -> None:
    place = _place(cluster, run_dir)
    if cluster:
        place.parent.mkdir(parents=True, exist_ok=True)
        atomic_write.write(place, submits)
        return
    # With a full or read-only home folder, the half is submitted without a note.
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write.write(place, f"{submits}\n{run_dir.absolute()}\n")


def _place(cluster: RemoteCluster | None, run_dir: Path) -> Path:
    return (cluster.mirror.unwanted if cluster else cache_files.halves()) / run_dir.name


def _forget(cluster: RemoteCluster | None, run_dir: Path) -> None:
    _remove(_place(cluster, run_dir))


def _forget_old(note: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - note.stat().st_mtime > _FORGET_S:
            _remove(note)


def _remove(note: Path) -> None:
    note.unlink(missing_ok=True)
    if note.parent == cache_files.halves():
        # Without the folder, no command looks for notes.
        with contextlib.suppress(OSError):
            note.parent.rmdir()
