"""Folders that belong to their maker alone, whatever the umask, a setgid bit or default ACLs of the folder above say.

mkdir(2) and mkdtemp(3) apply no umask in a folder with a default ACL: a new folder there takes the entries of all users that the
ACL names, and hands them on to what is made in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pwd
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from kit.files import untrusted_files

# FS_IOC_GETFLAGS on machines of 64 bits; FS_IMMUTABLE_FL and FS_VERITY_FL of linux/fs.h.
_GET_FLAGS, _UNCHANGEABLE = 0x80086601, 0x00000010 | 0x00100000
# Linux's names of a file's ACL and of the one that a folder hands on (acl(5), xattr(7)).
_ACLS = ("system.posix_acl_default", "system.posix_acl_access")


def take(folder: Path, mode: int) -> None:
    """Give a folder of this user these bits, and no ACL. What is made in it afterwards follows the umask.

    The group's s bit stays: the group may read what the folder's mode lets it read.
    """
    for name in _ACLS:
        # A file system without ACLs, or a folder without one.
        with contextlib.suppress(OSError):
            os.removexattr(folder, name, follow_symlinks=False)
    folder.chmod(mode | (folder.lstat().st_mode & stat.S_ISGID))


def problem(folder: Path) -> str:
    """Why another user could have put something into a folder: its owner, its bits, or that it is a link; empty for none."""
    seen = folder.lstat()
    if stat.S_ISLNK(seen.st_mode) or not stat.S_ISDIR(seen.st_mode):
        return f"{folder} is not a folder of its own but a link or a file"
    if seen.st_uid != os.geteuid():
        return f"{folder} belongs to {user(seen.st_uid)}, not to you"
    if seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{folder} has mode {stat.S_IMODE(seen.st_mode):o}: other users may have put files there"
    return ""


@contextlib.contextmanager
def entered(folder: Path) -> Iterator[Path]:
    """A folder that is no link, under a name that leads to this folder whatever others rename or replace during the block.

    What is removed and written below the name is so in the folder itself: another user's link could lead to one of this user.
    OSError for a link, and for what is no folder. The name is in /proc: nothing below it may be kept longer than the block.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def replaceable_by(folder: Path) -> str:
    """Who besides root and this user can rename what lies in a folder, and so put something else in its place; empty for nobody.

    In a folder with the sticky bit, only the owner of the folder and that of the file can.
    """
    if owner := stranger(folder):
        return owner
    seen = folder.stat()
    if seen.st_mode & stat.S_ISVTX:
        return ""
    if seen.st_mode & stat.S_IWOTH:
        return "everybody"
    return "its group" if seen.st_mode & stat.S_IWGRP and not _is_private(seen.st_gid) else ""


def stranger(path: Path) -> str:
    """The owner of a file or folder, if it is neither root nor this user; empty otherwise."""
    return user_if_stranger(path.stat().st_uid)


def is_unchangeable(path: Path) -> bool:
    """Whether not even a file's owner can change its bytes: it has fs-verity, or the immutable bit of root, ioctl_iflags(2)."""
    try:
        with untrusted_files.open_regular(path) as opened:
            (flags,) = struct.unpack("=I", fcntl.ioctl(opened, _GET_FLAGS, bytes(8))[:4])
    except OSError:
        return False
    return bool(flags & _UNCHANGEABLE)


def user_if_stranger(uid: int) -> str:
    """The name of a user who is neither root nor this user; empty otherwise."""
    return user(uid) if uid not in {0, os.geteuid()} else ""


def _is_private(gid: int) -> bool:
    """Whether a group is the one that some systems make for each user: it has the user's name, and no other member."""
    try:
        group, me = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return gid == me.pw_gid and group.gr_name == me.pw_name and not {*group.gr_mem} - {me.pw_name}


def user(uid: int) -> str:
    """`ada (1001)`, or the number alone."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)
