"""Sends an image by its digest. Nothing is sent if the cluster has it; after an interrupted try, only the missing part is sent."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from kit import data_folders
from kit.errors import ImageError, LockError
from kit.files import untrusted_files
from kit.hosts.login_node import LoginNode
from kit.ssh.answers import Reply
from kit.ssh.connection import LineError
from kit.ssh.shell_program import Words

if TYPE_CHECKING:
    from kit.schema.image import ImageLock

_CHUNK = 1 << 20
# Pauses before repeating a request after a broken connection, in seconds.
_AGAIN_S = (1.0, 3.0, 9.0)


def wanted(locks: Sequence[ImageLock]) -> Words:
    """The arguments of `have.sh` for these images."""
    return Words(("printf", "%s\\n", *(lock.sha256 for lock in locks)) if locks else ("true",))


def require_all(cluster: LoginNode, locks: Sequence[ImageLock], answer: Reply | None = None) -> None:
    """Make sure that the cluster's store has all these images. answer: the answer of `have.sh`, if it was asked already."""
    if answer is None:
        if not locks:
            return
        constants = {**cluster.folders, "TREE": "", "ARGV": wanted(locks)}
        answer = cluster.connection.ask("have", constants)
    there = {line.split()[0]: line.split()[1:] for line in answer.text("images").splitlines()}
    for lock in locks:
        require(cluster, lock, there.get(lock.sha256, ["none"]))


def require(cluster: LoginNode, lock: ImageLock, answer: Sequence[str]) -> None:
    """Make sure that the cluster's store has the locked image. answer: the answer of `have.sh` about it.

    LockError if this machine does not have it either, or if the cluster's copy differs; ImageError if it cannot be sent.
    """
    if answer[0] == "there":
        _check(cluster, lock, answer[1:])
        return
    cluster.mirror.runs.mkdir(parents=True, exist_ok=True)
    with FileLock(cluster.mirror.root / f"image-{lock.sha256[:16]}.lock"):
        _send(cluster, lock, int(answer[1]) if answer[0] == "part" else 0)


def _check(cluster: LoginNode, lock: ImageLock, signature: Sequence[str]) -> None:
    """Check its digest. The cluster computes it once for each file; this machine remembers it by inode, size and time."""
    hint = f"remove it there: the next submit sends it again: ssh {cluster.connection.host}"
    if int(signature[1]) != lock.size:
        raise LockError(
            f"image {lock.name}: the cluster's file has {signature[1]} bytes, the lock says {lock.size}", hint=hint
        )
    note = _note(cluster, lock)
    if _read(note) == list(signature):
        return
    reply = cluster.connection.ask("digest", {**cluster.folders, "SHA": lock.sha256})
    found = reply.text("digest").lstrip("\\")[:64]
    if found != lock.sha256:
        problem = f"the cluster's file has the digest sha256:{found}, and the lock says sha256:{lock.sha256}"
        raise LockError(f"image {lock.name}: {problem}: it was damaged or replaced", hint=hint)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(list(signature)), encoding="utf-8")


def _send(cluster: LoginNode, lock: ImageLock, begun: int) -> None:
    """Send the image. After a broken connection, continue where it stopped; LineError if the connection does not return."""
    from kit.images import check_against_lock

    path = check_against_lock.check(lock, data_folders.image_store(), full=False)
    for pause in (*_AGAIN_S, None):
        try:
            _send_from(cluster, lock, path, begun if begun <= lock.size else 0)
        except LineError as error:
            if pause is None or not error.broken:
                raise
            print(
                f"kit: the line to {cluster.connection.host} broke; the transfer continues from there", file=sys.stderr
            )
            time.sleep(pause)
            there = _there(cluster, lock)
            if there[0] == "there":
                _check(cluster, lock, there[1:])
                return
            begun = int(there[1]) if there[0] == "part" else 0
        else:
            return


def _there(cluster: LoginNode, lock: ImageLock) -> list[str]:
    constants = {**cluster.folders, "TREE": "", "ARGV": wanted([lock])}
    return cluster.connection.ask("have", constants).text("images").split()[1:]


def _send_from(cluster: LoginNode, lock: ImageLock, path: Path, start: int) -> None:
    from kit.images import progress

    with progress.Terminal().counting(f"sending image {lock.name} to {cluster.name}", lock.size - start) as on_bytes:
        constants = {"SHA": lock.sha256, "SIZE": lock.size, "FROM": start, "BYTES": lock.size - start}
        reply = cluster.connection.ask("image", {**cluster.folders, **constants}, data=_chunks(path, start, on_bytes))
    if reply.codes["result"] != 0:
        said = "".join(f"\n  {line}" for line in reply.stderr.splitlines()[-5:])
        raise ImageError(
            f"image {lock.name}: cluster {cluster.name} did not store it:{said}",
            hint="submit again: the transfer continues; or set paths.store of the cluster to a folder with space",
        )
    note = _note(cluster, lock)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(reply.text("result").split()), encoding="utf-8")


def _chunks(path: Path, start: int, on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    with path.open("rb") as source:
        source.seek(start)
        while chunk := source.read(_CHUNK):
            yield chunk
            on_bytes(len(chunk))


def _note(cluster: LoginNode, lock: ImageLock) -> Path:
    return cluster.mirror.root / "images" / f"{lock.sha256}.json"


def _read(path: Path) -> list[str]:
    try:
        found = json.loads(untrusted_files.read_text(path))
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []
