"""Sends weights from the trainer to the inference servers: by files on shared storage, or by a collective (gloo, nccl).

The trainer announces each version in <run>/broadcast/latest.json, which it renames into place. The orchestrator reads it
and sends it to every server as POST /update_weights, with the server's rank.

By files, the weights are written, synced and renamed before they are announced. Older files are removed once two newer ones exist.
By a collective, the announcement comes first. Each server (ranks from 1) reports in the trainer's store that it is ready. Once all
have, the trainer (rank 0) gives the start signal, and all form a group for one transfer. So a restarted server is a member of the
next group, and a transfer that lost a member is tried again with the member's replacement.
"""

import contextlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lib.policy import Weights

POINTER, AGAIN = "latest.json", "again"
# HTTP status of a server that has no weights yet, and of one that could not fetch the announced weights.
NO_WEIGHTS, MISSED = 503, 409
KEPT = 2
ATTEMPTS = 3
POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """Weights that can be fetched.

    start: drawn at each start of the trainer, because versions continue from its checkpoint. number: counts the announcements
    of a start, because a version may be announced twice. path: the file of the weights. For a collective instead: store, host and
    port of the trainer's TCPStore; ranks, the number of members; rank, that of the server that gets the announcement.
    """

    start: str
    version: int
    shape: dict[str, int]
    number: int
    path: str = ""
    store: tuple[str, int] | None = None
    backend: str = "gloo"
    ranks: int = 0
    rank: int = 0

    @classmethod
    def parse(cls, content: dict[str, Any]) -> "Announcement":
        """Parse an announcement from JSON, which has no tuples."""
        store = content["store"]
        return cls(**{**content, "store": tuple(store) if store else None})


def announced(run_dir: Path) -> Announcement | None:
    """The newest announcement; None where there is none yet."""
    try:
        return Announcement.parse(json.loads((run_dir / "broadcast" / POINTER).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def ask_again(run_dir: Path) -> None:
    """Ask the trainer to send its weights again, because a server was restarted and has none."""
    with contextlib.suppress(FileNotFoundError):  # a starting trainer makes the folder anew
        (run_dir / "broadcast" / AGAIN).touch()


class Broadcaster:
    """The trainer's side, on its rank 0 only. Making one removes the announcements of an earlier start."""

    def __init__(
        self, run_dir: Path, shape: dict[str, int], *, how: str, servers: int, address: tuple[str, int], timeout: float
    ) -> None:
        self._folder, self._shape, self._timeout = run_dir / "broadcast", shape, timeout
        self.start = secrets.token_hex(4)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._ranks, self._announced = servers + 1, 0
        self._store: dist.TCPStore | None = None
        if how != "filesystem":
            wait = timedelta(seconds=timeout)
            self._store = dist.TCPStore(address[0], address[1], is_master=True, wait_for_workers=False, timeout=wait)
            self._address = (address[0], self._store.port)

    def publish(self, version: int, weights: Weights) -> None:
        """Send out a version. A collective returns when all servers have it. RuntimeError where they cannot be reached."""
        self._published = (version, weights)
        (self._folder / AGAIN).unlink(missing_ok=True)
        if self._store is None:
            self._by_file(version, weights)
        else:
            self._by_collective(version, weights)

    def repeat_if_asked(self) -> None:
        """Send the last version again, for a server that was restarted."""
        if (self._folder / AGAIN).exists():
            self.publish(*self._published)

    def _by_file(self, version: int, weights: Weights) -> None:
        path = self._folder / f"version-{version:08d}.pt"
        _replace(path, lambda new: torch.save(weights, new))
        self._announce(version, path=str(path))
        for old in sorted(self._folder.glob("version-*.pt"))[:-KEPT]:
            old.unlink()

    def _by_collective(self, version: int, weights: Weights) -> None:
        flat = _flat(weights)
        for _ in range(ATTEMPTS):
            backend = "nccl" if flat.is_cuda else "gloo"
            news = self._announce(version, store=self._address, backend=backend, ranks=self._ranks)
            try:
                store = _store(news, self._timeout)
                store.wait([f"here/{rank}" for rank in range(1, news.ranks)], timedelta(seconds=self._timeout))
                store.set("go", "")
                _transfer(store, news, flat, self._timeout)
            except RuntimeError as error:
                print(f"warning: weights of version {version}: {error}", file=sys.stderr, flush=True)
            else:
                return
        raise RuntimeError(
            f"the weights of version {version} did not reach the inference servers in {ATTEMPTS} attempts"
        )

    def _announce(self, version: int, **how: Any) -> Announcement:
        self._announced += 1
        news = Announcement(start=self.start, version=version, shape=self._shape, number=self._announced, **how)
        _replace(self._folder / POINTER, lambda new: new.write_text(json.dumps(asdict(news)), encoding="utf-8"))
        return news


def fetch(news: Announcement, like: Weights, timeout: float, superseded: Callable[[], bool]) -> Weights:
    """Fetch the announced weights, on a server. RuntimeError where they cannot be fetched, or are no longer wanted.

    like: tensors of the right names, shapes and device; they are not changed. superseded: whether there is a newer announcement.
    """
    if news.path:
        return torch.load(news.path, map_location="cpu", weights_only=True)
    store = _store(news, timeout)
    store.set(f"here/{news.rank}", "")
    deadline = time.monotonic() + timeout
    while not store.check(["go"]):
        if superseded() or time.monotonic() > deadline:
            raise RuntimeError("given up while other servers were not there yet")
        time.sleep(POLL_S)
    flat = torch.empty_like(_flat(like))
    _transfer(store, news, flat, timeout)
    parts = flat.split([like[name].numel() for name in sorted(like)])
    return {name: part.view_as(like[name]) for name, part in zip(sorted(like), parts, strict=True)}


def _store(news: Announcement, timeout: float) -> dist.PrefixStore:
    """The part of the trainer's store for one announcement, over a separate connection."""
    assert news.store is not None
    host, port = news.store
    whole = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout))
    return dist.PrefixStore(f"{news.start}/{news.number}", whole)


def _transfer(store: dist.PrefixStore, news: Announcement, flat: torch.Tensor, timeout: float) -> None:
    """Form a group, send `flat` from rank 0 into the others' `flat`, and leave the group. RuntimeError where that fails."""
    wait = timedelta(seconds=timeout)
    if news.backend == "nccl":
        limits = dist.ProcessGroupNCCL.Options()
        limits._timeout = wait
        group = dist.ProcessGroupNCCL(store, news.rank, news.ranks, limits)
    else:
        group = dist.ProcessGroupGloo(store, news.rank, news.ranks, wait)
    group.broadcast(flat, 0).wait(wait)
    # No rank leaves before all have the weights.
    group.allreduce(flat.new_zeros(1)).wait(wait)
    if flat.is_cuda:
        torch.cuda.synchronize(flat.device)


def _flat(weights: Weights) -> torch.Tensor:
    return torch.cat([weights[name].detach().flatten() for name in sorted(weights)])


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that a reader sees all of it or none."""
    new = path.with_name(f".{path.name}.new")
    write(new)
    handle = os.open(new, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    new.replace(path)
