"""Stores trees in a folder next to the runs, each once. Trees share their files, which are named by content.

    .snapshots-<uid>/
      objects/3f/3f2a…      a file's content; `3f2a….x` for a program. Read-only.
      trees/<hash>/files/   the tree; its files are hard links to objects. <hash>/listing names everything in it.
      trees/<hash>/damaged  a run found that the tree differs from its listing; the next submit of the same files repairs it
      index/                caches of scans, one for each workspace

Files and trees are written under a temporary name first, so whatever has its final name is complete. The next change of the store
removes leftovers of killed processes.
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

from kit.errors import RunError
from kit.files import atomic_write, own_folders, untrusted_files
from kit.snapshots import tree_listing
from kit.snapshots.scan import Scan, index_name, index_text
from kit.snapshots.tree_listing import ListedFile, Listing

FOLDER = ".snapshots"
_PARTIAL, _DAMAGED = ".partial-", "damaged"
# A submit in progress on another machine may already use a tree of this age before its run is visible.
_MIN_AGE_TO_PRUNE_S = 24 * 3600.0
_MODES = {"file": 0o444, "program": 0o555}


@dataclass(frozen=True)
class Store:
    """The snapshots of the runs in one folder. root: their folder, which other users cannot enter."""

    root: Path

    def tree(self, tree_hash: str) -> Path:
        """The folder of a tree, with its `listing` and its `files`."""
        return self.root / "trees" / tree_hash

    def files_of(self, tree_hash: str) -> Path:
        """The files of a tree, as they were submitted."""
        return self.tree(tree_hash) / "files"

    def index(self, folder: Path) -> Path:
        """The path of a workspace's cache for the next scan."""
        return self.root / "index" / index_name(folder)

    def holds(self, tree_hash: str) -> bool:
        """Whether the store has the tree."""
        return (self.tree(tree_hash) / "listing").exists()

    def read_listing(self, tree_hash: str) -> Listing:
        """A tree's listing; RunError when the tree is missing or its listing does not match its hash."""
        path = self.tree(tree_hash) / "listing"
        try:
            text = untrusted_files.read_bytes(path)
        except OSError:
            raise RunError(f"snapshot {tree_hash[:12]} is not in {self.root} any more") from None
        if hashlib.sha256(text).hexdigest() != tree_hash:
            self._mark(tree_hash)
            raise RunError(f"{path}: damaged: the content does not match the hash in the file's name")
        return tree_listing.parse(text, name=str(path))

    def damaged(self, tree: Listing) -> list[str]:
        """The files of a tree that have changed since they were stored.

        Every file is read. The next `put` of the same tree repairs them.
        """
        found = [entry.path for entry in tree.entries if not _is_sound(self.files_of(tree.hash) / entry.path, entry)]
        if found:
            self._mark(tree.hash)
        return found

    def _mark(self, tree_hash: str) -> None:
        with contextlib.suppress(OSError):
            (self.tree(tree_hash) / _DAMAGED).touch()

    def put(self, done: Scan) -> Path:
        """Store a workspace; return the folder of its tree. Files that the store already has are not copied.

        RunError when a file changed since the scan, or when the disk refuses.
        """

        def source(entry: ListedFile) -> Path:
            return done.folder / entry.path

        with self._changing():
            self._add(done.tree, source, sizes=done.sizes)
            if done.news:
                _write_whole(self.index(done.folder), index_text(done).encode())
        return self.tree(done.tree.hash)

    def put_folder(self, tree: Listing, folder: Path) -> Path:
        """Store a tree whose files are in `folder`."""
        return self.put_from(tree, lambda entry: folder / entry.path)

    def put_from(self, tree: Listing, source: Callable[[ListedFile], Path]) -> Path:
        """Store a tree whose files are at the paths that `source` returns."""
        with self._changing():
            self._add(tree, source)
        return self.tree(tree.hash)

    def prune(self, used: Collection[str], *, dry_run: bool = False) -> list[str]:
        """Remove trees that are not `used` and older than a day, and files that no tree has; return the trees' hashes."""
        gone: list[str] = []
        if not self.root.is_dir():
            return gone
        with self._changing():
            for tree in sorted((self.root / "trees").iterdir()):
                if tree.name not in used and _age(tree) > _MIN_AGE_TO_PRUNE_S:
                    gone.append(tree.name)
                    if not dry_run:
                        # Rename first: after a kill, no incomplete tree keeps its name.
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
                    if seen.st_nlink == 1 and time.time() - seen.st_ctime > _MIN_AGE_TO_PRUNE_S:
                        Path(one.path).unlink()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """One change at a time on this machine. A change by another machine does no harm, because existing files stay."""
        # Its import takes a thirtieth of a `kit render`, which changes nothing.
        from filelock import FileLock

        try:
            self._own()
            lock = FileLock(self.root / "lock")
            with contextlib.ExitStack() as held:
                # On a file system without locks, the renames suffice.
                with contextlib.suppress(NotImplementedError):
                    held.enter_context(lock)
                self._clean()
                yield
        except OSError as error:
            hint = "free some space, or set paths.runs of the cluster" if error.errno == errno.ENOSPC else ""
            raise RunError(f"{self.root}: the workspace cannot be stored: {error}", hint=hint) from None

    def _own(self) -> None:
        """Make the store's folders. RunError if another user has made them, or could have put files there."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.root.mkdir(mode=0o700)
            own_folders.take(self.root, 0o700)
        if found := own_folders.problem(self.root):
            # Its trees may hold files that no listing names, and its index other digests than those of the files.
            raise RunError(f"{found}; no run takes its files from there", hint=f"remove {self.root}, or set paths.runs")
        for name in ("objects", "trees", "index"):
            (self.root / name).mkdir(exist_ok=True)

    def _clean(self) -> None:
        """Remove leftovers of killed processes. Younger ones may belong to another machine's process."""
        for path in self.root.glob(f"*/{_PARTIAL}*"):
            if _age(path) > _MIN_AGE_TO_PRUNE_S / 24:
                _remove(path)

    def _add(
        self, tree: Listing, source: Callable[[ListedFile], Path], *, sizes: Mapping[str, int] | None = None
    ) -> None:
        """Add a tree. sizes: path -> bytes, if they are known: see _linked."""
        final = self.tree(tree.hash)
        if self.holds(tree.hash):
            os.utime(final)  # mark it as used: it is not pruned today
            if (final / _DAMAGED).exists():
                self._repair(tree, source)
            return
        _remove(final)  # a tree without a listing is a leftover
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

    def _repair(self, tree: Listing, source: Callable[[ListedFile], Path]) -> None:
        """Replace files that differ from the listing, each by one rename: a process that copies the tree sees the old or the new
        file.
        """
        final, partial = self.tree(tree.hash), Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self.root / "trees"))
        try:
            for entry in tree.entries:
                target, draft = final / "files" / entry.path, partial / "made"
                if _is_sound(target, entry):
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                if entry.kind == "link":
                    draft.symlink_to(entry.content)
                else:
                    kept = self._object(entry)
                    if not _is_sound(kept, entry):
                        kept.unlink(missing_ok=True)
                        self._store_object(entry, source(entry), kept)
                    _link(kept, draft)
                draft.rename(target)
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
                self._store_object(entry, source(entry), kept)
                _link(kept, target)

    def _object(self, entry: ListedFile) -> Path:
        name = entry.content + (".x" if entry.kind == "program" else "")
        return self.root / "objects" / entry.content[:2] / name

    def _store_object(self, entry: ListedFile, source: Path, kept: Path) -> None:
        """Copy a file into the store under the digest from its scan."""
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
    """Make a hard link; copy if the file system has no links, or if the file has the maximum number of them."""
    try:
        os.link(kept, target)
    except OSError as error:
        if error.errno not in {errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV}:
            raise
        shutil.copy2(kept, target)


def _linked(kept: Path, target: Path, size: int | None) -> bool:
    """Link an existing object. If its size is wrong, because of a full disk or a power cut, remove the object and return False."""
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
    """Bring the listing to disk before the tree gets its name. Files are not flushed: each run checks them against the listing."""
    for path in (folder / "listing", folder):
        atomic_write.sync(path)


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
