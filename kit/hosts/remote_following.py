"""Follows runs of clusters over ssh across broken connections: reading continues where it stopped."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from kit.errors import ToolError
from kit.hosts import clusters
from kit.hosts.host import Queue
from kit.hosts.ssh import SshHost
from kit.slurm.client import JobId, QueuedJob
from kit.ssh.connection import LineError

# Seconds between two reads of a run's logs: short after new lines, longer and longer without.
_LOOK_S, _LOOK_MOST_S = 1.0, 5.0
# Seconds between two tries after a broken connection.
_TRY_S, _TRY_MOST_S = 2.0, 30.0

Say = Callable[[str], None]
T = TypeVar("T")


def patient(queue: Queue, *, say: Say) -> Queue:
    """A queue function that waits while the cluster cannot be reached, instead of returning None."""

    def ask(name: str) -> Mapping[JobId, QueuedJob] | None:
        remote = clusters.find_ssh_host(name)
        if remote is None:
            return queue(name)
        return _until_it_answers(remote, lambda: queue(name), say=say, stop=threading.Event())

    return ask


@contextlib.contextmanager
def fetching(run_dir: Path, *, say: Say) -> Iterator[Callable[[], None]]:
    """Update a run's files repeatedly within the block; do nothing for a run of this machine.

    The block gets a function for one more update, to fetch the last lines of a run that has ended.
    """
    remote = clusters.mirrored_host(run_dir)
    if remote is None:
        yield lambda: None
        return
    stop = threading.Event()

    def once() -> None:
        _until_it_answers(remote, lambda: remote.fetch(run_dir, accounting_too=False), say=say, stop=stop)

    thread = threading.Thread(target=_fetch, args=(run_dir, once, stop), daemon=True)
    thread.start()
    try:
        yield once
    finally:
        stop.set()


def _fetch(run_dir: Path, once: Callable[[], None], stop: threading.Event) -> None:
    pause, before = _LOOK_S, -1
    while not stop.wait(pause):
        # Another thread asks for the run's state, and reports any other error.
        with contextlib.suppress(ToolError):
            once()
        size = sum(path.stat().st_size for path in (run_dir / "logs").glob("**/*.log"))
        pause = _LOOK_S if size != before else min(pause * 1.3, _LOOK_MOST_S)
        before = size


def _until_it_answers(remote: SshHost, ask: Callable[[], T], *, say: Say, stop: threading.Event) -> T:
    pause, announced = _TRY_S, False
    while True:
        remote.silent = ""
        try:
            return ask()
        except LineError as error:
            if stop.is_set():
                raise
            if not announced:
                say(f"{error.message.splitlines()[0]}; trying again, the job continues")
            announced = True
        stop.wait(pause)
        pause = min(pause * 1.5, _TRY_MOST_S)
