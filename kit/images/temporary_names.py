"""Temporary names beside what they become, so that publishing is one rename; those of dead processes are found and removed.

A name is `.<name>~<owner>~<8 hex digits>`, with the owner as `kit.owning_process` spells it.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from kit.owning_process import Owner


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A name for the file or folder that is to become `path`, on its file system; what has it at the end of the block is removed.

    What processes that are gone left for the same `path` is removed first. The parent must exist.
    """
    sweep(path.parent, path.name)
    place = path.with_name(f".{path.name}~{Owner.current()}~{secrets.token_hex(4)}")
    try:
        yield place
    finally:
        remove(place)


def sweep(folder: Path, name: str = "") -> None:
    """Remove the temporary files and folders of processes that are gone: those that were to become `name`, or any."""
    with contextlib.suppress(OSError):
        for place in folder.iterdir():
            owner = _owner(place.name)
            mine = not name or place.name.startswith(f".{name}~")
            if mine and owner is not None and owner.alive() is False:
                remove(place)


def is_temporary(name: str) -> bool:
    """Whether a file's name, without its folder, is of this kind."""
    return _owner(name) is not None


def _owner(name: str) -> Owner | None:
    words = name.rsplit("~", 6)
    return Owner.parse("~".join(words[1:-1])) if name.startswith(".") and len(words) == 7 else None


def remove(place: Path) -> None:
    """Remove a file or a folder, as far as this user may; folders that their owner may not enter or write are handled, too."""
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
        if place.exists():
            open_all(place)
            shutil.rmtree(place, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            place.unlink(missing_ok=True)


def open_all(folder: Path) -> None:
    """Let the owner read every file below a folder, and read, enter and write every folder."""
    with contextlib.suppress(OSError):
        _add_mode(folder, stat.S_IRWXU)
        for place in folder.iterdir():
            mode = place.lstat().st_mode
            if stat.S_ISDIR(mode):
                open_all(place)
            elif stat.S_ISREG(mode):
                _add_mode(place, stat.S_IRUSR)


def _add_mode(place: Path, bits: int) -> None:
    mode = stat.S_IMODE(place.lstat().st_mode)
    if mode & bits != bits:
        place.chmod(mode | bits)
