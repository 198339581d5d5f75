"""`kit import`: makes an exported run a run of this machine, completely or not at all. The archive may come from an untrusted
source.

Each member must be a regular file that the index lists, with its size and digest. Nothing is written outside the new folder.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Protocol

from pydantic import ValidationError

from kit import shell
from kit.archive import archive_format
from kit.archive.archive_format import ArchiveIndex, ArchiveMember
from kit.errors import KitError, LockError, RunError, ToolError
from kit.files import atomic_write, untrusted_files
from kit.hosts import whole_folder
from kit.images import store as images
from kit.record import manifest
from kit.record.manifest import Imported, Manifest
from kit.schema.image import ImageLock
from kit.schema.run_paths import RunPaths
from kit.snapshots import tree_listing
from kit.snapshots.tree_listing import Listing
from kit.submission import workspace

_CHUNK = 1 << 20
# The maximum size of a header. No exported run has longer names or pax tables, and tarfile would keep them in memory.
_MOST_HEADER = 1 << 16
# The maximum size of a run without its images; logs are the largest part.
_MOST_BYTES = 100 << 30
_MAGIC = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}
_DAMAGED = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ToolError, ValueError, OverflowError)


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """An imported run. new: False if this machine already had it. outward: links of its code that lead out of the workspace."""

    run_dir: Path
    new: bool
    outward: tuple[str, ...] = ()


def bring_in(file: Path, *, runs_dir: Path, image_store: Path, now: datetime | None = None) -> ImportedRun:
    """Import an exported run. `read_index` says for which cluster it was made.

    RunError for a file that is not an archive of a run, is damaged, or has forbidden names; for another run of the same name; and
    for a full disk. LockError for an image that does not match its lock.
    """
    with _members(file) as tar:
        index, digest = _index(file, tar)
        final = runs_dir / index.run_id
        if _is_here(final, digest, index):
            return ImportedRun(run_dir=final, new=False)
        _require_room(file, index, runs_dir)
        with whole_folder.make_whole(final) as partial, contextlib.ExitStack() as held:
            aside = partial / ".import"
            aside.mkdir()
            image_folder = aside
            if any(name.startswith(archive_format.IMAGE) for name in index.members):
                images.prepare_store(image_store)
                image_folder = held.enter_context(images.workspace(image_store))
            _unpack(
                file, tar, index, {archive_format.RUN: partial, archive_format.IMAGE: image_folder, "snapshot/": aside}
            )
            record, tree = _checked(file, index, partial, aside)
            _publish(file, index, _locks(record, partial), image_folder, image_store)
            if tree is not None:
                objects = aside / "objects"
                workspace.store_of(runs_dir).put_from(tree, lambda entry: objects / entry.content)
            shutil.rmtree(aside)
            told = Imported(at=now or datetime.now(UTC), index=digest)
            record.model_copy(update={"imported": told}).write(RunPaths(partial).manifest)
    for path in RunPaths(final).locks.glob("*.lock"):
        images.register(image_store, path)  # so that pruning knows that the image is used
    return ImportedRun(run_dir=final, new=True, outward=_outward(tree))


def read_index(file: Path) -> ArchiveIndex:
    """The index of an archive; RunError as in `bring_in`."""
    with _members(file) as tar:
        return _index(file, tar)[0]


def _is_here(final: Path, digest: str, index: ArchiveIndex) -> bool:
    """Whether the same run was imported before. RunError for another run of that name."""
    if not final.exists():
        return False
    with contextlib.suppress(RunError):
        here = manifest.read_manifest(RunPaths(final).manifest)
        ours = index.members.get(f"{archive_format.RUN}manifest.json")
        if here.imported and here.imported.index == digest:
            return True
        if ours and hashlib.sha256(untrusted_files.read_bytes(RunPaths(final).manifest)).hexdigest() == ours.sha256:
            return True
    raise RunError(f"{final}: another run has this name", hint="--runs DIR puts this one elsewhere")


def _require_room(file: Path, index: ArchiveIndex, runs_dir: Path) -> None:
    sizes = {name: one.size for name, one in index.members.items()}
    total = sum(size for name, size in sizes.items() if not name.startswith(archive_format.IMAGE))
    if total > _MOST_BYTES:
        raise RunError(
            f"{file}: unpacked without its images it has {total >> 30} GiB, and at most {_MOST_BYTES >> 30} GiB are allowed"
        )
    place = next(path for path in (runs_dir, *runs_dir.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if sum(sizes.values()) > free:
        problem = f"it would have {sum(sizes.values()) / 1e6:.1f} MB, and {place} has {free / 1e6:.1f} MB left"
        raise RunError(f"{file}: {problem}", hint="free some space, or --runs DIR")


def _index(file: Path, tar: tarfile.TarFile) -> tuple[ArchiveIndex, str]:
    """The first member, parsed, and its sha256."""
    try:
        first = tar.next()
        if (
            first is None
            or first.name != archive_format.INDEX
            or not _is_plain(first)
            or first.size > archive_format.MOST_INDEX
        ):
            raise RunError(
                f"{file}: not an exported run: it does not begin with {archive_format.INDEX}",
                hint="kit export RUN -o FILE",
            )
        content = tar.extractfile(first)
        assert content is not None
        text = b"".join(iter(lambda: content.read(_CHUNK), b""))
        return ArchiveIndex.model_validate(json.loads(text)), hashlib.sha256(text).hexdigest()
    except ValidationError as error:
        raise RunError(f"{file}: {archive_format.INDEX}: {manifest.problem(error)}") from None
    except (*_DAMAGED, RecursionError) as error:
        raise _damaged(file, error) from None


def _unpack(file: Path, tar: tarfile.TarFile, index: ArchiveIndex, places: dict[str, Path]) -> None:
    """Write each member that the index lists, and compare it with the index; RunError for any other member."""
    missing = dict(index.members)
    try:
        while missing and (member := tar.next()) is not None:
            wanted = missing.pop(member.name, None)
            if wanted is None:
                problem = "is there twice" if member.name in index.members else "is not in its index"
                raise RunError(f"{file}: {member.name[:200]!r} {problem}")
            if not _is_plain(member):
                raise RunError(f"{file}: {member.name!r} is not a regular file, and an exported run has nothing else")
            if member.size != wanted.size:
                raise RunError(f"{file}: {member.name!r} has {member.size} bytes, and its index says {wanted.size}")
            top = next(top for top in places if member.name.startswith(top))
            content = tar.extractfile(member)
            assert content is not None
            _write(file, content, member.name, wanted, places[top] / member.name.removeprefix(top))
    except _DAMAGED as error:
        raise _damaged(file, error) from None
    if missing:
        raise RunError(
            f"{file}: cut off: {len(missing)} of {len(index.members)} files are missing", hint="copy it again"
        )


def _write(file: Path, content: IO[bytes], name: str, wanted: ArchiveMember, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with target.open("xb") as sink:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
            sink.write(chunk)
    if digest.hexdigest() != wanted.sha256:
        problem = f"{name!r} has the sha256 {digest.hexdigest()[:16]}…, and its index says {wanted.sha256[:16]}…"
        raise RunError(f"{file}: damaged: {problem}", hint="copy it again")
    target.chmod(0o755 if wanted.program else 0o644)


def _is_plain(one: tarfile.TarInfo) -> bool:
    return one.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not one.issparse()


def _checked(file: Path, index: ArchiveIndex, partial: Path, aside: Path) -> tuple[Manifest, Listing | None]:
    """The manifest, and the tree of its code. RunError if they do not belong together."""
    record = manifest.read_manifest(RunPaths(partial).manifest)
    if record.run_id != index.run_id:
        raise RunError(f"{file}: its manifest is of run {record.run_id!r}, and its index is of run {index.run_id!r}")
    for name, digest in record.records.items():
        member = index.members.get(f"{archive_format.RUN}{name}")
        if member is None or member.sha256 != digest:
            raise RunError(f"{file}: file {name!r} is missing, or its digest is not the one in the run's manifest")
    wanted = record.workspace.tree if record.workspace else None
    if wanted is None:
        return record, None
    listed = index.members.get(archive_format.LISTING)
    if listed is None or listed.sha256 != wanted:
        raise RunError(f"{file}: its code is not snapshot {wanted[:12]}, which the run's manifest names")
    tree = tree_listing.parse(untrusted_files.read_bytes(aside / "listing"), name=f"{file}: {archive_format.LISTING}")
    for entry in tree.entries:
        if entry.kind != "link" and not (aside / "objects" / entry.content).is_file():
            raise RunError(f"{file}: the code lacks the file {entry.path!r}")
        if entry.kind != "link" and index.members[archive_format.OBJECTS + entry.content].sha256 != entry.content:
            raise RunError(f"{file}: damaged: the code's file {entry.path!r} does not have its digest")
    return record, tree


def _locks(record: Manifest, run_dir: Path) -> dict[str, ImageLock]:
    """Digest -> lock of the images that the run's manifest names."""
    from kit.images import image_lock

    names = [name for name in record.records if name.startswith("locks/")]
    return {lock.sha256: lock for lock in (image_lock.read_lock(run_dir / name) for name in names)}


def _publish(
    file: Path, index: ArchiveIndex, locks: Mapping[str, ImageLock], image_folder: Path, image_store: Path
) -> None:
    """Move images into the store, after comparing each with a lock of the run."""
    for name in (name for name in index.members if name.startswith(archive_format.IMAGE)):
        sha256 = Path(name).stem
        if sha256 not in locks or index.members[name].sha256 != sha256:
            raise LockError(f"{file}: no lock of the run names the image {name!r}")
        if not images.path(image_store, sha256).is_file():
            unpacked = image_folder / f"{sha256}.sqsh"
            atomic_write.sync(unpacked)
            images.publish(image_store, unpacked, sha256, {"name": locks[sha256].name, "source": "import of a run"})


def _outward(tree: Listing | None) -> tuple[str, ...]:
    entries = tree.entries if tree else ()
    return tuple(
        f"{one.path} -> {one.content}" for one in entries if one.kind == "link" and one.content.startswith("/")
    )


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Forward:
    """The part of a file's interface that tarfile needs, over a stream that is read once.

    A header that is too large is never read.
    """

    def __init__(self, stream: _Stream) -> None:
        self._stream, self._at = stream, 0

    def tell(self) -> int:
        return self._at

    def seek(self, place: int) -> None:
        while self._at < place:
            if not self._take(min(_CHUNK, place - self._at)):
                raise EOFError("the data end early")

    def read(self, size: int) -> bytes:
        if size > max(_CHUNK, _MOST_HEADER):
            raise tarfile.ReadError("a header of more than a mebibyte")
        parts = []
        while size > 0 and (part := self._take(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _take(self, size: int) -> bytes:
        part = self._stream.read(size)
        self._at += len(part)
        return part


@contextlib.contextmanager
def _members(file: Path) -> Iterator[tarfile.TarFile]:
    """The archive, opened for reading from beginning to end."""
    try:
        with untrusted_files.open_regular(file) as source:
            magic = source.read(4)
    except OSError as error:
        raise RunError(f"{file}: cannot be read: {error.strerror}", hint="kit import FILE") from None
    kind = next((kind for start, kind in _MAGIC.items() if magic.startswith(start)), "")
    with contextlib.ExitStack() as held:
        try:
            if kind == "zstd":
                zstd = shell.require("zstd", hint="apt-get install zstd")
                held.enter_context(_ends_early())
                stream: _Stream = held.enter_context(
                    shell.output([zstd, "--quiet", "--decompress", "--stdout", str(file)])
                )
            elif kind == "gzip":
                stream = held.enter_context(gzip.open(file))
            else:
                raise RunError(f"{file}: not an exported run: neither zstd nor gzip", hint="kit export RUN -o FILE")
            tar = tarfile.TarFile(fileobj=_Forward(stream), mode="r", encoding="utf-8")  # type: ignore[arg-type]
        except _DAMAGED as error:
            raise _damaged(file, error) from None
        yield tar


@contextlib.contextmanager
def _ends_early() -> Iterator[None]:
    """Ignore errors of the unpacking program after all members are read: it is ended early."""
    try:
        yield
    except ToolError:
        return


def _damaged(file: Path, error: Exception) -> KitError:
    return RunError(f"{file}: damaged or cut off: {str(error)[:200] or type(error).__name__}", hint="copy it again")
