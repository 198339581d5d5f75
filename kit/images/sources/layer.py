"""One layer of an image: its entries, applied in order as an engine unpacks them, and stored as numbers."""

from __future__ import annotations

import tarfile
import threading
from collections.abc import Iterator

from kit.errors import ImageError
from kit.images.sources.layer_bytes import Bytes
from kit.images.sources.tar_headers import Header, Headers
from kit.images.sources.tree_edits import clean
from kit.images.sources.tree_stream import ERRORS, Data

# OCI image specification, "Representing Changes": a deleted path, and a folder whose lower content is hidden. Other names with the
# double prefix are a storage driver's own files.
WHITEOUT, META, OPAQUE = ".wh.", ".wh..wh.", ".wh..wh..opq"

# An entry of the tree is one number: the layer, the offset of its header in the layer's tar, and its kind. With this, 400,000
# entries and everything else fit into 150 MB.
FOLDER, FILE, LINK, IMPLIED = range(4)
_KIND_MASK, _KIND_BITS, _LAYER_BITS = 3, 2, 56
_MAX_LINKS = 40  # the kernel's limit (path_resolution(7))

_DAMAGE = (tarfile.TarError, ValueError, LookupError, ArithmeticError)

Key = bytes  # see tree_edits.walk_key


def kind(entry: int) -> int:
    """FOLDER, FILE (anything that is neither folder nor link), LINK, or IMPLIED: a folder without its own entry."""
    return entry & _KIND_MASK


def layer_of(entry: int) -> int:
    """The number of the entry's layer."""
    return entry >> _LAYER_BITS


class Folder:
    """A folder of the tree: its own entry, and its content by name."""

    __slots__ = ("entry", "inner")

    def __init__(self, entry: int = IMPLIED) -> None:
        self.entry = entry
        self.inner: dict[bytes, Folder | int] = {}

    def at(self, key: Key) -> Folder | int | None:
        """The entry at a path below this folder; None if there is none. Links are not followed."""
        found: Folder | int | None = self
        for name in key.split(b"\0") if key else ():
            if not isinstance(found, Folder):
                return None
            found = found.inner.get(name)
        return found


class Layer:
    """The tree of one layer, and the paths that it hides in the layers below.

    number: of the layer, lowest 0. whole: the tar must end as tar(5) says; a layer with a digest is checked against the digest
    instead. ImageError for a damaged tar.
    """

    def __init__(self, source: Bytes, name: str, number: int = 0, *, whole: bool = False) -> None:
        self.name = name
        self.root = Folder()
        self.hidden: set[Key] = set()  # whiteouts: each hides its path and everything below it
        self.opaque: set[Key] = set()  # folders that hide their content in lower layers
        # Hard link -> its file, or the file's path in a lower layer.
        self.hard: dict[int, int | Key] = {}
        self.latest: dict[int, int] = {}  # file -> its last hard link, which sets mode and time
        self._links: dict[int, str] = {}
        self._number = number
        self._folder_cache: tuple[str, Key, Folder] | None = None
        self._whole = whole
        self._source, self._headers = source, Headers(source)

    def close(self) -> None:
        """Close the layer's source."""
        self._source.close()

    def apply_entries(self, ended: threading.Event | None = None) -> None:
        """Apply all entries, in their order, until `ended` is set."""
        for place, header in self._members():
            if ended and ended.is_set():
                return
            try:
                self._apply(place, header)
            except ValueError as error:
                raise ImageError(f"{self.name}: {error}") from None
        self._links, self._folder_cache = {}, None

    def member(self, entry: int) -> tarfile.TarInfo:
        """The header of an entry, read again."""
        place = (entry & (1 << _LAYER_BITS) - 1) >> _KIND_BITS
        try:
            return self._headers.member(place)
        except _DAMAGE as error:
            raise self._damaged(error, place) from None

    def data(self, member: tarfile.TarInfo) -> Data:
        """The content of a file."""
        return self._headers.data(member)

    def _members(self) -> Iterator[tuple[int, Header]]:
        """The headers of all members. TarFile's own loop ends silently at damage; this one raises ImageError."""
        offset, name = 0, ""
        while True:
            try:
                header = self._headers.at(offset)
            except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end-of-archive block
                return
            except tarfile.EmptyHeaderError:  # type: ignore[attr-defined]
                break
            except _DAMAGE as error:
                raise self._damaged(error, offset) from None
            yield offset, header
            offset, name = header.end, header.name
        if offset and not self._source.read_at(offset - 1, 1):
            raise ImageError(f"{self.name}: cut off in the data of {name}")
        if self._whole:
            raise ImageError(f"{self.name}: cut off: it has no end-of-archive block", hint="copy or make it again")

    def _damaged(self, error: Exception, place: int) -> ImageError:
        return ImageError(f"{self.name}: a damaged tar: {error} at byte {place}")

    def _apply(self, offset: int, header: Header) -> None:
        path = clean(header.name)
        folder, _, name = path.rpartition("/")
        if not path:
            return
        parent_key, parent = self._folder(folder)
        if name.startswith(META):
            if name == OPAQUE:
                self.opaque.add(parent_key)
            return
        part = name.encode(errors=ERRORS)
        if name.startswith(WHITEOUT):
            self.hidden.add(_join(parent_key, part.removeprefix(WHITEOUT.encode())))
            return
        self._set_entry(parent, part, offset, header)

    def _set_entry(self, parent: Folder, name: bytes, place: int, header: Header) -> None:
        base = self._number << _LAYER_BITS | place << _KIND_BITS
        old = parent.inner.get(name)
        if header.type == tarfile.DIRTYPE:
            if isinstance(old, Folder):
                old.entry = base | FOLDER
            else:
                parent.inner[name] = Folder(base | FOLDER)
            return
        new = base | (LINK if header.type == tarfile.SYMTYPE else FILE)
        if header.type == tarfile.LNKTYPE:
            found = self._target(header)
            if isinstance(found, int):
                new = base | kind(found)
                self.latest[found] = base | FILE
            self.hard[new] = found
        elif kind(new) == LINK:
            self._links[new] = header.target
        self._folder_cache = None if old is not None else self._folder_cache
        parent.inner[name] = new

    def _target(self, header: Header) -> int | Key:
        """The target of a hard link: an entry of this layer that is not itself a link, or a path in a lower layer."""
        path = clean(header.target)
        folder, _, name = path.rpartition("/")
        key, parent = self._find_folder(folder)
        part = name.encode(errors=ERRORS)
        found = parent.inner.get(part) if parent is not None else None
        if found is None:
            return _join(key, part)
        if isinstance(found, Folder):
            raise ValueError(f"{clean(header.name)}: a hard link to the folder {path}")
        return self.hard.get(found, found)

    def _folder(self, path: str) -> tuple[Key, Folder]:
        """The real folder at `path` in this layer, created if it is missing. Links are followed (usrmerge)."""
        if self._folder_cache is None or self._folder_cache[0] != path:
            key, folder = self._walk(path, make=True)
            assert folder is not None, "it was made"
            self._folder_cache = (path, key, folder)
        return self._folder_cache[1], self._folder_cache[2]

    def _find_folder(self, path: str) -> tuple[Key, Folder | None]:
        """The same without creating folders: None if the folder does not exist."""
        if self._folder_cache is not None and self._folder_cache[0] == path:
            return self._folder_cache[1], self._folder_cache[2]
        return self._walk(path, make=False)

    def _walk(self, path: str, *, make: bool) -> tuple[Key, Folder | None]:
        left = [part for part in path.split("/") if part]
        names: list[bytes] = []
        way: list[Folder | None] = [self.root]  # the root, and the folder of each name
        links = 0
        while left:
            part = left.pop(0)
            if part == "..":
                names, way = names[:-1], way[:-1] or way
                continue
            name, parent = part.encode(errors=ERRORS), way[-1]
            entry = parent.inner.get(name) if parent is not None else None
            if entry is None and make and parent is not None:
                entry = parent.inner[name] = Folder()
            if isinstance(entry, int):
                links += 1
                target = self._links.get(entry)
                if kind(entry) == FILE:
                    raise ValueError(f"{_text([*names, name])} is a file, and the layer has entries below it ({path})")
                if target is None or links > _MAX_LINKS:
                    raise ValueError(f"{path}: a loop of links")
                left = [part for part in target.split("/") if part not in ("", ".")] + left
                names, way = ([], [self.root]) if target.startswith("/") else (names, way)
                continue
            names, way = [*names, name], [*way, entry]
        return b"\0".join(names), way[-1]


def _join(folder: Key, name: bytes) -> Key:
    return folder + b"\0" + name if folder else name


def _text(names: list[bytes]) -> str:
    return b"/".join(names).decode(errors=ERRORS)
