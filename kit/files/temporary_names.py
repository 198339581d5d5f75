"""Temporary names next to their final path, so that publishing is one rename. Leftovers of dead processes are found and removed.

A name is `.<name>~<owner>~<8 hex digits>`. kit.files.owning_process defines the form of the owner.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from kit.files.owning_process import Owner


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A temporary name for the file or folder that will become `path`, on the same file system. It is removed at the end of the
    block.

    Leftovers of dead processes for the same `path` are removed first. The parent folder must exist.
    """
    sweep(path.parent, path.name)
    place = path.with_name(f".{path.name}~{Owner.current()}~{secrets.token_hex(4)}")
    try:
        yield place
    finally:
        remove(place)


def sweep(folder: Path, name: str = "") -> None:
    """Remove temporary files and folders of dead processes: those for `name`, or all."""
    with contextlib.suppress(OSError):
        for place in folder.iterdir():
            owner = _owner(place.name)
            mine = not name or place.name.startswith(f".{name}~")
            if mine and owner is not None and owner.alive() is False:
                remove(place)


def is_temporary(name: str) -> bool:
    """Whether a file's name, without its folder, is a temporary name."""
    return _owner(name) is not None


def _owner(name: str) -> Owner | None:
    words = name.rsplit("~", 6)
    return Owner.parse("~".join(words[1:-1])) if name.startswith(".") and len(words) == 7 else None


def remove(path: Path) -> None:
    """Remove a file or folder, as far as this user may. Folders that their owner may not enter or write are removed too."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            open_all(path)
            shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def open_all(folder: Path) -> None:
    """Allow the owner to read every file below a folder, and to read, enter and write every folder."""
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
