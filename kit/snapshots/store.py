"""Trees in a folder beside the runs, each once: they share their files, which are named by content.

    .snapshots-<uid>/
      objects/3f/3f2a…      a file's content; `3f2a….x` where it is a program. Read-only.
      trees/<hash>/files/   the tree, its files links to objects; <hash>/listing names all that is in it; <hash>/damaged: a run
                            found that it is not what its listing says, and the next submit of the same files mends it
      index/                what was read of each workspace, and when

Whatever is here has been whole since it got its name: files and trees are written under another one first. What a kill leaves goes
with the next change of the store.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from kit import untrusted_files
from kit.errors import RunError
from kit.snapshots import tree_listing
from kit.snapshots.scan import Scan, index_name, index_text
from kit.snapshots.tree_listing import ListedFile, Listing

FOLDER = ".snapshots"
_PARTIAL, _DAMAGED = ".partial-", "damaged"
# A submit that is under way on another machine may have linked to it already, and its run is not to be seen yet.
_YOUNG_S = 24 * 3600.0
_MODES = {"file": 0o444, "program": 0o555}


@dataclass(frozen=True)
class Store:
    """The snapshots of the runs in one folder. root: where they are, for others closed."""

    root: Path

    def tree(self, tree_hash: str) -> Path:
        """The folder of a tree: its `listing`, and its `files`."""
        return self.root / "trees" / tree_hash

    def files_of(self, tree_hash: str) -> Path:
        """The tree itself, as it was submitted."""
        return self.tree(tree_hash) / "files"

    def index(self, folder: Path) -> Path:
        """What was read of a workspace, for the next scan."""
        return self.root / "index" / index_name(folder)

    def holds(self, tree_hash: str) -> bool:
        """Whether the tree is here."""
        return (self.tree(tree_hash) / "listing").exists()

    def read(self, tree_hash: str) -> Listing:
        """A tree's listing; RunError when the tree is gone or its listing is another one's."""
        path = self.tree(tree_hash) / "listing"
        try:
            text = untrusted_files.read_bytes(path)
        except OSError:
            raise RunError(f"snapshot {tree_hash[:12]} is not in {self.root} any more") from None
        if hashlib.sha256(text).hexdigest() != tree_hash:
            self._mark(tree_hash)
            raise RunError(f"{path}: damaged: it is not the listing that its name says")
        return tree_listing.parse(text, name=str(path))

    def damaged(self, tree: Listing) -> list[str]:
        """The files of a tree that are not as they were put here; every file is read. The next `put` of the same mends them."""
        found = [entry.path for entry in tree.entries if not _is_sound(self.files_of(tree.hash) / entry.path, entry)]
        if found:
            self._mark(tree.hash)
        return found

    def _mark(self, tree_hash: str) -> None:
        with contextlib.suppress(OSError):
            (self.tree(tree_hash) / _DAMAGED).touch()

    def put(self, done: Scan) -> Path:
        """Keep a workspace; the folder of its tree. Nothing is copied that is here already.

        RunError when a file is not what it was when it was scanned, or the disk refuses.
        """

        def source(entry: ListedFile) -> Path:
            return done.folder / entry.path

        with self._changing():
            self._add(done.tree, source, sizes=done.sizes)
            if done.news:
                _write_whole(self.index(done.folder), index_text(done).encode())
        return self.tree(done.tree.hash)

    def put_folder(self, tree: Listing, folder: Path) -> Path:
        """The same for a folder that holds a tree's files."""
        return self.put_from(tree, lambda entry: folder / entry.path)

    def put_from(self, tree: Listing, source: Callable[[ListedFile], Path]) -> Path:
        """The same for files that are wherever `source` says."""
        with self._changing():
            self._add(tree, source)
        return self.tree(tree.hash)

    def prune(self, used: Collection[str], *, dry_run: bool = False) -> list[str]:
        """Remove the trees that are not `used`, but for those of the last day, and files that no tree has; the trees' hashes."""
        gone: list[str] = []
        if not self.root.is_dir():
            return gone
        with self._changing():
            for tree in sorted((self.root / "trees").iterdir()):
                if tree.name not in used and _age(tree) > _YOUNG_S:
                    gone.append(tree.name)
                    if not dry_run:
                        # A kill in the middle leaves no half tree under its name.
                        half = tree.with_name(f"{_PARTIAL}{os.getpid()}-{tree.name}")
                        tree.rename(half)
                        _remove(half)
            if not dry_run:
                self._prune_objects()
        return gone

    def _prune_objects(self) -> None:
        for folder in (self.root / "objects").iterdir():
            with os.scandir(folder) as found:
                for one in found:
                    seen = one.stat(follow_symlinks=False)
                    if seen.st_nlink == 1 and time.time() - seen.st_ctime > _YOUNG_S:
                        Path(one.path).unlink()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """One change at a time, on this machine at least; another machine's is harmless, since what it links to stays."""
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            for name in ("objects", "trees", "index"):
                (self.root / name).mkdir(exist_ok=True)
            lock = FileLock(self.root / "lock")
            with contextlib.ExitStack() as held:
                # Where the file system knows no locks, the renames are enough.
                with contextlib.suppress(NotImplementedError):
                    held.enter_context(lock)
                self._clean()
                yield
        except OSError as error:
            hint = "free some space, or set paths.runs of the cluster" if error.errno == errno.ENOSPC else ""
            raise RunError(f"{self.root}: the workspace cannot be kept: {error}", hint=hint) from None

    def _clean(self) -> None:
        """What killed processes left: younger ones may be another machine's."""
        for path in self.root.glob(f"*/{_PARTIAL}*"):
            if _age(path) > _YOUNG_S / 24:
                _remove(path)

    def _add(
        self, tree: Listing, source: Callable[[ListedFile], Path], *, sizes: Mapping[str, int] | None = None
    ) -> None:
        """sizes: path -> bytes, where they are known: see _linked."""
        final = self.tree(tree.hash)
        if self.holds(tree.hash):
            os.utime(final)  # in use: it is not pruned today
            if (final / _DAMAGED).exists():
                self._mend(tree, source)
            return
        _remove(final)  # without a listing it is what is left of one
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=final.parent))
        try:
            self._fill(partial / "files", tree, source, sizes or {})
            _write_whole(partial / "listing", tree.text)
            _flush(partial)
            with contextlib.suppress(FileExistsError):
                # Another machine may have been first, with the same bytes.
                _rename_new(partial, final)
        finally:
            _remove(partial)

    def _mend(self, tree: Listing, source: Callable[[ListedFile], Path]) -> None:
        """Replace what is not as the listing says, one rename each: who copies the tree meanwhile sees the old or the new."""
        final, partial = self.tree(tree.hash), Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self.root / "trees"))
        try:
            for entry in tree.entries:
                target, made = final / "files" / entry.path, partial / "made"
                if _is_sound(target, entry):
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                if entry.kind == "link":
                    made.symlink_to(entry.content)
                else:
                    kept = self._object(entry)
                    if not _is_sound(kept, entry):
                        kept.unlink(missing_ok=True)
                        self._keep(entry, source(entry), kept)
                    _link(kept, made)
                made.rename(target)
            _write_whole(final / "listing", tree.text)
            (final / _DAMAGED).unlink()
        finally:
            _remove(partial)

    def _fill(self, into: Path, tree: Listing, source: Callable[[ListedFile], Path], sizes: Mapping[str, int]) -> None:
        into.mkdir()
        for folder in sorted(tree.folders):
            (into / folder).mkdir(exist_ok=True)
        for entry in tree.entries:
            target = into / entry.path
            if entry.kind == "link":
                target.symlink_to(entry.content)
                continue
            kept = self._object(entry)
            if not _linked(kept, target, sizes.get(entry.path)):
                self._keep(entry, source(entry), kept)
                _link(kept, target)

    def _object(self, entry: ListedFile) -> Path:
        name = entry.content + (".x" if entry.kind == "program" else "")
        return self.root / "objects" / entry.content[:2] / name

    def _keep(self, entry: ListedFile, source: Path, kept: Path) -> None:
        """Copy a file into the store under the digest that it was scanned with."""
        kept.parent.mkdir(exist_ok=True)
        partial = self.root / "objects" / f"{_PARTIAL}{os.getpid()}-{entry.content}"
        try:
            with untrusted_files.open_regular(source) as reader:
                seen = os.fstat(reader.fileno())
                content = reader.read()
            if hashlib.sha256(content).hexdigest() != entry.content:
                raise RunError(f"{source} was changed while the job was submitted", hint="submit again")
            partial.write_bytes(content)
            # Python compares a program's time with that of its compiled form.
            os.utime(partial, ns=(seen.st_mtime_ns, seen.st_mtime_ns))
            partial.chmod(_MODES[entry.kind])
            partial.rename(kept)
        except FileNotFoundError:
            if source.exists():
                raise
            raise RunError(f"{source} was removed while the job was submitted", hint="submit again") from None
        finally:
            partial.unlink(missing_ok=True)


def _is_sound(path: Path, entry: ListedFile) -> bool:
    try:
        if entry.kind == "link":
            return str(path.readlink()) == entry.content
        with untrusted_files.open_regular(path) as source:
            return hashlib.sha256(source.read()).hexdigest() == entry.content
    except OSError:
        return False


def _link(kept: Path, target: Path) -> None:
    """Make a hard link, or a copy where the file system allows no link, or no further one to this file."""
    try:
        os.link(kept, target)
    except OSError as error:
        if error.errno not in {errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV}:
            raise
        shutil.copy2(kept, target)


def _linked(kept: Path, target: Path, size: int | None) -> bool:
    """Link an object that is there. One that is not of its size is removed: a full disk or a power cut left it short."""
    try:
        _link(kept, target)
    except FileNotFoundError:
        return False
    if size is None or target.lstat().st_size == size:
        return True
    target.unlink()
    kept.unlink(missing_ok=True)
    return False


def _rename_new(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            raise FileExistsError(target) from None
        raise


def _write_whole(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=_PARTIAL, dir=path.parent)
    with os.fdopen(handle, "wb") as sink:
        sink.write(content)
    Path(name).rename(path)


def _flush(folder: Path) -> None:
    """The listing is on the disk before the tree has its name. Files are not, one by one: each run checks them against it."""
    for path in (folder / "listing", folder):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _age(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
