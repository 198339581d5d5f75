"""Layers are read in place: any order, any compression, bounded memory and disk, and never without their digests."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from kit.errors import ImageError
from kit.images.sources import gzip_layer_reader, layer_bytes, layer_tree, oci, tar_headers, tree_edits, tree_stream
from kit.images.sources.gzip_layer_reader import GzipTar
from kit.images.sources.layer_bytes import Blob
from tests.cluster import image_corpus as corpus
from tests.support import REPO


def stored(work: Path, content: bytes, name: str = "x") -> Blob:
    (work / name).write_bytes(content)
    return Blob.whole(work / name)


@pytest.fixture
def small_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip_layer_reader, "_MARK_EVERY_BYTES", 20_000)
    monkeypatch.setattr(gzip_layer_reader, "_READ_BYTES", 700)
    monkeypatch.setattr(gzip_layer_reader, "_CHUNK_BYTES", 3000)
    monkeypatch.setattr(gzip_layer_reader, "_KEPT_BYTES", 100)


@pytest.mark.usefixtures("small_marks")
@pytest.mark.parametrize("limit", [1 << 40, 50_000], ids=["marks", "disk"])
def test_a_gzip_layer_is_read_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(gzip_layer_reader, "_REPEATED_MIN_BYTES", limit)
    dice = random.Random(7)
    content = b"".join(dice.randbytes(dice.randrange(2000)) + bytes(dice.randrange(2000)) for _ in range(300))
    half = len(content) // 2
    packed = gzip.compress(content[:half]) + gzip.compress(content[half:]) + bytes(900)
    tar = GzipTar(stored(tmp_path, packed), tmp_path)
    assert b"".join(layer_bytes.chunks(tar)) == content
    for _ in range(300):
        place, size = dice.randrange(len(content) + 50), dice.randrange(9000)
        assert tar.read_at(place, size) == content[place : place + size]
    tar.close()


@pytest.mark.usefixtures("small_marks")
@pytest.mark.parametrize("cut", [1, 9, 500, 20_000])
def test_a_gzip_layer_that_is_cut_off_is_damaged(tmp_path: Path, cut: int) -> None:
    packed = gzip.compress(os.urandom(60_000))
    tar = GzipTar(stored(tmp_path, packed[:-cut]), tmp_path)
    with pytest.raises(ImageError, match="damaged or cut off gzip data"):
        list(layer_bytes.chunks(tar))
    tar.close()


def test_quick_headers_are_tarfiles(tmp_path: Path) -> None:
    """The whole corpus, member by member, beside tarfile's own reading; and with each byte of a header changed."""
    tar = corpus.batch(corpus.BATCH | corpus.WITHOUT_ENGINE)[0]
    source = stored(tmp_path, tar).open()
    headers = tar_headers.Headers(source)
    with tarfile.open(tmp_path / "x", encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            found = headers.at(member.offset)
            assert (found.name, found.type) == (member.name, member.type)
            assert found.target == (member.linkname if member.issym() or member.islnk() else found.target)
            again = headers.member(member.offset)
            for field in ("type", "mode", "size", "mtime", "linkname", "offset_data", "devmajor", "devminor"):
                assert getattr(again, field) == getattr(member, field), (member.name, field)
    source.close()


def blobs(work: Path, tars: list[bytes], *, packed: bool = True) -> list[Blob]:
    layout = corpus.oci_layout(work / "layout", tars, {}, packed=packed)
    return list(oci.read_image(layout, work).layers)


def paths(layers: list[Blob], work: Path) -> dict[str, bytes]:
    with layer_tree.merged(layers, work) as tree:
        return {member.name: data.read(1 << 20) if data else b"" for member, data in tree.entries()}


def test_only_the_largest_layer_is_unpacked(tmp_path: Path) -> None:
    tars = [corpus.tar_of([corpus.f(f"f{n}", os.urandom(size))]) for n, size in enumerate((9000, 200_000, 40_000))]
    work = tmp_path / "work"
    work.mkdir()
    with layer_tree.merged(blobs(tmp_path, tars), work) as tree:
        assert [(file.name, file.stat().st_size) for file in work.iterdir()] == [("layer-1.tar", len(tars[1]))]
        assert [member.name for member, _ in tree.entries()] == ["f0", "f1", "f2"]
    for number, part in enumerate(blobs(tmp_path / "plain", tars, packed=False)):
        assert (part.file.stat().st_size, part.start) == (len(tars[number]), 0)


def test_plain_layers_of_an_archive_need_no_copy(tmp_path: Path) -> None:
    tars = [corpus.tar_of([corpus.f("a", "1")]), corpus.tar_of([corpus.f("b", "2")])]
    archive = corpus.docker_archive(tmp_path / "saved.tar", tars, {}, "a:1")
    work = tmp_path / "work"
    work.mkdir()
    assert paths(list(oci.read_image(archive, work).layers), work) == {"a": b"1", "b": b"2"}
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_a_layer_without_its_digest_fails_whatever_was_read_of_it(tmp_path: Path, number: int, *, packed: bool) -> None:
    """Legal bytes, only others: nothing but the digest can tell."""
    tars = [corpus.tar_of([corpus.f("a", "1" * 9999)]), corpus.tar_of([corpus.f("b", "2")])]
    layers = blobs(tmp_path, tars, packed=packed)
    other = corpus.tar_of([corpus.f("evil", "1")])
    layers[number].file.write_bytes(gzip.compress(other) if packed else other)
    layers[number] = Blob(
        file=layers[number].file, size=layers[number].file.stat().st_size, digest=layers[number].digest, name="layer"
    )
    with (
        pytest.raises(ImageError, match="instead of sha256:"),
        layer_tree.merged(layers, tmp_path) as tree,
    ):
        list(tree.entries())


def test_sha512_digests(tmp_path: Path) -> None:
    layout = corpus.oci_layout(tmp_path / "layout", [corpus.tar_of([corpus.f("a", "1")])], {}, packed=True)
    (layout / "blobs/sha512").mkdir()

    def moved(descriptor: dict[str, str], change: bytes = b"") -> None:
        old = layout / "blobs/sha256" / descriptor["digest"].partition(":")[2]
        content = change or old.read_bytes()
        sha512 = hashlib.sha512(content).hexdigest()
        (layout / "blobs/sha512" / sha512).write_bytes(content)
        descriptor["digest"] = f"sha512:{sha512}"

    index = json.loads((layout / "index.json").read_text())
    (descriptor,) = index["manifests"]
    manifest = json.loads((layout / "blobs/sha256" / descriptor["digest"][7:]).read_text())
    for one in (manifest["config"], *manifest["layers"]):
        moved(one)
    moved(descriptor, json.dumps(manifest).encode())
    (layout / "index.json").write_text(json.dumps(index))
    shutil.rmtree(layout / "blobs/sha256")
    assert paths(list(oci.read_image(layout, tmp_path).layers), tmp_path) == {"a": b"1"}
    (layer,) = oci.read_image(layout, tmp_path).layers
    layer.file.write_bytes(layer.file.read_bytes() + bytes(1))
    with pytest.raises(ImageError, match="instead of sha512:"):
        paths(list(oci.read_image(layout, tmp_path).layers), tmp_path)


def test_quick_headers_are_written_as_tarfile_writes_them() -> None:
    for case in (*corpus.BATCH.values(), *corpus.WITHOUT_ENGINE.values()):
        for layer in case:
            with tarfile.open(fileobj=io.BytesIO(corpus.tar_of(layer)), errors="surrogateescape") as archive:
                for member in archive:
                    tree_edits.normalise(member, member.name)
                    (*_, header) = (chunk for chunk in tree_stream.encoded(member, None))
                    assert header == member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"), member.name


# 128 bytes a file and a folder for ten: 8 MB for these, 51 for 400,000. With whole paths as keys and a set of hashes it was 17 MB.
_FILES, _MB = 40_000, 10

_MEASURED = """
import resource, sys
from pathlib import Path
from kit.images.sources import layer_tree, tree_stream
from kit.images.sources.tree_edits import Edit
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
with layer_tree.merged([Path(sys.argv[1])]) as tree:
    edit = Edit(additions=(), dropped=())
    headers = (chunk for chunk in tree_stream.edited(tree.entries(), edit, Path(sys.argv[2])) if len(chunk) == 512)
    files = sum(header[156:157] == b"0" for header in headers)
print(files, peak() - before)
"""


def test_memory_is_bounded_by_the_number_of_files(tmp_path: Path) -> None:
    """H8. Whatever a file holds, what is kept of it is one number and its name."""
    with (tmp_path / "many.tar").open("wb") as out:
        for number in range(_FILES):
            folder = f"opt/venv/lib/python3.11/site-packages/package_{number // 1000:04}/module_{number // 10:05}"
            if number % 10 == 0:
                out.write(b"".join(tree_stream.encoded(_member(folder, tarfile.DIRTYPE), None)))
            out.write(b"".join(tree_stream.encoded(_member(f"{folder}/file_{number:06}.py", tarfile.REGTYPE), None)))
        out.write(bytes(1024))
    argv = [sys.executable, "-c", _MEASURED, str(tmp_path / "many.tar"), str(tmp_path)]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=True)
    files, kilobytes = map(int, done.stdout.split())
    assert files == _FILES
    assert kilobytes < _MB * 1024, kilobytes


def _member(name: str, type_: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = type_
    return member
