"""One layer of an image: its entries, applied in order as an engine unpacks them, and kept as numbers."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

from kit.errors import ImageError
from kit.images.edits import clean
from kit.images.entries import ENCODING, ERRORS, Data

# OCI image specification, "Representing Changes": a deleted path, and a folder whose lower content is hidden. What else begins
# with the double prefix is a driver's own book-keeping.
WHITEOUT, META, OPAQUE = ".wh.", ".wh..wh.", ".wh..wh..opq"

# An entry of the tree is one number: the place of its header in the layer's tar, and what it is. 400,000 of them must fit
# beside the rest in 150 MB.
FOLDER, FILE, LINK, IMPLIED = range(4)
_KIND = 3
_MAX_LINKS = 40  # as the kernel (path_resolution(7))

Key = bytes  # edits.walk_key


def kind(entry: int) -> int:
    """FOLDER, FILE (anything that is neither folder nor link), LINK, or IMPLIED: a folder that has no entry of its own."""
    return entry & _KIND


class Layer:
    """The tree of one layer, and what it hides of the layers below.

    whole: the tar must end as tar(5) says; a layer is held to its digest instead. ImageError for a damaged tar.
    """

    def __init__(self, file: Path, name: str, *, whole: bool = False) -> None:
        self.name = name
        self.entries: dict[Key, int] = {}
        self.hidden: set[Key] = set()  # whiteouts: the path and all below it
        self.opaque: set[Key] = set()  # folders that show nothing from below
        self.hard: dict[
            int, int | Key
        ] = {}  # header of a hard link -> of its file, or the file's path in a lower layer
        self.latest: dict[int, int] = {}  # header of a file -> of its last hard link, which sets mode and time
        self._links: dict[Key, str] = {}
        self._folder_cache: tuple[str, Key] = ("", b"")
        self._whole = whole
        try:
            self._tar = tarfile.open(file, mode="r:", encoding=ENCODING, errors=ERRORS)  # noqa: SIM115 - see close
        except tarfile.ReadError as error:
            if file.stat().st_size or whole:
                raise ImageError(f"{name}: not a readable tar: {error}") from None
            self._tar = tarfile.TarFile(file, mode="w")
        self._size = file.stat().st_size

    def close(self) -> None:
        """Close the file."""
        self._tar.close()

    def read(self) -> None:
        """Apply all entries, in their order."""
        for member in self._members():
            try:
                self._apply(member)
            except ValueError as error:
                raise ImageError(f"{self.name}: {error}") from None
        self._links, self._folder_cache = {}, ("", b"")

    def member(self, entry: int) -> tarfile.TarInfo:
        """The header of an entry, read again."""
        self._seek(entry >> 2)
        return tarfile.TarInfo.fromtarfile(self._tar)

    def data(self, member: tarfile.TarInfo) -> Data:
        """The content of a file."""
        found = self._tar.extractfile(member)
        assert found is not None, "a regular file"
        return found

    def _seek(self, place: int) -> None:
        assert self._tar.fileobj is not None
        self._tar.fileobj.seek(place)
        self._tar.offset = place

    def _members(self) -> Iterator[tarfile.TarInfo]:
        """TarFile's own loop ends quietly at damage; this one does not."""
        place = 0
        while place < self._size:
            self._seek(place)
            try:
                member = tarfile.TarInfo.fromtarfile(self._tar)
            except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end-of-archive block
                return
            except (tarfile.HeaderError, ValueError, LookupError, ArithmeticError) as error:
                raise ImageError(f"{self.name}: a damaged tar: {error} at byte {place}") from None
            place = self._tar.offset
            if place > self._size:
                raise ImageError(f"{self.name}: cut off in the data of {member.name}")
            yield member
        if self._whole:
            raise ImageError(f"{self.name}: cut off: it has no end-of-archive block", hint="copy or make it again")

    def _apply(self, member: tarfile.TarInfo) -> None:
        path = clean(member.name)
        folder, _, name = path.rpartition("/")
        if not path:
            return
        parent = self._folder(folder)
        if name.startswith(META):
            if name == OPAQUE:
                self.opaque.add(parent)
            return
        if name.startswith(WHITEOUT):
            self.hidden.add(_join(parent, name.removeprefix(WHITEOUT)))
            return
        self._set(_join(parent, name), member)

    def _set(self, key: Key, member: tarfile.TarInfo) -> None:
        new = member.offset << 2 | (FOLDER if member.isdir() else LINK if member.issym() else FILE)
        if member.islnk():
            found = self._target(member)
            self.hard[new] = found
            if isinstance(found, int):
                self.latest[found] = new
            if isinstance(found, int) and kind(found) == LINK:
                new_kind = member.offset << 2 | LINK
                self.hard[new_kind] = self.hard.pop(new)
                new = new_kind
        old = self.entries.get(key)
        if kind(new) != FOLDER:
            if old is not None and kind(old) in (FOLDER, IMPLIED):
                self._remove_below(key)
            self._folder_cache = ("", b"")
        self._links.pop(key, None)
        if member.issym():
            self._links[key] = member.linkname
        self.entries[key] = new

    def _target(self, member: tarfile.TarInfo) -> int | Key:
        """What a hard link leads to: an entry of this layer that is no link itself, or a path of a lower layer."""
        path = clean(member.linkname)
        folder, _, name = path.rpartition("/")
        key = _join(self._folder(folder, make=False), name)
        found = self.entries.get(key)
        if found is None:
            return key
        if kind(found) in (FOLDER, IMPLIED):
            raise ValueError(f"{clean(member.name)}: a hard link to the folder {path}")
        return self.hard.get(found, found)

    def _remove_below(self, key: Key) -> None:
        prefix = key + b"\0"
        for inner in [inner for inner in self.entries if inner.startswith(prefix)]:
            del self.entries[inner]
            self._links.pop(inner, None)

    def _folder(self, path: str, *, make: bool = True) -> Key:
        """The real folder that `path` is in this layer, made where it is missing; links are followed (usrmerge)."""
        if path == self._folder_cache[0] and make:
            return self._folder_cache[1]
        left = [part for part in path.split("/") if part]
        place, links = b"", 0
        while left:
            part = left.pop(0)
            if part == "..":
                place = place.rpartition(b"\0")[0]
                continue
            inner = _join(place, part)
            found = self.entries.get(inner)
            if found is None:
                if make:
                    self.entries[inner] = IMPLIED
            elif kind(found) == LINK:
                target = self._links.get(inner)
                links += 1
                if target is None or links > _MAX_LINKS:
                    raise ValueError(f"{path}: a loop of links")
                left = [part for part in target.split("/") if part not in ("", ".")] + left
                place = b"" if target.startswith("/") else place
                continue
            elif kind(found) == FILE:
                raise ValueError(f"{_text(inner)} is a file, and the layer has entries below it ({path})")
            place = inner
        if make:
            self._folder_cache = (path, place)
        return place


def _join(folder: Key, name: str) -> Key:
    part = name.encode(errors=ERRORS)
    return folder + b"\0" + part if folder else part


def _text(key: Key) -> str:
    return key.decode(errors=ERRORS).replace("\0", "/")
