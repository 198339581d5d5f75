"""Cancels one half of a training over two clusters if the other half was not submitted, even if the line or the kit broke first.

`kit submit` notes each half before it submits it: one over ssh in the mirror of its cluster, one of this machine in the user's
cache folder. It removes the notes when both are submitted. The next command that asks a cluster with such a note cancels the half,
unless that submit still runs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kit.errors import JobRefusedError, KitError, SlurmError
from kit.files import atomic_write, untrusted_files
from kit.files.owning_process import Owner
from kit.hosts import status
from kit.hosts.host import Host
from kit.record import run_facts
from kit.submission import cancel

# The first line of a note whose submit has failed. Before that, it is the process that submits.
_FAILED = "failed"
# After this time, no job of an interrupted submit appears any more.
_FORGET_S = 86_400.0


@contextmanager
def both_or_none() -> Iterator[Callable[[Host, Path], None]]:
    """Within the block, both halves are submitted. If it is left by an error, the halves that exist over ssh are cancelled.

    The block calls the function before it submits a half: with its host and its run folder. A half that cannot be cancelled now
    keeps its note.
    """
    tried: list[tuple[Host, Path]] = []

    def about_to_submit(host: Host, run_dir: Path) -> None:
        tried.append((host, run_dir))
        _write(host, run_dir, str(Owner.current()))

    try:
        yield about_to_submit
    except BaseException as error:
        if isinstance(error, JobRefusedError):
            # Nothing of a half that Slurm refused is left.
            _forget(*tried.pop())
        for host, run_dir in tried:
            _write(host, run_dir, _FAILED)
            if not host.shares_files:
                with contextlib.suppress(KitError):
                    host.refresh()
                    cancel_noted(host)
        raise
    for half in tried:
        _forget(*half)


def cancel_noted(host: Host) -> bool:
    """Cancel the noted halves of a host that was asked just now. Returns whether a job was cancelled."""
    noted = _unwanted(host)
    jobs = host.queue() if noted and host.is_up() else None
    if jobs is None:
        return False
    cancelled = False
    for note, run_dir in noted:
        facts = run_facts.read_facts(run_dir)
        if facts.slurm_id is None:
            # Its submit may still be under way on the cluster, without this machine.
            _forget_old(note)
        elif facts.cluster == host.name:
            (one,) = status.of_facts([(run_dir, facts)], queue=lambda _: jobs)
            if one.active:
                try:
                    cancel.cancel([one], host=host)
                except SlurmError:
                    continue  # another command has, or the next one will
                cancelled = True
            _remove(note)
    return cancelled


def is_noted(host: Host, run_dir: Path) -> bool:
    """Whether a half still has to be cancelled."""
    return _place(host, run_dir).exists()


def _unwanted(host: Host) -> list[tuple[Path, Path]]:
    """The notes of halves whose submit has failed, with their run folders."""
    halves = []
    with contextlib.suppress(OSError):
        for note in sorted(host.halves().iterdir()):
            with contextlib.suppress(OSError, ValueError):
                submits, _, run_dir = untrusted_files.read_text(note).partition("\n")
                if not note.name.startswith(".") and _has_failed(submits):
                    halves.append((note, Path(run_dir.strip())))
    return halves


def _has_failed(submits: str) -> bool:
    """Whether the submit has failed, or its process has died. A process of another host may still be submitting."""
    owner = Owner.parse(submits)
    return submits == _FAILED if owner is None else owner.alive() is False


def _write(host: Host, run_dir: Path, submits: str) -> None:
    place = _place(host, run_dir)
    # With a full or read-only home folder, the half is submitted without a note.
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_write.write(place, f"{submits}\n{run_dir.absolute()}\n")


def _place(host: Host, run_dir: Path) -> Path:
    return host.halves() / run_dir.name


def _forget(host: Host, run_dir: Path) -> None:
    _remove(_place(host, run_dir))


def _forget_old(note: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - note.stat().st_mtime > _FORGET_S:
            _remove(note)


def _remove(note: Path) -> None:
    note.unlink(missing_ok=True)
    # Without the folder, no command looks for notes.
    with contextlib.suppress(OSError):
        note.parent.rmdir()
