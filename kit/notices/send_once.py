"""Sends each notice of a run at most once: only the process that creates the event's file sends it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kit.hosts.status import Status
from kit.notices import send
from kit.notices.happened import STALE_S, happened, text
from kit.record import secret
from kit.schema.notify import Event
from kit.schema.run_paths import RunPaths

Say = Callable[[str], None]


def tell(
    run: Status,
    on: Sequence[Event],
    urls: Mapping[str, str],
    *,
    say: Say,
    gone: bool = False,
    patience: float = send.PATIENCE_S,
) -> None:
    """Send the events in `on` that have happened and were not sent yet.

    urls: variable name -> URL. say: called with one line for each attempt. gone: whether Slurm has lost the job (see `happened`).
    """
    now = time.time()
    for event in happened(run, on, now=now, gone=gone):
        if not _mine(run.run_dir, event.key):
            continue
        if now - event.at > STALE_S:
            say(f"{run.run_dir.name}: {event.event} was too long ago to be told")
            continue
        title, body = text(run, event.event)
        took = send.send(
            urls, event.event, title, body, hide=list(secret.read_secrets(run.run_dir).values()), patience=patience
        )
        for name, reason in took.items():
            say(f"{run.run_dir.name}: {event.event}: {name} {f'could not be told: {reason}' if reason else 'was told'}")


def _mine(run_dir: Path, key: str) -> bool:
    """Whether this process is the first to send the event. It is recorded before it is sent: it can be lost, but not doubled."""
    folder = RunPaths(run_dir).notices
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    try:
        os.close(os.open(folder / key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False
    return True
