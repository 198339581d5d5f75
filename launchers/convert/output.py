"""Writes the result under a temporary name next to its target, syncs it, and renames it."""

import fcntl
import os
import shutil
from pathlib import Path
from typing import Self

from lib.durable import sync
from lib.faults import Refused


class Output:
    """Makes `target`, or leaves it unchanged. Removes leftovers of a killed conversion to the same target.

    .NAME.converting/ next to the target holds the lock of the conversion, `new`, and `old` for the moment of a replacement.
    """

    def __init__(self, target: Path, *, force: bool) -> None:
        self.target, self._force = target, force
        self._work = target.with_name(f".{target.name}.converting")
        self.new, self._old = self._work / "new", self._work / "old"

    def __enter__(self) -> Self:
        self._work.mkdir(exist_ok=True)
        self._lock = (self._work / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise Refused(f"{self.target}: another conversion is writing it") from None
        if self._old.exists() and not self.target.exists():  # killed between the two renames
            self._old.rename(self.target)
        _remove(self._old)
        _remove(self.new)
        try:
            self._check()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        self._lock.close()

    def need(self, size: int) -> None:
        """Refused where the disk has no room for `size` bytes."""
        free = shutil.disk_usage(self._work).free
        if size > free:
            raise Refused(f"{self.target}: {size / 1e9:.2f} GB are needed, and {free / 1e9:.2f} GB are free")

    def commit(self) -> None:
        """Rename `new` to the target. An old folder is missing for the moment between two renames; an old file never is."""
        for path in (*self.new.rglob("*"), self.new):
            sync(path)
        if self.target.is_dir():
            self.target.rename(self._old)
        self.new.rename(self.target)
        sync(self.target.parent)

    def _check(self) -> None:
        if not os.path.lexists(self.target):
            return
        if not self._force:
            raise Refused(
                f"{self.target}: the target exists already", hint="--force replaces it when the new one is complete"
            )
        # Not any folder: --force must only replace the result of a conversion.
        if self.target.is_dir() and not (self.target / "config.json").is_file():
            raise Refused(f"{self.target}: it is a folder without config.json, which --force does not replace")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
