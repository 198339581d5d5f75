"""Reads and writes files that other users may have created: only regular files, with a size limit, no link of another user to a
file that is not his, and with modes that ignore the umask.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
from pathlib import Path

# Larger than any file of a job, a cluster or a run that the kit reads completely.
_MOST_BYTES = 64 << 20
_AT_ONCE = 1 << 16
_MOST_LINKS = 40  # as Linux's, path_resolution(7)
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading. It never waits for a FIFO's writer.

    OSError for a FIFO, a device, a socket, a folder, and for another user's link to a file that is not his, unless it is a third
    user's and all may read it.
    """
    return os.fdopen(_open(path)[0], "rb")


def _open(path: Path | str) -> tuple[int, int]:
    """A file descriptor, and the file's size in bytes."""
    handle, makers = _follow(os.fspath(path))
    seen = os.fstat(handle)
    if not stat.S_ISREG(seen.st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    strangers = makers - {0, os.geteuid(), seen.st_uid}
    # A file of a third user that all may read is no secret of the reader: a project's configuration may be such a link.
    if strangers and (seen.st_uid == os.geteuid() or not seen.st_mode & stat.S_IROTH):
        os.close(handle)
        raise OSError(errno.EPERM, "a link of another user to a file that is not his", str(path))
    return handle, seen.st_size


def _follow(path: str) -> tuple[int, set[int]]:
    """A file descriptor, and who made the links that led to it from the last part of the path.

    Each link is read by a descriptor of its own: nobody can exchange it after its owner is known.
    """
    makers = set[int]()
    for _ in range(_MOST_LINKS):
        try:
            return os.open(path, _FLAGS | os.O_NOFOLLOW), makers
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        link = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            makers.add(os.fstat(link).st_uid)
            path = os.path.join(os.path.dirname(path), os.readlink("", dir_fd=link))  # noqa: PTH118, PTH120
        except FileNotFoundError:
            continue  # no link any more: opened again
        finally:
            os.close(link)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def read_bytes(path: Path | str, *, most: int = _MOST_BYTES) -> bytes:
    """All bytes of a regular file; OSError if it has more than `most` bytes."""
    handle, size = _open(path)
    try:
        content = _read(handle, most + 1, size)
    finally:
        os.close(handle)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB", str(path))
    return content


def read_text(path: Path, *, most: int = _MOST_BYTES) -> str:
    """All text of a regular UTF-8 file; OSError if it is not UTF-8."""
    try:
        return read_bytes(path, most=most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OSError(errno.EILSEQ, f"not UTF-8 text: byte {error.start}", str(path)) from None


def write_text(path: Path, text: str) -> None:
    """Write a file that the user asked for. OSError names the file, also for a full disk; a new, incomplete file is removed."""
    new = not path.exists()
    try:
        # A link of a clone that leads to no file yet is not followed: it may lead out of the clone.
        with path.open("x" if new else "w", encoding="utf-8") as sink:
            sink.write(text)
    except OSError as error:
        if new and not isinstance(error, FileExistsError):
            with contextlib.suppress(OSError):
                path.unlink()
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def head(path: Path | str, most: int) -> bytes:
    """The first `most` bytes of a regular file."""
    handle, size = _open(path)
    try:
        return _read(handle, most, size)
    finally:
        os.close(handle)


def tail(path: Path | str, most: int) -> bytes:
    """The last `most` bytes of a regular file."""
    handle, size = _open(path)
    try:
        if size > most:
            os.lseek(handle, size - most, os.SEEK_SET)
        return _read(handle, most, min(size, most))
    finally:
        os.close(handle)


def _read(handle: int, most: int, size: int) -> bytes:
    """The next bytes, at most `most`. size: of the file a moment ago, for one read; 0 for a file without a size (/proc).

    Python's own readers allocate `most` bytes first. For 10,000 small files that takes longer than reading them.
    """
    parts, left = list[bytes](), min(most, size or most)
    while left > 0 and (part := os.read(handle, min(left, size or _AT_ONCE))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def copy_sharing_blocks(source: str | Path, target: str | Path) -> str | Path:
    """`shutil.copy2`, by reflink if the file system supports it: then a checkpoint is copied at once, and stays unchanged."""
    try:
        with Path(source).open("rb") as reader, Path(target).open("wb") as writer:
            left = os.fstat(reader.fileno()).st_size
            while left > 0 and (copied := os.copy_file_range(reader.fileno(), writer.fileno(), left)):
                left -= copied
        shutil.copystat(source, target)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY}:
            raise
        shutil.copy2(source, target)
    return target
