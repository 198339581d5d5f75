"""Child process: mount an image's layers where nobody else sees them, then become mksquashfs. Needs root.

    python -m kit.images.overlay REQUEST.json

The kit's own files are one more layer on top of the image's, so nothing is copied and nothing of the image is touched. The
mounts live in a mount namespace of this process: whatever ends it, kill -9 included, ends them; and the kernel ends the
process when its parent dies. The request is a `Request` as JSON; its folder is private and takes the working files.
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

# mount(2) takes one page of options.
_PAGE = 4096

# Exit code for "nothing may be mounted here", as root in a container often finds (sysexits.h, EX_UNAVAILABLE).
CANNOT_MOUNT = 69


class CannotMountError(Exception):
    """The kernel, or this container, allows no mount namespace or no overlay mount."""


class Place(TypedDict):
    """An `enroot_layout.Addition`: content is the name of a file in the request's folder."""

    path: str
    mode: int
    content: str | None
    target: str | None


class Request(TypedDict):
    """layers: topmost first. argv: mksquashfs without its source."""

    layers: list[str]
    additions: list[Place]
    argv: list[str]


def main(request_file: str) -> NoReturn:
    """Mount, leave the pid for the parent to watch, and exec."""
    folder = Path(request_file).parent
    request: Request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    _die_with_parent()
    os.chdir(_links(folder / "layers", request["layers"], folder / "top"))
    _check(_libc().unshare(_CLONE_NEWNS), "unshare")
    _mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE, None)
    numbers = [str(number) for number in range(1, len(request["layers"]) + 1)]
    image = folder / "image" if len(numbers) > 1 else Path("1")
    if len(numbers) > 1:
        _overlay(numbers, image)
    _fill(folder / "top", image, request["additions"], folder)
    _overlay(["0", *numbers], folder / "tree")
    os.chdir(folder)
    Path("pid").write_text(str(os.getpid()), encoding="ascii")
    program, *options = request["argv"]
    os.execv(program, [program, "tree", *options])


def _links(place: Path, layers: list[str], top: Path) -> Path:
    """Short names for the layers, so that many of them fit into the options of one mount."""
    place.mkdir()
    top.mkdir()
    for number, layer in enumerate([str(top), *layers]):
        (place / str(number)).symlink_to(layer)
    return place


def _fill(top: Path, image: Path, additions: list[Place], folder: Path) -> None:
    """The kit's own layer: files and links as they are; folders as the image has them, if it does."""
    top.chmod(0o755)
    made = [top]
    for addition in additions:
        place = top / addition["path"]
        if addition["content"] is not None:
            place.write_bytes((folder / addition["content"]).read_bytes())
            place.chmod(addition["mode"])
        elif addition["target"] is not None:
            place.symlink_to(addition["target"])
        else:
            mode = _mode_of_folder(image, addition)
            if mode is None:
                continue
            place.mkdir()
            place.chmod(mode)
        made.append(place)
    for place in made:
        os.utime(place, (0, 0), follow_symlinks=False)


def _mode_of_folder(image: Path, addition: Place) -> int | None:
    """The mode of a folder in the image, or the one that it shall get; None where a link or a file is in its way."""
    place = image
    for part in addition["path"].split("/"):
        place /= part
        try:
            mode = place.lstat().st_mode
        except FileNotFoundError:
            return addition["mode"]
        if not stat.S_ISDIR(mode):
            return None
    return stat.S_IMODE(mode) | stat.S_IRWXU


def _overlay(layers: list[str], target: Path) -> None:
    target.mkdir()
    _mount("overlay", target, "overlay", _MS_RDONLY, f"lowerdir={':'.join(layers)}")


def _mount(source: str, target: Path, kind: str | None, flags: int, options: str | None) -> None:
    if options is not None and len(options) >= _PAGE:
        raise CannotMountError(f"{target}: more layers than one overlay mount takes")
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    _check(_libc().mount(*words, flags, None if options is None else options.encode()), f"mount {target}")


def _die_with_parent() -> None:
    parent = os.getppid()
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the kit ended before its child started")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise CannotMountError(f"{what}: {os.strerror(error)}")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except CannotMountError as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_MOUNT)
    except OSError as error:
        sys.exit(str(error))
