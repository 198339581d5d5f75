"""Archives and layouts: whole or not at all, one image of several by choice, and one error each for what is damaged."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.errors import ImageError, KitError, UsageError
from kit.images import importing, squash_and_lock
from kit.images.progress import Silent
from kit.images.sources import compressed_tars, oci
from tests.cluster import image_corpus as corpus

LAYER = corpus.tar_of([corpus.d("a"), corpus.f("a/b", "content" * 999)])
OTHER = corpus.tar_of([corpus.f("other")])


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


def run_import(source: str | Path, work: Path, *, platform: str = "") -> squash_and_lock.Outcome:
    (work / "project").mkdir(exist_ok=True)
    order = importing.ImportOrder(
        uri=str(source), name="x", project=work / "project", store=work / "store", platform=platform
    )
    return importing.run(order, Silent())


def listing(image: Path) -> set[str]:
    done = subprocess.run(["unsquashfs", "-d", "", "-l", str(image)], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


# C5: a cut at a member's boundary, in a header and in the data of a file; the whole tar is taken.
@pytest.mark.parametrize("cut", [512, 700, 1024, 1300, 5000, len(LAYER) - 10240 + 512])
def test_a_root_file_system_that_is_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    whole = corpus.tar_of([corpus.d("a"), corpus.f("a/b", b"x" * 3000), corpus.f("c", "1")])
    (tmp_path / "whole.tar").write_bytes(whole)
    assert "/c" in listing(run_import(tmp_path / "whole.tar", tmp_path).image)
    (tmp_path / "cut.tar").write_bytes(whole[: min(cut, 512 * 9)])
    with pytest.raises(ImageError, match=r"cut off|damaged tar|not a readable tar"):
        run_import(tmp_path / "cut.tar", tmp_path)


@pytest.mark.parametrize(
    ("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress), ("zst", None)]
)
def test_a_packed_root_file_system_is_taken_whole_and_refused_cut_off(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes] | None
) -> None:
    if pack is None:
        if not shutil.which("zstd"):
            pytest.skip("zstd is not installed")
        packed = subprocess.run(["zstd", "-q", "-c"], input=LAYER, capture_output=True, check=True).stdout
    else:
        packed = pack(LAYER)
    file = tmp_path / f"root.tar.{suffix}"
    file.write_bytes(packed)
    assert "/a/b" in listing(run_import(file, tmp_path).image)
    assert file.is_file()
    file.write_bytes(packed[:-20])
    with pytest.raises(ImageError, match=r"root\.tar|archive|damaged|cut off"):
        run_import(file, tmp_path)
    assert file.is_file()


def test_a_full_disk_is_said_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = corpus.oci_layout(tmp_path / "layout", [LAYER], {}, packed=True)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compressed_tars, "chunks", full)
    with pytest.raises(ImageError, match="No space left"):
        run_import(layout, tmp_path)


def _index(layout: Path, change: Callable[[dict[str, Any]], None]) -> None:
    index = json.loads((layout / "index.json").read_text())
    change(index)
    (layout / "index.json").write_text(json.dumps(index))


def _blob(layout: Path, content: object) -> dict[str, object]:
    raw = json.dumps(content).encode()
    sha256 = hashlib.sha256(raw).hexdigest()
    (layout / "blobs/sha256" / sha256).write_bytes(raw)
    kind = "application/vnd.oci.image.manifest.v1+json"
    return {"mediaType": kind, "digest": f"sha256:{sha256}", "size": len(raw)}


def test_an_artifact_before_the_image_is_passed_over(tmp_path: Path) -> None:
    layout = corpus.oci_layout(tmp_path / "layout", [LAYER], {})
    empty = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": f"sha256:{'0' * 64}", "size": 2}
    artifact = _blob(
        layout, {"schemaVersion": 2, "artifactType": "application/spdx+json", "config": empty, "layers": []}
    )
    _index(layout, lambda index: index["manifests"].insert(0, artifact))
    assert "/a/b" in listing(run_import(layout, tmp_path).image)


def two_images(work: Path) -> Path:
    """A layout with the tags `one` and `two`."""
    layout = corpus.oci_layout(work / "layout", [LAYER], {}, tag="one")
    other = corpus.oci_layout(work / "other", [OTHER], {}, tag="two")
    shutil.copytree(other / "blobs", layout / "blobs", dirs_exist_ok=True)
    (more,) = json.loads((other / "index.json").read_text())["manifests"]
    _index(layout, lambda index: index["manifests"].append(more))
    return layout


def test_of_several_images_one_is_named(tmp_path: Path) -> None:
    layout = two_images(tmp_path)
    with pytest.raises(UsageError, match=r"several images:\n  one\n  two") as caught:
        run_import(layout, tmp_path)
    assert ":TAG" in caught.value.hint
    assert "/other" in listing(run_import(f"{layout}:two", tmp_path).image)
    with pytest.raises(UsageError, match=r"no image has the tag 'three'; it has:\n  one\n  two"):
        run_import(f"{layout}:three", tmp_path)


def test_of_several_saved_images_one_is_named(tmp_path: Path) -> None:
    parts = [
        corpus.docker_archive(tmp_path / f"{n}.tar", [layer], {}, f"reg/{n}:1")
        for n, layer in (("a", LAYER), ("b", OTHER))
    ]
    manifests: list[object] = []
    with tarfile.open(tmp_path / "both.tar", "w") as out:
        for number, part in enumerate(parts):
            with tarfile.open(part) as archive:
                for member in archive.getmembers():
                    content = archive.extractfile(member).read()  # type: ignore[union-attr]
                    if member.name == "manifest.json":
                        (one,) = json.loads(content)
                        manifests.append(one | {"Layers": [f"{number}-{name}" for name in one["Layers"]]})
                        continue
                    member.name = f"{number}-{member.name}" if "layer" in member.name else member.name
                    out.addfile(member, io.BytesIO(content))
        raw = json.dumps(manifests).encode()
        member = tarfile.TarInfo("manifest.json")
        member.size = len(raw)
        out.addfile(member, io.BytesIO(raw))
    with pytest.raises(UsageError, match=r"reg/a:1\n  reg/b:1"):
        run_import(tmp_path / "both.tar", tmp_path)
    assert "/other" in listing(run_import(f"{tmp_path / 'both.tar'}:reg/b:1", tmp_path).image)


def test_another_architecture_is_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = corpus.oci_layout(tmp_path / "layout", [LAYER], {})
    monkeypatch.setattr(oci, "here", lambda: "arm64")
    with pytest.raises(ImageError, match=r"linux/amd64, and linux/arm64 is needed") as caught:
        run_import(layout, tmp_path)
    assert "--platform linux/amd64" in caught.value.hint
    assert run_import(layout, tmp_path, platform="linux/amd64").built


def test_the_image_of_this_platform_is_taken_from_an_index(tmp_path: Path) -> None:
    layout = two_images(tmp_path)
    platforms = ["arm64", oci.here()]

    def name(index: dict[str, Any]) -> None:
        for manifest, architecture in zip(index["manifests"], platforms, strict=True):
            manifest["platform"] = {"os": "linux", "architecture": architecture}
            del manifest["annotations"]

    _index(layout, name)
    assert "/other" in listing(run_import(layout, tmp_path).image)


def _self_linked(layout: Path) -> None:
    # A manifest cannot hold its own digest; an index file without one can be its own manifest by a link.
    index = layout / "index.json"
    inner: dict[str, object] = {"schemaVersion": 2, "manifests": json.loads(index.read_text())["manifests"]}
    for _ in range(12):
        inner = {"schemaVersion": 2, "manifests": [_blob(layout, inner)]}
    index.write_text(json.dumps(inner))


def _config(layout: Path, **changes: object) -> None:
    (manifest,) = json.loads((layout / "index.json").read_text())["manifests"]
    found = json.loads((layout / "blobs/sha256" / str(manifest["digest"])[7:]).read_text())
    config = json.loads((layout / "blobs/sha256" / found["config"]["digest"][7:]).read_text())
    found["config"] = found["config"] | _blob(layout, config | changes) | {"mediaType": found["config"]["mediaType"]}
    _index(layout, lambda index: index.update(manifests=[_blob(layout, found)]))


def _link_to_itself(layout: Path) -> None:
    (manifest,) = json.loads((layout / "index.json").read_text())["manifests"]
    place = layout / "blobs/sha256" / str(manifest["digest"])[7:]
    place.unlink()
    place.symlink_to(place.name)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no manifests": lambda layout: (layout / "index.json").write_text("{}"),
    "a list": lambda layout: (layout / "index.json").write_text("[]"),
    "a number": lambda layout: (layout / "index.json").write_text("1"),
    "not JSON": lambda layout: (layout / "index.json").write_text("{"),
    "nested JSON": lambda layout: (layout / "index.json").write_text("[" * 100_000),
    "an empty index": lambda layout: (layout / "index.json").write_text('{"manifests": []}'),
    "an odd digest": lambda layout: _index(layout, lambda i: i["manifests"][0].update(digest="md5:0")),
    "a digest that leads out": lambda layout: _index(
        layout, lambda i: i["manifests"][0].update(digest="sha256:../../x")
    ),
    "a number for a digest": lambda layout: _index(layout, lambda i: i["manifests"][0].update(digest=1)),
    "indexes without end": _self_linked,
    "a config that is a list": lambda layout: _config(layout, config=[1]),
    "an environment that is a number": lambda layout: _config(layout, config={"Env": 1}),
    "an environment of numbers": lambda layout: _config(layout, config={"Env": [1]}),
    "a command that is a table": lambda layout: _config(layout, config={"Cmd": {}}),
    "labels that are a list": lambda layout: _config(layout, config={"Labels": ["x"]}),
    "volumes that are a number": lambda layout: _config(layout, config={"Volumes": 1}),
    "a manifest that is a link to itself": _link_to_itself,
    "no blobs": lambda layout: shutil.rmtree(layout / "blobs"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_an_odd_description_is_one_error(tmp_path: Path, what: str) -> None:
    layout = corpus.oci_layout(tmp_path / "layout", [LAYER], {})
    DAMAGE[what](layout)
    try:
        run_import(layout, tmp_path)
    except KitError as error:
        assert str(layout) in error.message
    else:
        assert what == "an environment of numbers"


def test_no_volume_leads_out_of_the_image(tmp_path: Path) -> None:
    """C11: /etc/fstab bound what lies beside the unpacked image on the node."""
    layout = corpus.oci_layout(tmp_path / "layout", [LAYER], {"Volumes": {"/../../etc/passwd": {}, "/data": {}}})
    image = run_import(layout, tmp_path).image
    fstab = subprocess.run(["unsquashfs", "-cat", str(image), "etc/fstab"], capture_output=True, text=True, check=True)
    assert [line.split()[:2] for line in fstab.stdout.splitlines()] == [
        ["${ENROOT_ROOTFS}/data", "/data"],
        ["${ENROOT_ROOTFS}/etc/passwd", "/etc/passwd"],
    ]


def test_blobs_may_be_named_by_sha512(tmp_path: Path) -> None:
    layout = corpus.oci_layout(tmp_path / "layout", [LAYER], {})
    (layout / "blobs/sha512").mkdir()
    (manifest,) = json.loads((layout / "index.json").read_text())["manifests"]
    found = json.loads((layout / "blobs/sha256" / manifest["digest"][7:]).read_text())
    digest = hashlib.sha512(LAYER).hexdigest()
    (layout / "blobs/sha512" / digest).write_bytes(LAYER)
    found["layers"][0]["digest"] = f"sha512:{digest}"
    _index(layout, lambda index: index.update(manifests=[_blob(layout, found)]))
    assert "/a/b" in listing(run_import(layout, tmp_path).image)


def test_an_unpacked_docker_save_is_an_image(tmp_path: Path) -> None:
    archive = corpus.docker_archive(tmp_path / "saved.tar", [LAYER], {}, "x:1")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "saved")
    assert "/a/b" in listing(run_import(tmp_path / "saved", tmp_path).image)


def test_a_gnu_sparse_file_is_taken(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with (tmp_path / "root/s").open("wb") as file:
        file.seek(300_000)
        file.write(b"end")
    subprocess.run(
        ["tar", "--format=gnu", "-S", "-cf", str(tmp_path / "s.tar"), "-C", str(tmp_path / "root"), "s"], check=True
    )
    image = run_import(tmp_path / "s.tar", tmp_path).image
    found = subprocess.run(["unsquashfs", "-cat", str(image), "s"], capture_output=True, check=True).stdout
    assert found == bytes(300_000) + b"end"


class Warned(Silent):
    """What the user is warned of."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def warn(self, text: str) -> None:
        """See Report."""
        self.said.append(text)


def test_access_control_lists_are_warned_of(tmp_path: Path) -> None:
    acl = {"SCHILY.acl.access": "user::rw-,user:1000:rw-,group::r--,mask::rw-,other::r--"}
    tar = corpus.tar_of([corpus.f("a", "1"), corpus.f("b", "1", pax=acl), corpus.d("c", pax=acl), corpus.f("c/d", "1")])
    (tmp_path / "root.tar").write_bytes(tar)
    (tmp_path / "project").mkdir()
    order = importing.ImportOrder(
        uri=str(tmp_path / "root.tar"), name="x", project=tmp_path / "project", store=tmp_path / "store"
    )
    report = Warned()
    importing.run(order, report)
    assert report.said == ["b and 1 more: access control lists are not kept, only owner, group and mode"]
