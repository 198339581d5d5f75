"""Compressed tars: gzip, zstd, xz and bzip2, told by their own first bytes and unpacked on the disk."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from kit import shell
from kit.errors import ImageError, ToolError

_CHUNK = 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2"}
_OPEN: dict[str, Callable[[Path], IO[bytes]]] = {"gzip": gzip.open, "xz": lzma.open, "bzip2": bz2.open}  # type: ignore[dict-item]


def kind(file: Path) -> str:
    """`gzip`, `zstd`, `xz` or `bzip2`; empty for anything else."""
    with file.open("rb") as stream:
        start = stream.read(8)
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), "")


def unpack(packed: Path, target: Path) -> None:
    """Decompress into `target`, removing nothing but a `packed` of the caller's own folder; move it there when it is plain.

    ImageError for damaged data; OSError for a disk that takes no more.
    """
    found = kind(packed)
    if not found:
        packed.rename(target)
        return
    try:
        if found == "zstd":
            _zstd(packed, target)
        else:
            with _OPEN[found](packed) as stream, target.open("wb") as out:
                shutil.copyfileobj(stream, out, _CHUNK)
    except (lzma.LZMAError, zlib.error, EOFError, ValueError) as error:
        raise _damaged(packed, found, str(error)) from None
    except OSError as error:
        if (
            error.errno is not None
        ):  # the disk's; gzip and bzip2 say with one without a number that the data are damaged
            raise
        raise _damaged(packed, found, str(error)) from None
    if packed.parent == target.parent:
        packed.unlink()


def _damaged(packed: Path, found: str, why: str) -> ImageError:
    return ImageError(f"{packed.name}: damaged or cut off {found} data: {why}", hint="copy or fetch it again")


def _zstd(packed: Path, target: Path) -> None:
    zstd = shell.require("zstd", hint="apt-get install zstd")
    try:
        shell.run([zstd, "--quiet", "--decompress", "--force", "-o", str(target), str(packed)])
    except ToolError as error:
        if "No space left" in error.message:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise _damaged(packed, "zstd", error.message) from None
