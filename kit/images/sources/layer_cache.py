"""Layers of registries, kept by digest in the user's cache and shared by images. A partial download is kept too.

`<cache>/layers/<algorithm>-<hex>` is a complete layer. With the suffix `.partial` it is the part that arrived before the connection
ended. When the cache is full, the least recently used layer is removed first. All of it may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import platformdirs

from kit.errors import ImageError, UsageError
from kit.files import cross_host_lock
from kit.images.sources import layer_bytes
from kit.images.sources.engine_hints import registry_hint
from kit.images.sources.layer_bytes import Blob
from kit.images.sources.registry_client import LONGEST_WAIT_S, BrokenOffError

_PARALLEL_DOWNLOADS = 4  # layers; skopeo takes 6, the engine 3
_TRIES = 6  # consecutive tries without new bytes: half a minute without a connection
_FIRST_WAIT_S = 0.5
_CHUNK = 1 << 20
_DEFAULT_GB = 20.0
# A layer that was used this recently is not removed to free space: another import may be about to open it.
_IN_USE_S = 3600.0
_LIMIT = "KIT_LAYER_CACHE_GB"

Advance = Callable[[int], None]


class From(Protocol):
    """A source of blobs, such as registry_client.Client."""

    def blob(self, digest: str, start: int) -> Iterator[tuple[int, bytes]]:
        """The chunks, each with its offset in the blob."""


def folder() -> Path:
    """The folder of the layer cache; created if it is missing."""
    place = platformdirs.user_cache_path("kit") / "layers"
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    return place


def path(digest: str) -> Path:
    """The path of a layer in the cache, whether it exists or not."""
    return folder() / digest.replace(":", "-")


def fetch(source: From, sizes: Mapping[str, int], advance: Advance, *, name: str) -> None:
    """Fetch layers into the cache, several at once. A layer that is there, or that another process fetches, is not fetched again.

    sizes: of each digest, in bytes; no more are taken. advance is called with the number of new bytes, also for layers that were
    already there. name: of the image, for errors. ImageError for wrong bytes, and for a connection that fails repeatedly.
    """
    fetching = _Fetching(source, name, sizes, advance)
    with ThreadPoolExecutor(_PARALLEL_DOWNLOADS, "fetch") as pool:
        try:
            for one in [pool.submit(fetching.bring, digest) for digest in sizes]:
                one.result()
        except BaseException:
            fetching.ended.set()
            pool.shutdown(cancel_futures=True)
            raise
    make_room(keep=sizes)


def drop_damaged(layers: Sequence[Blob]) -> None:
    """Remove the cached layers that no longer match their digests."""
    for layer in layers:
        source = layer.open()
        try:
            layer_bytes.check(source, layer.digest, layer.name)
        except ImageError:
            layer.file.unlink(missing_ok=True)
        finally:
            source.close()


def make_room(*, keep: Collection[str] = ()) -> list[tuple[Path, int]]:
    """Remove the least recently used layers until the cache is within its limit; return them with their sizes."""
    limit, gone = limit_bytes(), []
    layers = _files()
    total = sum(size for _, size, _ in layers)
    kept = {path(digest).name for digest in keep}
    for file, size, used in layers:
        if total <= limit or time.time() - used < _IN_USE_S:
            break
        if file.name not in kept:
            file.unlink(missing_ok=True)
            total -= size
            gone.append((file, size))
    return gone


def prune(*, older_than_s: float, dry_run: bool) -> list[tuple[Path, int]]:
    """Remove layers that were not used for `older_than_s` seconds; return them with their sizes. dry_run: only list them."""
    gone = [(place, size) for place, size, used in _files() if time.time() - used >= older_than_s]
    for place, _ in gone:
        if not dry_run:
            place.unlink(missing_ok=True)
    return gone


def limit_bytes() -> float:
    """The size limit of the cache: KIT_LAYER_CACHE_GB from the environment, else 20 GB. UsageError for an invalid number."""
    text = os.environ.get(_LIMIT, "")
    try:
        limit = float(text or _DEFAULT_GB)
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise UsageError(f"{_LIMIT}={text}: not a size in GB", hint=f"{_LIMIT}=50, or 0 to keep nothing")
    return limit * 1e9


def _files() -> list[tuple[Path, int, float]]:
    """Layers, complete and partial, with size and time of last use; the oldest first."""
    layers = []
    for file in folder().iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = file.stat()
            if file.name.startswith("sha"):
                layers.append((file, status.st_size, status.st_mtime))
    return sorted(layers, key=lambda one: one[2])


class _Fetching:
    """The download of one image's layers. advance is called with the number of new bytes."""

    def __init__(self, source: From, name: str, sizes: Mapping[str, int], advance: Advance) -> None:
        self._source, self._name, self._sizes, self._advance = source, name, sizes, advance
        self.ended = threading.Event()
        self._advance_lock = threading.Lock()

    def bring(self, digest: str) -> None:
        """Fetch one layer; ImageError when it cannot be fetched completely."""
        target = path(digest)
        with cross_host_lock.hold(target.with_name(f".{target.name}.lock")):
            if target.is_file():
                os.utime(target)
                self._report_bytes(target.stat().st_size)
                return
            partial = target.with_name(f"{target.name}.partial")
            resumed = partial.is_file()
            right = self._download(digest, partial)
            if resumed and not right:  # the part from an earlier run may have been damaged since
                partial.unlink()
                right = self._download(digest, partial)
            if not right:
                partial.unlink()
                raise ImageError(
                    f"{self._name}: the bytes of layer {digest} do not match its digest and size: the registry or a proxy sent"
                    " wrong data",
                    hint="the same command again, or another mirror",
                )
            if not self.ended.is_set():
                partial.rename(target)

    def _download(self, digest: str, partial: Path) -> bool:
        """Download a layer into `partial`. Return whether it has its digest; also true when the download was told to end."""
        with _PartialLayer(partial, digest) as layer:
            self._report_bytes(layer.size)
            furthest, tries, waited = layer.size, 0, 0.0
            while not (layer.whole or self.ended.is_set()):
                try:
                    self._read_into(layer, digest)
                    break
                except BrokenOffError as error:
                    if layer.size > furthest:
                        tries, waited = 0, 0.0
                    else:
                        tries += 1
                    furthest, waited = max(furthest, layer.size), waited + error.wait_s
                    if waited > LONGEST_WAIT_S or (error.wait_s and tries == _TRIES):
                        problem = f"{self._name}: the registry does not give the layer {digest} now: {error}"
                        raise ImageError(problem, hint=registry_hint(str(error))) from None
                    if tries == _TRIES:
                        raise ImageError(
                            f"{self._name}: the connection broke off {tries} times in the layer {digest}: {error}",
                            hint="run it again: the bytes received so far are kept",
                        ) from None
                    self.ended.wait(max(_FIRST_WAIT_S * 2**tries, error.wait_s))
            return self.ended.is_set() or layer.whole

    def _read_into(self, layer: _PartialLayer, digest: str) -> None:
        for place, chunk in self._source.blob(digest, layer.size):
            if place + len(chunk) > self._sizes[digest]:
                layer.spoil()
                return  # nobody needs what follows, which may be without end
            layer.put(place, chunk)
            self._report_bytes(len(chunk))
            if self.ended.is_set():
                return

    def _report_bytes(self, more: int) -> None:
        with self._advance_lock:
            self._advance(more)


class _PartialLayer:
    """A layer during its download: the bytes so far, and their digest."""

    def __init__(self, file: Path, digest: str) -> None:
        self._algorithm, _, self._wanted = digest.partition(":")
        self._out = os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b")
        self._found = hashlib.new(self._algorithm)
        while chunk := self._out.read(_CHUNK):
            self._found.update(chunk)

    def __enter__(self) -> _PartialLayer:
        return self

    def __exit__(self, *_: object) -> None:
        self._out.flush()
        os.fsync(self._out.fileno())
        self._out.close()

    @property
    def size(self) -> int:
        """The number of bytes so far."""
        return self._out.tell()

    @property
    def whole(self) -> bool:
        """Whether the bytes have the layer's digest."""
        return self._found.hexdigest() == self._wanted

    def spoil(self) -> None:
        """Note that these bytes are not the layer's, whatever their digest."""
        self._wanted = ""

    def put(self, place: int, chunk: bytes) -> None:
        """Add a chunk at the end, or at an earlier offset: a registry that cannot resume starts again from 0."""
        if place != self.size:
            self._out.seek(place)
            self._out.truncate()
            self._found = hashlib.new(self._algorithm)
        self._out.write(chunk)
        self._found.update(chunk)
