"""Stores the states of ranks in this node's memory: one file in /dev/shm for each part and step, complete once it has its name.

    PART@STEP       complete: a header with the payload's size and sha256, then the payload
    PART@writing    one that is being written; a killed process leaves it, and the next write of the part takes its memory

A part is `rank-3`, of one rank, or `shared`, which is equal on all ranks. The two newest steps of a part stay: a process that dies
while it writes leaves the older one complete. A write reuses the memory of the step that it replaces.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
from collections.abc import Collection

# Size of the payload, and its sha256: zeros until it is known. The payload begins at the next page.
_HEADER = struct.Struct("<8sQ32s")
_MAGIC, _PAYLOAD_AT = b"KITMEM1\0", mmap.PAGESIZE
_UNKNOWN = bytes(32)
_WRITING = "writing"
# Complete steps of a part that stay while the next one is written.
_STAY = 1
BLOCK = 4 << 20


class DamagedError(Exception):
    """The bytes of a part are not those that were written. The text says which."""


def folder() -> str | None:
    """This node's folder of this job, which step kit-memory makes and removes; None outside of a job of Slurm."""
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        return None
    return f"/dev/shm/kit-memory-{os.geteuid()}-{job}.{os.environ.get('SLURM_RESTART_COUNT') or 0}-{node_name()}"


def node_name() -> str:
    """The name of this node. Virtual nodes of one machine share its host name."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


class Draft:
    """A part that is being written. `payload` is its memory; `commit` makes it complete."""

    def __init__(self, files: MemoryFiles, part: str, memory: mmap.mmap, size: int) -> None:
        self._files, self._part = files, part
        self._memory = memory
        self.payload = memoryview(memory)[_PAYLOAD_AT : _PAYLOAD_AT + size]

    def commit(self, step: int, digest: bytes | None = None) -> None:
        """Give the part its name. digest: sha256 of the payload, where it is known."""
        _HEADER.pack_into(self._memory, 0, _MAGIC, len(self.payload), digest or _UNKNOWN)
        self._files.name_draft(self._part, step)


class MemoryFiles:
    """The parts in one folder. A process writes only its own rank's part, `shared`, and the copies that it receives."""

    def __init__(self, path: str) -> None:
        self._path = path
        # By part: the maps of the files that this process has written, by inode. A map is expensive to make.
        self._maps: dict[str, dict[int, mmap.mmap]] = {}

    def foreign(self) -> str | None:
        """Why another user may have put files here, with the owner of the folder; None where nobody can, or there is no folder.

        Everybody may make a folder in /dev/shm, and what is read from this one is unpickled.
        """
        try:
            folder_stat = os.lstat(self._path)
        except OSError:
            return None
        if folder_stat.st_uid != os.geteuid():
            return f"{self._path} belongs to uid {folder_stat.st_uid}, not to uid {os.geteuid()}"
        if not stat.S_ISDIR(folder_stat.st_mode):
            return f"{self._path} of uid {folder_stat.st_uid} is not a folder"
        if folder_stat.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"{self._path} of uid {folder_stat.st_uid} has mode {stat.S_IMODE(folder_stat.st_mode):04o}: others may write it"
        return None

    def steps(self) -> dict[str, list[int]]:
        """The complete steps of each part, oldest first."""
        found: dict[str, list[int]] = {}
        for part, step in self._names():
            if step != _WRITING:
                found.setdefault(part, []).append(int(step))
        return {part: sorted(steps) for part, steps in found.items()}

    def write(self, part: str, size: int) -> Draft:
        """Begin to write a part of `size` bytes: a Draft. OSError if the node has no memory for it, or no folder of this user."""
        self._refuse_foreign()
        draft = self._file(part, _WRITING)
        old = self.steps().get(part, [])
        if not os.path.exists(draft) and len(old) > _STAY:  # noqa: PTH110 - pathlib is imported by no line of this file
            os.rename(self._file(part, old[0]), draft)  # noqa: PTH104
        for step in old[:-_STAY]:
            _remove(self._file(part, step))
        return Draft(self, part, self._map(part, _PAYLOAD_AT + size), size)

    def name_draft(self, part: str, step: int) -> None:
        """The draft of a part becomes the file of a step."""
        os.rename(self._file(part, _WRITING), self._file(part, step))  # noqa: PTH104

    def read_part(self, part: str, step: int) -> memoryview:
        """The payload of a complete part, read-only. OSError or DamagedError where it cannot be used."""
        memory, size, _ = self._opened(part, step)
        return memoryview(memory)[_PAYLOAD_AT : _PAYLOAD_AT + size]

    def digest(self, part: str, step: int) -> bytes | None:
        """The sha256 of a complete part, or None if its writer ended before it was known."""
        digest = self._opened(part, step)[2]
        return None if digest == _UNKNOWN else digest

    def check(self, part: str, step: int) -> None:
        """Compare a part with its digest, if that is known. DamagedError where they differ."""
        digest = self.digest(part, step)
        if digest is not None and sha256(self.read_part(part, step)) != digest:
            raise DamagedError(f"{part} of step {step} on {node_name()} differs from what was written")

    def note_digest(self, part: str, step: int, digest: bytes) -> None:
        """Keep the sha256 of a complete part with it."""
        with os.fdopen(self._open_own(part, step, os.O_RDWR), "r+b") as file:
            file.seek(_HEADER.size - len(digest))
            file.write(digest)

    def remove(self, part: str, step: int) -> None:
        """Remove one step of a part."""
        if self.foreign() is None:
            _remove(self._file(part, step))

    def forget(self, *, after: int, keep: Collection[str]) -> None:
        """Remove all steps later than `after`, and all parts that are not in `keep`, which belong to ranks of other nodes now."""
        for part, step in self._names():
            if part not in keep or (step != _WRITING and int(step) > after):
                _remove(self._file(part, step))
        self._maps = {part: maps for part, maps in self._maps.items() if part in keep}

    def free(self) -> int:
        """Bytes that the folder's file system and the node's memory can still take. OSError without a folder of this user."""
        self._refuse_foreign()
        have = os.statvfs(self._path)
        return min(have.f_bavail * have.f_frsize, _available())

    def held(self) -> int:
        """Bytes of the folder's files."""
        return sum(os.lstat(self._file(*name)).st_size for name in self._names())

    def _names(self) -> list[tuple[str, str]]:
        try:
            self._refuse_foreign()
            names = os.listdir(self._path)  # noqa: PTH208
        except OSError:
            return []
        split = [name.rpartition("@")[::2] for name in names]
        return [(part, step) for part, step in split if part and (step == _WRITING or step.isdigit())]

    def _file(self, part: str, step: int | str) -> str:
        return f"{self._path}/{part}@{step}"

    def _refuse_foreign(self) -> None:
        problem = self.foreign()
        if problem:
            raise PermissionError(problem)

    def _open_own(self, part: str, step: int | str, flags: int) -> int:
        """Open a part. OSError where it, or the folder, is not this user's, or it is a link, a pipe or a device."""
        self._refuse_foreign()
        path = self._file(part, step)
        # Without O_NONBLOCK, a pipe would be waited for.
        handle = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        file_stat = os.fstat(handle)
        if stat.S_ISREG(file_stat.st_mode) and file_stat.st_uid == os.geteuid():
            return handle
        os.close(handle)
        raise PermissionError(f"{path} of uid {file_stat.st_uid} is not a regular file of uid {os.geteuid()}")

    def _map(self, part: str, size: int) -> mmap.mmap:
        """The draft's memory, allocated now: a page that is missing later would end the process with SIGBUS."""
        handle = self._open_own(part, _WRITING, os.O_RDWR | os.O_CREAT)
        try:
            file_stat = os.fstat(handle)
            if file_stat.st_size != size:
                os.ftruncate(handle, size)
                os.posix_fallocate(handle, 0, size)
            else:
                known = self._maps.get(part, {}).get(file_stat.st_ino)
                if known is not None:
                    return known
            made = mmap.mmap(handle, size)
            maps = self._maps.setdefault(part, {})
            maps[file_stat.st_ino] = made
            for inode in [*maps][: -(_STAY + 1)]:
                del maps[inode]
            return made
        except OSError:
            _remove(self._file(part, _WRITING))
            raise
        finally:
            os.close(handle)

    def _opened(self, part: str, step: int) -> tuple[mmap.mmap, int, bytes]:
        with os.fdopen(self._open_own(part, step, os.O_RDONLY), "rb") as file:
            length = os.fstat(file.fileno()).st_size
            if length < _PAYLOAD_AT:
                raise DamagedError(f"{part} of step {step} on {node_name()} has {length} bytes")
            memory = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ)
        magic, size, digest = _HEADER.unpack_from(memory)
        if magic != _MAGIC or length < _PAYLOAD_AT + size:
            raise DamagedError(
                f"{part} of step {step} on {node_name()} is cut: {length} bytes, {_PAYLOAD_AT + size} expected"
            )
        return memory, size, digest


def sha256(payload: memoryview) -> bytes:
    """The digest of a payload. Other threads run meanwhile."""
    found = hashlib.sha256()
    for start in range(0, len(payload), BLOCK):
        found.update(payload[start : start + BLOCK])
    return found.digest()


def _remove(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108
    except OSError:
        return


def _available() -> int:
    """MemAvailable of proc(5), in bytes."""
    with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62
