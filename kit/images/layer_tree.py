"""Merges image layers without unpacking them: no root, no engine, and the tree that an engine's overlay of the layers shows."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from kit.errors import ImageError
from kit.images.edits import Edit, Seen, settled, walk_key
from kit.images.entries import ERRORS, Entry
from kit.images.layer import FILE, FOLDER, IMPLIED, LINK, Key, Layer, kind

_FOLDER_MODE = 0o755
# An entry of the merged tree: the layer's number above the layer's own number for it.
_LAYER = 56
_OWN = (1 << _LAYER) - 1


class LayerTree:
    """The merged tree of uncompressed layer tars, lowest first. names: for errors. ImageError for a damaged layer.

    whole: see Layer.
    """

    def __init__(self, files: Sequence[Path], names: Sequence[str] = (), *, whole: bool = False) -> None:
        self._layers: list[Layer] = []
        self._tree: dict[Key, int] = {}
        self._hidden: set[Key] = set()
        self._opaque: set[Key] = set()
        self._below: dict[int, int] = {}  # a hard link to a file of a lower layer -> that file
        try:
            for number, file in enumerate(files):
                layer = Layer(file, names[number] if names else file.name, whole=whole)
                self._layers.append(layer)
                layer.read()
            for number in reversed(range(len(self._layers))):
                self._lay_under(number)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files."""
        for layer in self._layers:
            layer.close()

    def settled(self, edit: Edit) -> Edit:
        """See `edits.settled`."""
        return settled(edit, self._look)

    def entries(self) -> Iterator[Entry]:
        """The tree in walk order; names of one file become hard links to whichever of them comes first."""
        written: dict[int, str] = {}
        linked = self._linked()
        for key in sorted(self._tree):
            path, entry = key.decode(errors=ERRORS).replace("\0", "/"), self._tree[key]
            if kind(entry) == IMPLIED:
                folder = tarfile.TarInfo(path)
                folder.type, folder.mode = tarfile.DIRTYPE, _FOLDER_MODE
                yield folder, None
                continue
            source = self._source(entry)
            member = self._member(source)
            member.name = path
            self._update(member, source)
            if source in written:
                member.type, member.linkname, member.size, member.pax_headers = tarfile.LNKTYPE, written[source], 0, {}
                yield member, None
                continue
            if source in linked:
                written[source] = path
            layer = self._layers[source >> _LAYER]
            yield member, layer.data(member) if member.isreg() else None

    def _lay_under(self, number: int) -> None:
        """Show what a layer has, as far as the layers above let it through."""
        layer, base = self._layers[number], number << _LAYER
        shown: dict[Key, bool] = {b"": b"" not in self._opaque}
        mine: dict[Key, int] = {}
        for key, entry in layer.entries.items():
            if key not in self._tree and key not in self._hidden and self._shows(key.rpartition(b"\0")[0], shown):
                mine[key] = base | entry
        for entry, target in layer.hard.items():
            if isinstance(target, bytes):
                self._below[base | entry] = self._lower(number, target)
        self._hidden |= layer.hidden
        self._opaque |= layer.opaque
        layer.entries = {}
        self._tree = mine | self._tree if self._tree else mine

    def _shows(self, folder: Key, known: dict[Key, bool]) -> bool:
        """Whether the layers above let the content of a folder through."""
        if folder not in known:
            entry = self._tree.get(folder)
            known[folder] = (
                folder not in self._hidden
                and folder not in self._opaque
                and (entry is None or kind(entry) in (FOLDER, IMPLIED))
                and self._shows(folder.rpartition(b"\0")[0], known)
            )
        return known[folder]

    def _lower(self, number: int, key: Key) -> int:
        """The file that the layers below `number` show at `key`. ImageError when there is none."""
        parts = key.split(b"\0")
        above = [b"\0".join(parts[:i]) for i in range(1, len(parts))]
        for lower in reversed(range(number)):
            layer = self._layers[lower]
            found = layer.entries.get(key)
            if found is not None and kind(found) in (FILE, LINK):
                return lower << _LAYER | found
            ends = layer.hidden.intersection([*above, key]) or layer.opaque.intersection(above)
            if found is not None or ends or any(kind(layer.entries.get(p, FOLDER)) in (FILE, LINK) for p in above):
                break
        path = key.decode(errors=ERRORS).replace("\0", "/")
        name = self._layers[number].name
        raise ImageError(f"{name}: a hard link to {path}, which neither this layer nor one below holds")

    def _source(self, entry: int) -> int:
        """The entry that holds the content of a name: its own, or the one that a hard link leads to."""
        while True:
            number = entry >> _LAYER
            found = self._layers[number].hard.get(entry & _OWN)
            if found is None:
                return entry
            entry = self._below[entry] if isinstance(found, bytes) else number << _LAYER | found

    def _linked(self) -> set[int]:
        """Entries that more names than one may lead to."""
        return {
            self._source(number << _LAYER | entry) for number, layer in enumerate(self._layers) for entry in layer.hard
        }

    def _member(self, entry: int) -> tarfile.TarInfo:
        return self._layers[entry >> _LAYER].member(entry & _OWN)

    def _update(self, member: tarfile.TarInfo, source: int) -> None:
        """As every unpacker does: the header of a hard link sets mode and time of the file that it leads to."""
        latest = self._layers[source >> _LAYER].latest.get(source & _OWN)
        if latest is not None:
            header = self._layers[source >> _LAYER].member(latest)
            member.mode, member.mtime = header.mode, header.mtime

    def _look(self, path: str) -> Seen | None:
        entry = self._tree.get(walk_key(path))
        if entry is None:
            return None
        if kind(entry) == LINK:
            return Seen("link", self._member(self._source(entry)).linkname)
        return Seen("folder" if kind(entry) in (FOLDER, IMPLIED) else "other")


@contextlib.contextmanager
def merged(files: Sequence[Path], names: Sequence[str] = (), *, whole: bool = False) -> Iterator[LayerTree]:
    """See LayerTree."""
    tree = LayerTree(files, names, whole=whole)
    try:
        yield tree
    finally:
        tree.close()
