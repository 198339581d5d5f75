"""Merges image layers without unpacking them: no root, no engine, and the same walk order as an overlay mount."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kit.errors import ImageError
from kit.images.enroot_layout import walk_key
from kit.images.entries import ENCODING, ERRORS, Entry, clean

# OCI image specification, "Representing Changes": a deleted path, and a folder whose lower content is hidden.
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


@dataclass(slots=True)
class _Node:
    """A path of the merged tree. layer: where `member` comes from; None for a folder that no layer lists."""

    layer: int = 0
    member: tarfile.TarInfo | None = None
    children: dict[str, _Node] = field(default_factory=dict)


def merged(layers: Sequence[Path]) -> Iterator[Entry]:
    """The merged tree of uncompressed layer tars, lowest first, in walk order. ImageError for a damaged layer."""
    archives = [_open(layer) for layer in layers]
    try:
        root = _Node()
        for number, archive in enumerate(archives):
            _apply(root, number, _members(archive, layers[number]))
        yield from _Walk(archives).entries(root, "")
    finally:
        for archive in archives:
            archive.close()


def walked(folder: Path) -> Iterator[Entry]:
    """The tree below a folder, in walk order. ImageError for a file that this user may not read."""
    written: dict[tuple[int, int], str] = {}
    yield from _below(folder, "", written)


def _below(folder: Path, path: str, written: dict[tuple[int, int], str]) -> Iterator[Entry]:
    # A plain file object to ask for headers: TarFile knows how to read owner, device numbers and link targets of a file.
    asker = tarfile.TarFile(fileobj=io.BytesIO(), mode="w", format=tarfile.GNU_FORMAT, encoding=ENCODING, errors=ERRORS)
    try:
        for place in sorted(folder.iterdir(), key=lambda found: walk_key(found.name)):
            inner = f"{path}/{place.name}" if path else place.name
            asker.inodes = {}  # type: ignore[attr-defined]  # its own hard-link table does not know where links lead in the image
            member = asker.gettarinfo(str(place), arcname=inner)
            if member is None:
                continue  # a socket, which no image can hold
            member.pax_headers = _xattrs_of(place)
            stat = place.lstat()
            inode = (stat.st_dev, stat.st_ino)
            if member.isreg() and stat.st_nlink > 1 and inode in written:
                member.type, member.linkname, member.size = tarfile.LNKTYPE, written[inode], 0
                yield member, None
            elif member.isreg():
                written[inode] = inner
                with place.open("rb") as data:
                    yield member, data
            else:
                yield member, None
            if member.isdir():
                yield from _below(place, inner, written)
    except OSError as error:
        raise ImageError(
            f"{error.filename}: {error.strerror}", hint="import the folder as a user who may read it"
        ) from None


def _xattrs_of(place: Path) -> dict[str, str]:
    names = os.listxattr(place, follow_symlinks=False)
    return {
        f"SCHILY.xattr.{name}": os.getxattr(place, name, follow_symlinks=False).decode(ENCODING, ERRORS)
        for name in names
    }


def _open(layer: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(layer, mode="r:", encoding=ENCODING, errors=ERRORS)
    except (tarfile.TarError, OSError) as error:
        raise ImageError(f"{layer.name}: not a readable tar: {error}") from None


def _members(archive: tarfile.TarFile, layer: Path) -> list[tarfile.TarInfo]:
    try:
        return archive.getmembers()
    except (tarfile.TarError, OSError) as error:
        raise ImageError(f"{layer.name}: a damaged tar: {error}") from None


def _apply(root: _Node, number: int, members: list[tarfile.TarInfo]) -> None:
    """Lay one layer over the tree. Its whiteouts come first: they hide lower layers, never the layer itself."""
    paths = [(clean(member.name), member) for member in members]
    for path, _ in paths:
        folder, _, name = path.rpartition("/")
        if name == _OPAQUE:
            _at(root, folder).children.clear()
        elif name.startswith(_WHITEOUT):
            _at(root, folder).children.pop(name.removeprefix(_WHITEOUT), None)
    for path, member in paths:
        if path and not path.rpartition("/")[2].startswith(_WHITEOUT):
            node = _at(root, path)
            node.layer, node.member = number, member
            if not member.isdir():
                node.children.clear()


def _at(root: _Node, path: str) -> _Node:
    node = root
    for part in filter(None, path.split("/")):
        node = node.children.setdefault(part, _Node())
    return node


class _Walk:
    """Yields a tree in walk order; names of one file become hard links to whichever of them comes first."""

    def __init__(self, archives: list[tarfile.TarFile]) -> None:
        self._archives = archives
        self._links = [_link_targets(archive) for archive in archives]
        self._written: dict[tuple[int, int], str] = {}

    def entries(self, node: _Node, path: str) -> Iterator[Entry]:
        """The children of `node`, which stands at `path`."""
        for name in sorted(node.children, key=walk_key):
            child = node.children[name]
            place = f"{path}/{name}" if path else name
            yield self._entry(child, place)
            yield from self.entries(child, place)

    def _entry(self, node: _Node, path: str) -> Entry:
        if node.member is None:
            folder = tarfile.TarInfo(path)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            return folder, None
        source = self._links[node.layer].get(node.member.offset, node.member)
        if not source.isreg():
            return _named(source, path), None
        inode = (node.layer, source.offset)
        if inode in self._written:
            link = _named(source, path)
            link.type, link.linkname, link.size, link.pax_headers = tarfile.LNKTYPE, self._written[inode], 0, {}
            return link, None
        self._written[inode] = path
        return _named(source, path), self._archives[node.layer].extractfile(source)


def _link_targets(archive: tarfile.TarFile) -> dict[int, tarfile.TarInfo]:
    """Offset of each hard link's header -> the member that holds its content. ImageError for one that leads nowhere."""
    by_name: dict[str, tarfile.TarInfo] = {}
    targets: dict[int, tarfile.TarInfo] = {}
    for member in archive.getmembers():
        if member.islnk():
            target = by_name.get(clean(member.linkname))
            if target is None:
                raise ImageError(f"{member.name}: a hard link to {member.linkname}, which its layer does not hold")
            targets[member.offset] = target
            by_name[clean(member.name)] = target
        else:
            by_name[clean(member.name)] = member
    return targets


def _named(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    copy = member.replace(name=path, deep=False)
    copy.pax_headers = dict(member.pax_headers)
    return copy
