"""Merges image layers without unpacking them, and without root or an engine, into the tree that an engine's overlay shows."""

from __future__ import annotations

import contextlib
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from kit.errors import ImageError
from kit.images.sources.layer import IMPLIED, LINK, Folder, Key, Layer, kind, layer_of
from kit.images.sources.layer_bytes import Blob
from kit.images.sources.parallel_layer_reader import Reading
from kit.images.sources.tree_edits import Edit, Seen, settled, walk_key
from kit.images.sources.tree_stream import ERRORS, Entry

_FOLDER_MODE = 0o755


class LayerTree:
    """The merged tree of layers, lowest first. ImageError for a hard link whose target does not exist."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._root = Folder()
        self._hidden: set[Key] = set()
        self._opaque: set[Key] = set()
        self._folders_with_hidden: set[Key] = set()  # folders that contain a hidden or opaque path, at any depth
        self._below: dict[int, int] = {}  # hard link to a file of a lower layer -> that file
        for number in reversed(range(len(layers))):
            self._merge_below(number)

    def settled(self, edit: Edit) -> Edit:
        """The edit with its added folders placed in this tree; see `tree_edits.settled`."""
        return settled(edit, self._look)

    def entries(self) -> Iterator[Entry]:
        """The tree in walk order.

        Of several names of one file, the first gets the content and the others become hard links to it.
        """
        written: dict[int, str] = {}
        linked = self._linked()
        for path, entry in _walk(self._root, ""):
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
            yield member, self._layers[layer_of(source)].data(member) if member.isreg() else None

    def _merge_below(self, number: int) -> None:
        """Add a layer's entries that the layers above do not hide."""
        layer = self._layers[number]
        for entry, target in layer.hard.items():
            if isinstance(target, bytes):
                self._below[entry] = self._lower(number, target)
        if b"" not in self._opaque:
            self._show(self._root, layer.root, b"")
        for key in (*layer.hidden, *layer.opaque):
            parts = key.split(b"\0")
            self._folders_with_hidden.update(b"\0".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        self._hidden |= layer.hidden
        self._opaque |= layer.opaque
        layer.root = Folder()

    def _show(self, upper: Folder, lower: Folder, key: Key) -> None:
        """Add the entries of a lower layer's folder to the same folder of the merged tree. key: its path."""
        prefix = key + b"\0" if key else b""
        for name, entry in lower.inner.items():
            inner = prefix + name if self._folders_with_hidden else b""
            above = upper.inner.get(name)
            if above is None and inner not in self._hidden:
                if not isinstance(entry, Folder) or inner not in self._folders_with_hidden:
                    upper.inner[name] = entry
                    continue
                above = upper.inner[name] = Folder(entry.entry)
            if isinstance(above, Folder) and isinstance(entry, Folder) and self._lets_through(inner):
                self._show(above, entry, inner)

    def _lets_through(self, folder: Key) -> bool:
        return folder not in self._hidden and folder not in self._opaque

    def _lower(self, number: int, key: Key) -> int:
        """The file that the layers below `number` show at `key`. ImageError when there is none."""
        parts = key.split(b"\0")
        above = [b"\0".join(parts[:i]) for i in range(1, len(parts))]
        for lower in reversed(range(number)):
            layer = self._layers[lower]
            found = layer.root.at(key)
            if isinstance(found, int):
                return found
            ends = layer.hidden.intersection([*above, key]) or layer.opaque.intersection(above)
            if found is not None or ends or any(isinstance(layer.root.at(place), int) for place in above):
                break
        path = key.decode(errors=ERRORS).replace("\0", "/")
        name = self._layers[number].name
        raise ImageError(f"{name}: a hard link to {path}, which neither this layer nor one below holds")

    def _source(self, entry: int) -> int:
        """The entry that holds the content of a name: its own entry, or the target of the hard link."""
        while True:
            found = self._layers[layer_of(entry)].hard.get(entry)
            if found is None:
                return entry
            entry = self._below[entry] if isinstance(found, bytes) else found

    def _linked(self) -> set[int]:
        """Entries that may have more than one name."""
        return {self._source(entry) for layer in self._layers for entry in layer.hard}

    def _member(self, entry: int) -> tarfile.TarInfo:
        return self._layers[layer_of(entry)].member(entry)

    def _update(self, member: tarfile.TarInfo, source: int) -> None:
        """Set mode and time from the last hard link to the file, as every unpacker does."""
        layer = self._layers[layer_of(source)]
        latest = layer.latest.get(source)
        if latest is not None:
            header = layer.member(latest)
            member.mode, member.mtime = header.mode, header.mtime

    def _look(self, path: str) -> Seen | None:
        entry = self._root.at(walk_key(path))
        if entry is None:
            return None
        if isinstance(entry, int) and kind(entry) == LINK:
            return Seen("link", self._member(self._source(entry)).linkname)
        return Seen("folder" if isinstance(entry, Folder) else "other")


def _walk(folder: Folder, path: str) -> Iterator[tuple[str, int]]:
    """Path and entry of everything in a folder, at any depth. It uses no recursion, since paths may be deep."""
    waiting = [(path, folder, iter(sorted(folder.inner)))]
    while waiting:
        path, folder, names = waiting[-1]
        name = next(names, None)
        if name is None:
            waiting.pop()
            continue
        child = folder.inner[name]
        inner = f"{path}/{name.decode(errors=ERRORS)}" if path else name.decode(errors=ERRORS)
        if isinstance(child, Folder):
            yield inner, child.entry
            waiting.append((inner, child, iter(sorted(child.inner))))
        else:
            yield inner, child


@contextlib.contextmanager
def merged(layers: Sequence[Blob | Path], work: Path | None = None, *, whole: bool = False) -> Iterator[LayerTree]:
    """The merged tree of layers, lowest first, for the length of a block. A Path is a tar without a digest.

    work: a folder for layers that must be unpacked to disk; only compressed layers need it. whole: see Layer. ImageError for
    damaged layers. Digests are computed in the background, so a wrong digest may be reported only at the end of the block.
    """
    blobs = [Blob.whole(layer) if isinstance(layer, Path) else layer for layer in layers]
    with Reading(blobs, work, whole=whole) as reading:
        try:
            yield LayerTree(reading.layers())
        except ImageError:
            reading.verify()  # wrong bytes are the cause of any other error in them
            raise
        reading.verify()
