"""Compressed tars: gzip, zstd, xz and bzip2, recognised by their first bytes and unpacked on disk."""

from __future__ import annotations

import bz2
import lzma
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from kit import shell
from kit.errors import ImageError, ToolError
from kit.files import untrusted_files
from kit.images.sources import layer_bytes
from kit.images.sources.gzip_layer_reader import GzipTar
from kit.images.sources.layer_bytes import Blob

_CHUNK = 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2"}
_OPEN: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {"xz": lzma.open, "bzip2": bz2.open}


def kind(file: Path, start: int = 0) -> str:
    """The compression of a file's bytes from `start` on: `gzip`, `zstd`, `xz` or `bzip2`; empty for anything else."""
    with untrusted_files.open_regular(file) as stream:
        stream.seek(start)
        first = stream.read(8)
    return next((name for magic, name in _MAGIC.items() if first.startswith(magic)), "")


def size(packed: Blob) -> int:
    """The approximate unpacked size of a blob, for progress. gzip stores it (RFC 1952, ISIZE); for the others it is a guess."""
    if not packed.file.is_file():
        return 3 * packed.size  # still in the registry
    found = kind(packed.file, packed.start)
    source = packed.open()
    counted = int.from_bytes(source.read_at(packed.size - 4, 4), "little") if found == "gzip" else 0
    source.close()
    return max(counted, 3 * packed.size) if found else packed.size


def unpack(packed: Blob, target: Path, ended: threading.Event | None = None) -> None:
    """Decompress into `target`, until `ended` is set. ImageError for damaged data; OSError for a full disk."""
    with target.open("wb") as out:
        for chunk in chunks(packed, target.parent):
            if ended and ended.is_set():
                return
            out.write(chunk)


def chunks(packed: Blob, work: Path) -> Iterator[bytes]:
    """The unpacked bytes of a compressed blob. work: a folder for the file that zstd, an external program, reads."""
    compression = kind(packed.file, packed.start)
    if compression == "gzip":
        tar = GzipTar(packed, work)
        try:
            yield from layer_bytes.chunks(tar)
        finally:
            tar.close()
    elif compression == "zstd":
        yield from _zstd(packed, work)
    else:
        yield from _by_library(packed, compression)


def _by_library(packed: Blob, compression: str) -> Iterator[bytes]:
    source = packed.open()
    try:
        with _OPEN[compression](cast(IO[bytes], layer_bytes.LayerFile(source))) as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise _damaged(packed, compression, str(error)) from None
    except OSError as error:
        if error.errno is not None:  # an error of the disk; bzip2 reports damaged data as an OSError without a number
            raise
        raise _damaged(packed, compression, str(error)) from None
    finally:
        source.close()


def _zstd(packed: Blob, work: Path) -> Iterator[bytes]:
    zstd = shell.require("zstd", hint="apt-get install zstd")
    file = packed.file
    if packed.start or packed.size != file.stat().st_size:
        file = work / f"{packed.start}.zst"
        _copy(packed, file)
    try:
        with shell.output([zstd, "--quiet", "--decompress", "--stdout", str(file)]) as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
    except ToolError as error:
        raise _damaged(packed, "zstd", error.message) from None
    finally:
        if file != packed.file:
            file.unlink()


def _copy(packed: Blob, target: Path) -> None:
    source = packed.open()
    try:
        with target.open("wb") as out:
            for chunk in layer_bytes.chunks(source):
                out.write(chunk)
    finally:
        source.close()


def _damaged(packed: Blob, found: str, why: str) -> ImageError:
    return ImageError(f"{packed.name}: damaged or cut off {found} data: {why}", hint="copy or fetch it again")
