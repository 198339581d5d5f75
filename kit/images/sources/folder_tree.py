"""A folder of this machine as an image's tree: read by any user who may read it, without a mount."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from kit.errors import ImageError
from kit.images.sources import tree_edits
from kit.images.sources.tree_edits import Seen, walk_key
from kit.images.sources.tree_stream import ENCODING, ERRORS, Entry

_XATTR = "SCHILY.xattr."
_ACL = "system.posix_acl_"  # not kept, but reported by a warning
_TYPES = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}


def entries(folder: Path) -> Iterator[Entry]:
    """The tree below a folder, in walk order. ImageError for a file that this user may not read."""
    written: dict[tuple[int, int], str] = {}
    try:
        yield from _below(folder, "", written)
    except OSError as error:
        raise ImageError(
            f"{error.filename}: {error.strerror}", hint="import the folder as a user who may read it"
        ) from None


def looker(folder: Path) -> tree_edits.Look:
    """A function that returns what the folder has at a path (see `tree_edits.settled`)."""

    def look(path: str) -> Seen | None:
        try:
            mode = (folder / path).lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        if stat.S_ISLNK(mode):
            return Seen("link", str((folder / path).readlink()))
        return Seen("folder" if stat.S_ISDIR(mode) else "other")

    return look


def unlike(folder: Path, *, keep_times: bool) -> str:
    """The first thing in the tree that mksquashfs would write differently from the folder than from a tar stream; empty if none.

    These are sockets (no image can hold them), attributes that are not kept, and times that squashfs cannot store.
    """
    for path, status in _walk(str(folder)):
        inner = os.path.relpath(path, folder)
        if stat.S_ISSOCK(status.st_mode):
            return f"{inner} is a socket"
        if keep_times and not 0 <= int(status.st_mtime_ns // 10**9) <= tree_edits.LATEST:
            return f"the time of {inner} does not fit into 32 bits"
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            for name in os.listxattr(path, follow_symlinks=False):
                # mksquashfs writes no other attributes (it knows the name spaces of xattr(7)).
                if name.startswith(("user.", "trusted.", "security.")) and not _is_kept(name, status.st_mode):
                    return f"{inner} has the attribute {name}"
    return ""


def _is_kept(name: str, mode: int) -> bool:
    return name in tree_edits.KEPT_XATTRS and stat.S_ISREG(mode)


def _walk(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as found:
            for item in found:
                status = item.stat(follow_symlinks=False)
                yield item.path, status
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(item.path)


def _below(folder: Path, path: str, written: dict[tuple[int, int], str]) -> Iterator[Entry]:
    for source in sorted(folder.iterdir(), key=lambda found: walk_key(found.name)):
        inner = f"{path}/{source.name}" if path else source.name
        status = source.lstat()
        type_ = _TYPES.get(stat.S_IFMT(status.st_mode))
        if type_ is None:
            continue  # an image cannot hold a socket
        inode = (status.st_dev, status.st_ino)
        member = _member(source, inner, status, type_)
        if not member.isdir() and status.st_nlink > 1:
            if inode in written:
                member.type, member.linkname, member.size = tarfile.LNKTYPE, written[inode], 0
                yield member, None
                continue
            written[inode] = inner
        if member.isreg():
            with source.open("rb") as data:
                yield member, data
            continue
        yield member, None
        if member.isdir():
            yield from _below(source, inner, written)


def _member(path: Path, inner: str, status: os.stat_result, type_: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(inner)
    member.type, member.mode, member.mtime = type_, stat.S_IMODE(status.st_mode), int(status.st_mtime_ns // 10**9)
    if member.isreg():
        member.size = status.st_size
    if member.isreg() or member.isdir():
        member.pax_headers = {
            f"{_XATTR}{name}": os.getxattr(path, name, follow_symlinks=False).decode(ENCODING, ERRORS)
            for name in os.listxattr(path, follow_symlinks=False)
            if name in tree_edits.KEPT_XATTRS or name.startswith(_ACL)
        }
    elif member.issym():
        member.linkname = str(path.readlink())
    elif member.ischr() or member.isblk():
        member.devmajor, member.devminor = os.major(status.st_rdev), os.minor(status.st_rdev)
    return member
