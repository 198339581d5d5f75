"""Lists the images of a store, the locks that name them, and the images that may be removed."""

from __future__ import annotations

import contextlib
import re
import stat
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from kit import data_folders
from kit.errors import ConfigError, ImageError
from kit.files import own_folders
from kit.images import block_list, image_lock, store, store_notes

_FILE = re.compile(r"^([0-9a-f]{64})\.sqsh$")


@dataclass(frozen=True, kw_only=True)
class ImageRow:
    """One image. name: from a lock, or from its build. locks: the lock files that name it. made: seconds since the epoch.

    present: the file is in the store, with the size that the lock says.
    """

    name: str
    sha256: str
    size: int
    made: float
    present: bool
    locks: tuple[Path, ...]


def rows(store_dir: Path, project: Path) -> list[ImageRow]:
    """All images of the store and all images that a known lock names, sorted by name. An image with two names has two rows."""
    places: dict[tuple[str, str], dict[Path, image_lock.Head]] = {}
    for path, known in known_locks(store_dir, project).items():
        places.setdefault((known.name, known.sha256), {})[path] = known
    found = [_locked_row(store_dir, locks) for locks in places.values()]
    named = {row.sha256 for row in found}
    found += [_loose_row(store_dir, path, sha256) for sha256, path in _files(store_dir).items() if sha256 not in named]
    return sorted(found, key=lambda row: (row.name, row.sha256))


def known_locks(store_dir: Path, project: Path) -> dict[Path, image_lock.Head]:
    """The locks of the project, of the user and of the kit, and those of other projects that registered with the store.

    A damaged lock of another project is left out here. While there is one, `prune` removes nothing.
    """
    found = {}
    for path in _lock_files(store_notes.read_notes(store_dir), project):
        with contextlib.suppress(ConfigError):
            found[path] = image_lock.head(path)
    return found


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """gone: images that were removed, with their sizes in bytes. refused: images that this user may not remove, each with the
    reason. strange: files in `refs/` that are no notes, each with the reason.
    """

    gone: tuple[tuple[Path, int], ...]
    refused: tuple[tuple[Path, str], ...] = ()
    strange: tuple[tuple[Path, str], ...] = ()


def prune(store_dir: Path, project: Path, *, in_use: Collection[str], older_than_s: float, dry_run: bool) -> Pruned:
    """Remove images that no lock names, no run uses, and that are old enough.

    in_use: digests (64 hex digits) of queued and running jobs. dry_run: only list them. ImageError when a lock cannot be read,
    because the image that it names is then unknown.
    """
    notes = store_notes.read_notes(store_dir)
    kept = _locked(notes, project) | set(in_use)
    gone, refused = list[tuple[Path, int]](), list[tuple[Path, str]]()
    for sha256, path in _files(store_dir).items():
        try:
            status = path.lstat()
            if sha256 in kept or time.time() - status.st_mtime < older_than_s:
                continue
            if not dry_run:
                _remove(path)
            gone.append((path, status.st_size))
        except FileNotFoundError:
            continue  # another prune was faster
        except OSError as error:
            # In a folder with the sticky bit, only an image's owner and root remove it.
            refused.append((path, f"belongs to {own_folders.user(status.st_uid)}: {error.strerror}"))
    return Pruned(gone=tuple(gone), refused=tuple(refused), strange=notes.strange)


def _locked(notes: store_notes.Notes, project: Path) -> set[str]:
    """The digests that locks name. ImageError for a lock that cannot be read."""
    if notes.unseen:
        raise ImageError(
            f"{notes.unseen[0]}: you may not read it, so nothing was removed: it may name an image of the store",
            hint="let root run this command",
        )
    digests = set()
    for path in _lock_files(notes, project):
        try:
            digests.add(image_lock.head(path).sha256)
        except ConfigError:
            raise ImageError(
                f"{path}: this lock cannot be read, so nothing was removed: it may name an image of the store",
                hint="repair or remove the lock first",
            ) from None
    return digests


def _remove(path: Path) -> None:
    path.unlink()
    for suffix in (".json", block_list.SUFFIX):
        path.with_suffix(suffix).unlink(missing_ok=True)


def _lock_files(notes: store_notes.Notes, project: Path) -> list[Path]:
    own = [
        path
        for root in data_folders.roots(project)
        for path in sorted((root / "containers").glob(f"*/{image_lock.FILE}"))
    ]
    return list(dict.fromkeys([*own, *notes.locks]))


def _files(store_dir: Path) -> dict[str, Path]:
    folder = store_dir / "sha256"
    if not folder.is_dir():
        return {}
    return {found[1]: path for path in sorted(folder.iterdir()) if (found := _FILE.match(path.name))}


def _locked_row(store_dir: Path, locks: Mapping[Path, image_lock.Head]) -> ImageRow:
    known = next(iter(locks.values()))
    built_at, size = _made(store.path(store_dir, known.sha256))
    present = size == known.size
    return ImageRow(
        name=known.name,
        sha256=known.sha256,
        size=known.size,
        made=built_at if present else 0.0,
        present=present,
        locks=tuple(locks),
    )


def _loose_row(store_dir: Path, path: Path, sha256: str) -> ImageRow:
    name = str(store.facts(store_dir, sha256).get("name", "?"))
    made, size = _made(path)
    return ImageRow(name=name, sha256=sha256, size=max(size, 0), made=made, present=size >= 0, locks=())


def _made(path: Path) -> tuple[float, int]:
    """When an image was made, in seconds since the epoch, and its size in bytes; -1 if there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return 0.0, -1
    return (found.st_mtime, found.st_size) if stat.S_ISREG(found.st_mode) else (0.0, -1)
