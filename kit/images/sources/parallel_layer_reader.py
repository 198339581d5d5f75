"""Reads all layers of an image in parallel: several threads unpack, hash and parse them, and each can be used when it is ready."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from kit.images.sources import compressed_tars, layer_bytes
from kit.images.sources.gzip_layer_reader import GzipTar
from kit.images.sources.layer import Layer
from kit.images.sources.layer_bytes import Blob, Bytes

_THREADS = 4  # at most: zlib and hashlib run in parallel, and mksquashfs needs cores too


class Reading:
    """Reads layers in threads; see layer_tree.merged. The largest compressed layer is unpacked into `work`; other gzip layers are
    read in place.

    So the disk holds at most the largest layer, plus zstd, xz and bzip2 layers, which cannot be read in place.
    """

    def __init__(self, blobs: Sequence[Blob], work: Path | None, *, whole: bool) -> None:
        self._blobs, self._work, self._whole = blobs, work, whole
        self._kinds = [compressed_tars.kind(one.file, one.start) for one in blobs]
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), "layers")
        self._layers: list[Future[Layer]] = []
        self._checks: list[Future[None]] = []

    def __enter__(self) -> Reading:
        packed = [number for number, kind in enumerate(self._kinds) if kind]
        largest = max(packed, key=lambda number: self._blobs[number].size, default=-1)
        reads = {}
        for number in sorted(range(len(self._blobs)), key=lambda number: -self._blobs[number].size):
            reads[number] = self._pool.submit(self._read, number, in_place=number != largest)
        self._layers = [reads[number] for number in range(len(self._blobs))]
        self._checks = [self._pool.submit(self._check, number) for number in range(len(self._blobs))]
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)
        for read in self._layers:
            if not read.cancelled() and read.exception() is None:
                read.result().close()

    def layers(self) -> list[Layer]:
        """The layers, after all are read. ImageError for a damaged layer, OSError for a full disk."""
        return [read.result() for read in self._layers]

    def verify(self) -> None:
        """ImageError unless all layers have their digests."""
        for check in self._checks:
            check.result()

    def _read(self, number: int, *, in_place: bool) -> Layer:
        one = self._blobs[number]
        layer = Layer(self._bytes(number, in_place=in_place), one.name, number, whole=self._whole)
        try:
            layer.apply_entries(self._ended)
        except BaseException:
            layer.close()
            raise
        return layer

    def _bytes(self, number: int, *, in_place: bool) -> Bytes:
        blob, kind = self._blobs[number], self._kinds[number]
        if not kind:
            return blob.open()
        assert self._work is not None, "a compressed layer needs a folder to be unpacked into"
        # A layer whose digest is that of its tar is unpacked to a file, so that it is decompressed only once.
        if kind == "gzip" and in_place and not blob.of_tar:
            return GzipTar(blob, self._work)
        target = self._unpacked_path(number)
        compressed_tars.unpack(blob, target, self._ended)
        return Blob.whole(target).open()

    def _check(self, number: int) -> None:
        blob = self._blobs[number]
        if blob.digest and blob.of_tar and self._kinds[number]:
            self._layers[number].result()
            blob = Blob(
                file=self._unpacked_path(number),
                size=self._unpacked_path(number).stat().st_size,
                digest=blob.digest,
                name=blob.name,
            )
        if blob.digest:
            source = blob.open()
            try:
                layer_bytes.check(source, blob.digest, blob.name, self._ended)
            finally:
                source.close()

    def _unpacked_path(self, number: int) -> Path:
        assert self._work is not None
        return self._work / f"layer-{number}.tar"
