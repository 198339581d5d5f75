"""Reads `refs/` of a store: one note for each image.lock that uses the store, with its path.

Every user of a shared store writes there, so a note may be anything.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from kit.files import untrusted_files

# PATH_MAX of Linux, in bytes.
_LONGEST_PATH = 4096


@dataclass(frozen=True, kw_only=True)
class Notes:
    """locks: the registered locks that exist. unseen: notes and locks that this user may not read: they may name any image.
    strange: files that are no notes, each with the reason.
    """

    locks: tuple[Path, ...] = ()
    unseen: tuple[Path, ...] = ()
    strange: tuple[tuple[Path, str], ...] = ()


def read_notes(store: Path) -> Notes:
    """What the notes of a store name."""
    locks, unseen, strange = list[Path](), list[Path](), list[tuple[Path, str]]()
    try:
        names = sorted(name for name in os.listdir(store / "refs") if re.match("[0-9a-f]", name))  # noqa: PTH208 - names
    except PermissionError:
        return Notes(unseen=(store / "refs",))
    except OSError:
        return Notes()
    for name in names:
        at = note = store / "refs" / name
        try:
            at = _path_in(note)
            if _is_file(at):
                locks.append(at)
        except PermissionError:
            unseen.append(at)
        except (OSError, ValueError) as error:
            strange.append((note, getattr(error, "strerror", None) or str(error)))
    return Notes(locks=tuple(locks), unseen=tuple(unseen), strange=tuple(strange))


def _path_in(note: Path) -> Path:
    """The path in a note. OSError or ValueError for a file that no kit wrote."""
    text = untrusted_files.read_text(note, most=_LONGEST_PATH).rstrip("\n")
    if not text.startswith("/") or "\0" in text:
        raise ValueError("it names no path")
    return Path(text)


def _is_file(place: Path) -> bool:
    """`Path.is_file`, but PermissionError for a file in a folder that this user may not enter."""
    try:
        return stat.S_ISREG(place.stat().st_mode)
    except PermissionError:
        raise
    except OSError:
        return False
