"""Sends a snapshot by content: first the files that the cluster lacks, then the tree as hard links to files."""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from kit.errors import RunError
from kit.files import untrusted_files
from kit.hosts.login_node import LoginNode
from kit.snapshots import tree_listing
from kit.snapshots.store import FOLDER, Store
from kit.snapshots.tree_listing import ListedFile, Listing

_MODES = {"file": 0o444, "program": 0o555}


def send(cluster: LoginNode, tree_wanted: Listing, folder: Path) -> None:
    """Send the missing files of a tree; its files are in `folder`. Two requests.

    RunError when a file has changed since it was scanned, or the cluster's disk refuses.
    """
    folders = cluster.folders
    by_name = {_name(entry): entry for entry in tree_wanted.entries if entry.kind != "link"}
    names = "".join(f"{name}\n" for name in by_name).encode()
    reply = cluster.connection.ask("lacking", folders, data=[names])
    lacking = [by_name[name] for name in reply.text("lacking").split() if name in by_name]
    partial = f".partial-ssh-{secrets.token_hex(8)}"
    tree = _tree(tree_wanted, f"trees/{partial}/made")
    constants = {"TREE": tree_wanted.hash, "PARTIAL": partial, "TREE_BYTES": len(tree)}
    sums = {"TREE_SUM": hashlib.sha256(tree).hexdigest()}
    with tempfile.TemporaryFile(prefix="kit-") as objects:
        size = _write_objects(objects, lacking, folder)
        data = _pieces(objects, io.BytesIO(tree))
        done = cluster.connection.ask("snapshot", {**folders, **constants, **sums, "OBJECTS": size}, data=data)
    if done.codes["result"] != 0:
        said = "".join(f"\n  {line}" for line in done.stderr.splitlines()[-5:])
        raise RunError(
            f"cluster {cluster.name}: the workspace cannot be stored there:{said}",
            hint="free some space there, then submit again",
        )


def fetch(cluster: LoginNode, tree_hash: str) -> None:
    """Fetch a tree into the snapshots of the cluster's mirror, if the cluster still has it. Its readers check every file."""
    store = Store(cluster.mirror.runs / f"{FOLDER}-{os.geteuid()}")
    if store.holds(tree_hash):
        return
    reply = cluster.connection.ask("tree", {**cluster.folders, "TREE": tree_hash})
    if not reply.text("tree").strip():
        return
    files = {one.path: one.content for one in reply.files}
    tree = tree_listing.parse(files.get("listing", b""), name=f"snapshot {tree_hash[:12]} on {cluster.name}")
    if tree.hash != tree_hash:
        raise RunError(
            f"cluster {cluster.name}: snapshot {tree_hash[:12]} on the cluster is damaged: its hash does not match",
            hint="--live",
        )
    with tempfile.TemporaryDirectory(prefix="kit-tree-") as folder:
        for entry in tree.entries:
            path = Path(folder) / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if entry.kind == "link":
                path.symlink_to(entry.content)
            else:
                path.write_bytes(files.get(f"files/{entry.path}", b""))
                path.chmod(_MODES[entry.kind])
        store.put_folder(tree, Path(folder))


def _name(entry: ListedFile) -> str:
    """The name of an object in the store."""
    return entry.content + (".x" if entry.kind == "program" else "")


def _write_objects(sink: IO[bytes], entries: Iterable[ListedFile], folder: Path) -> int:
    """Write an archive of files by their digests; return its size in bytes. Only one file at a time is in memory."""
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for entry in entries:
            path = folder / entry.path
            try:
                with untrusted_files.open_regular(path) as source:
                    content, changed = source.read(), os.fstat(source.fileno()).st_mtime
            except FileNotFoundError:
                raise RunError(f"{path} was removed while the job was submitted", hint="submit again") from None
            if hashlib.sha256(content).hexdigest() != entry.content:
                raise RunError(f"{path} was changed while the job was submitted", hint="submit again")
            member = tarfile.TarInfo(_name(entry))
            member.size, member.mode, member.mtime = len(content), _MODES[entry.kind], int(changed)
            archive.addfile(member, io.BytesIO(content))
    size = sink.tell()
    sink.seek(0)
    return size


def _tree(listing_of: Listing, root: str) -> bytes:
    """An archive of the tree: its files as hard links to objects, by paths relative to the store, and its listing."""
    sink = io.BytesIO()
    with tarfile.open(
        fileobj=sink, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        for name in (root, f"{root}/files", *(f"{root}/files/{one}" for one in sorted(listing_of.folders))):
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, int(time.time())
            archive.addfile(member)
        for entry in listing_of.entries:
            member = tarfile.TarInfo(f"{root}/files/{entry.path}")
            member.type = tarfile.SYMTYPE if entry.kind == "link" else tarfile.LNKTYPE
            member.linkname = entry.content if entry.kind == "link" else f"objects/{entry.content[:2]}/{_name(entry)}"
            archive.addfile(member)
        listing = tarfile.TarInfo(f"{root}/listing")
        listing.size, listing.mode = len(listing_of.text), 0o644
        archive.addfile(listing, io.BytesIO(listing_of.text))
    return sink.getvalue()


def _pieces(*parts: IO[bytes]) -> Iterator[bytes]:
    for part in parts:
        while chunk := part.read(1 << 20):
            yield chunk
