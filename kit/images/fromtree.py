"""Child process: mount an image's layers where nobody else sees them, then become mksquashfs.

    python -m kit.images.fromtree REQUEST.json

The mount lives in a mount namespace of this process. Whatever ends the process, kill -9 included, ends the mount; and the
kernel ends the process when its parent dies. The request is a `Request` as JSON; its folder is the working folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import sys
from pathlib import Path
from typing import NoReturn, TypedDict

# <sched.h>, <sys/mount.h>, <sys/prctl.h>
_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_REC, _MS_PRIVATE = 1, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1

# overlayfs(5) options are one page in mount(2).
_PAGE = 4096


class Place(TypedDict):
    """One addition. line: mksquashfs's pseudo-file definition of it; only_if_missing: a folder that the image may have."""

    path: str
    line: str
    only_if_missing: bool


class Request(TypedDict):
    """layers: topmost first. argv: mksquashfs without its source and its pseudo files."""

    layers: list[str]
    additions: list[Place]
    argv: list[str]


def main(request_file: str) -> NoReturn:
    """Mount, write the pseudo-file list and the pid for the parent to watch, and exec."""
    folder = Path(request_file).parent
    request: Request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    _die_with_parent()
    os.chdir(folder)
    tree = Path(request["layers"][0]) if len(request["layers"]) == 1 else _mount(request["layers"], folder / "tree")
    lines = [
        place["line"] for place in request["additions"] if not place["only_if_missing"] or _missing(tree, place["path"])
    ]
    Path("pseudo").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogateescape")
    Path("pid").write_text(str(os.getpid()), encoding="ascii")
    program, *options = request["argv"]
    os.execv(program, [program, str(tree), *options, "-pf", "pseudo"])


def _missing(tree: Path, path: str) -> bool:
    """Whether nothing is at `path`, and its nearest existing parent is a real folder (a link would need resolving)."""
    place = tree
    for part in path.split("/"):
        place /= part
        try:
            mode = place.lstat().st_mode
        except FileNotFoundError:
            return True
        if not stat.S_ISDIR(mode):
            return False
    return False


def _mount(layers: list[str], target: Path) -> Path:
    """A read-only overlay of the layers. Links with short names keep the option string within its page."""
    libc = ctypes.CDLL(None, use_errno=True)
    links = target.with_name("layers")
    links.mkdir()
    target.mkdir()
    for number, layer in enumerate(layers):
        (links / str(number)).symlink_to(layer)
    os.chdir(links)
    options = ("lowerdir=" + ":".join(str(number) for number in range(len(layers)))).encode()
    if len(options) >= _PAGE:
        raise OSError(f"{len(layers)} layers are more than one overlay mount takes")
    _check(libc.unshare(_CLONE_NEWNS), "unshare")
    _check(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount --make-rprivate /")
    _check(libc.mount(b"overlay", os.fsencode(target), b"overlay", _MS_RDONLY, options), "mount overlay")
    os.chdir(target.parent)
    return target


def _die_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the kit ended before its child started")


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


if __name__ == "__main__":
    main(sys.argv[1])
