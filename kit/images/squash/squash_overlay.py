"""Child process: mount an image's layers in a private namespace, then become mksquashfs. Needs root.

    python -m kit.images.squash.squash_overlay REQUEST.json

The kit's own files are one more layer above the image's layers, so nothing is copied and the image does not change. The mounts
exist only in this process's mount namespace and end with the process, even after kill -9. The kernel ends the process when its
parent dies. The request is a `OverlayRequest` as JSON. Its folder is private and holds the working files.
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

from kit.images.sources import folder_tree
from kit.images.sources.tree_edits import FOLDER_MODE, Addition, Edit, settled

# <sched.h>, <sys/mount.h>, <sys/prctl.h>
_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_REC, _MS_PRIVATE = 1, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1

# mount(2) accepts one page of options.
_PAGE = 4096

# CANNOT_MOUNT: this process may not mount; root in a container often may not (sysexits.h, EX_UNAVAILABLE). UNLIKE: mksquashfs would
# write the tree differently from a stream (EX_SOFTWARE).
CANNOT_MOUNT, UNLIKE = 69, 70


class CannotMountError(Exception):
    """The kernel, or this container, allows no mount namespace or no overlay mount."""


class UnlikeError(Exception):
    """mksquashfs would read something in the tree differently from a folder than from a stream."""


class OverlayAddition(TypedDict):
    """A `tree_edits.Addition`. content: the name of a file in the request's folder."""

    path: str
    mode: int
    content: str | None
    target: str | None
    follows: bool


class OverlayRequest(TypedDict):
    """layers: topmost first. dropped: patterns of paths to leave out. argv: mksquashfs without its source."""

    layers: list[str]
    additions: list[OverlayAddition]
    dropped: list[str]
    keep_times: bool
    argv: list[str]


def main(request_file: str) -> NoReturn:
    """Mount the layers, write the pid for the parent to watch, and exec mksquashfs."""
    folder = Path(request_file).parent
    request: OverlayRequest = json.loads(Path(request_file).read_text(encoding="utf-8"))
    _die_with_parent()
    _check(_libc().unshare(_CLONE_NEWNS), "unshare")
    _mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE, None)
    # Use a tmpfs: the store's file system may support neither links nor modes.
    own = folder / "own"
    own.mkdir()
    _mount("tmpfs", own, "tmpfs", 0, "mode=755")
    os.chdir(_links(own / "layers", request["layers"], own / "top"))
    numbers = [str(number) for number in range(1, len(request["layers"]) + 1)]
    image = own / "image" if len(numbers) > 1 else Path("1")
    if len(numbers) > 1:
        _overlay(numbers, image)
    if why := folder_tree.unlike(image, keep_times=request["keep_times"]):
        raise UnlikeError(why)
    edit = settled(_edit(request, folder), folder_tree.looker(image))
    (folder / "excluded").write_text("".join(f"{pattern}\n" for pattern in edit.dropped), encoding="utf-8")
    _fill(own / "top", image, edit.additions)
    _overlay(["0", *numbers], own / "tree")
    os.chdir(folder)
    Path("pid").write_text(str(os.getpid()), encoding="ascii")
    program, *options = request["argv"]
    os.execv(program, [program, "own/tree", *options])


def _links(folder: Path, layers: list[str], top: Path) -> Path:
    """Short names for the layers, so that many of them fit into the options of one mount."""
    folder.mkdir()
    top.mkdir()
    for number, layer in enumerate([str(top), *layers]):
        (folder / str(number)).symlink_to(layer)
    return folder


def _edit(request: OverlayRequest, folder: Path) -> Edit:
    additions = tuple(
        Addition(
            path=addition["path"],
            mode=addition["mode"],
            content=None if addition["content"] is None else (folder / addition["content"]).read_bytes(),
            target=addition["target"],
            follows=addition["follows"],
        )
        for addition in request["additions"]
    )
    return Edit(additions=additions, dropped=tuple(request["dropped"]))


def _fill(top: Path, image: Path, additions: tuple[Addition, ...]) -> None:
    """Fill the kit's own layer. Its files hide the image's files at the same paths."""
    top.chmod(FOLDER_MODE)
    written = {top}
    for addition in additions:
        for parent in reversed(Path(addition.path).parents[:-1]):
            if top / parent not in written:
                _folder(top / parent, stat.S_IMODE((image / parent).lstat().st_mode) | stat.S_IRWXU)
                written.add(top / parent)
        path = top / addition.path
        if addition.content is not None:
            path.write_bytes(addition.content)
            path.chmod(addition.mode)
        elif addition.target is not None:
            path.symlink_to(addition.target)
        else:
            _folder(path, addition.mode)
        written.add(path)
    for path in written:
        os.utime(path, (0, 0), follow_symlinks=False)


def _folder(place: Path, mode: int) -> None:
    place.mkdir()
    place.chmod(mode)


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
    except UnlikeError as error:
        print(error, file=sys.stderr)
        sys.exit(UNLIKE)
    except OSError as error:
        sys.exit(str(error))
