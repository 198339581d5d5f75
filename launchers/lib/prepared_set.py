"""The folder that lib/prepare.py makes: its description, and the rename that gives it its name once it is complete."""

import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

from . import shards, vocabulary
from .faults import Refused

FORMAT, VERSION = "kit-tokens", 1
FILE = "prepared.json"
PARTS = ("train", "validation")
# Documents that were not used unchanged: without text, unreadable (--skip-bad), or kept with a character replaced.
COUNTS = ("empty", "bad", "mended")


class StagedSet:
    """Makes the folder `target` in .NAME.preparing next to it. Refuses a second preparation of the same name at the same time."""

    def __init__(self, target: Path, described: dict[str, Any], *, force: bool, reuse: bool) -> None:
        self._target, self._described, self._force, self._reuse = target.absolute(), described, force, reuse
        self.work = self._target.with_name(f".{self._target.name}.preparing")
        self.is_done = False

    def __enter__(self) -> "StagedSet":
        if self._target.exists():
            if not (self._target / FILE).is_file():
                raise Refused(
                    f"{self._target}: it exists and holds no prepared data ({FILE} is not in it), so it is not replaced"
                )
            if self._reuse and described_at(self._target)["made_from"] == self._described:
                self.is_done = True
                return self
            if not (self._force or self._reuse):
                raise Refused(
                    f"{self._target}: the target exists already",
                    hint="--force replaces it when the new one is complete",
                )
        self._open_work()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.is_done:
            self._lock.close()

    def _open_work(self) -> None:
        """Open the work folder. Keeps what an earlier start made from the same description, and removes everything else."""
        self.work.mkdir(parents=True, exist_ok=True)
        path = self.work / "lock"
        self._lock = path.open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(self._lock.fileno())):
                raise BlockingIOError  # the process that held the lock has just renamed the folder
        except BlockingIOError:
            self._lock.close()
            raise Refused(f"{self._target}: another process prepares it") from None
        order = self.work / "order.json"
        try:
            same = json.loads(order.read_text(encoding="utf-8")) == self._described
        except (OSError, ValueError):
            same = False
        if not same:
            for old in self.work.iterdir():
                if old != path:
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
            with shards.replaced(order) as file:
                json.dump(self._described, file)

    def commit(self, made: dict[str, Any], tokenizer: vocabulary.Vocabulary) -> None:
        """Complete the folder and rename it to its target."""
        kept = {
            f"{one['name']}{suffix}" for part in PARTS for one in made["shards"][part] for suffix in (".bin", ".idx")
        }
        if tokenizer.files:
            (self.work / "tokenizer").mkdir(exist_ok=True)
            for name, content in tokenizer.files.items():
                (self.work / "tokenizer" / name).write_bytes(content)
        with shards.replaced(self.work / FILE) as file:
            json.dump(made, file, indent=2)
        for path in [path for path in self.work.iterdir() if path.name not in {*kept, FILE, "tokenizer"}]:
            path.unlink()
        old = self._target.with_name(f".{self._target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if self._target.exists():
            self._target.rename(old)
        self.work.rename(self._target)
        shutil.rmtree(old, ignore_errors=True)


def described_at(folder: Path) -> dict[str, Any]:
    """prepared.json of a folder. Refused where it is missing or of another version."""
    try:
        made = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"{folder}: no prepared data: {error}") from None
    if made.get("format") != FORMAT or made.get("version") != VERSION:
        raise Refused(f"{folder / FILE}: not of {FORMAT}, version {VERSION}", hint="prepare it again with this kit")
    return made


def said(made: dict[str, Any]) -> str:
    """A line with the counts of the documents, including those that were left out."""
    counted, tokens = made["documents"], made["tokens"]
    left = ", ".join(f"{counted[name]:,} {name}" for name in COUNTS if counted[name])
    return (
        f"{counted['read']:,} documents: {counted['train']:,} with {tokens['train']:,} tokens to train on, "
        f"{counted['validation']:,} with {tokens['validation']:,} held out" + (f"; {left}" if left else "")
    )
