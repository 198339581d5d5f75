"""A small corpus of files that nobody means well with, made here: each has one error, which names the file and the fault."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import config
from kit.errors import KitError
from kit.hosts import status
from kit.images.sources import oci
from kit.record import run_facts
from kit.schema.run_paths import RunPaths


def tar(members: dict[str, object]) -> bytes:
    """An archive; what is not bytes becomes JSON."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, value in members.items():
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def saved(**changes: object) -> dict[str, object]:
    """What `docker save` writes, with one entry changed."""
    entry = {"Config": "c.json", "RepoTags": ["a:1"], "Layers": ["l.tar"], **changes}
    return {
        "manifest.json": [entry],
        "c.json": {"architecture": oci.here(), "os": "linux", "config": {}},
        "l.tar": tar({"etc/passwd": b"root"}),
    }


ARCHIVES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a readable image archive: "),
    "no-tar": (b"not a tar" * 200, "not a readable image archive: "),
    "nothing-in-it": (tar({}), "neither an index.json nor a manifest.json"),
    "cut-off": (tar(saved())[:700], "not a readable image archive: "),
    "cut-off-gzip": (gzip.compress(tar(saved()))[:-40], "cut off gzip data"),
    "manifest-no-json": (tar({"manifest.json": b"{"}), "not a readable image archive: "),
    "manifest-a-number": (tar({"manifest.json": 3}), "not a readable image archive: "),
    "manifest-deep": (tar({"manifest.json": b"[" * 100_000}), "JSON that is nested too deep"),
    "no-config": (
        tar({**saved(), "manifest.json": [{"RepoTags": ["a:1"], "Layers": []}]}),
        "not a readable image archive: ",
    ),
    "config-not-there": (tar(saved(Config="other.json")), "other.json is missing"),
    "config-outside": (tar(saved(Config="../../../etc/passwd")), "passwd is missing"),
    "layer-not-there": (tar(saved(Layers=["other.tar"])), "not a readable image archive: "),
    "layers-a-text": (tar(saved(Layers="l.tar")), "not a readable image archive: "),
    "config-a-list": (tar({**saved(), "c.json": []}), "not a readable image archive: "),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_is_one_error(tmp_path: Path, name: str) -> None:
    content, said = ARCHIVES[name]
    (tmp_path / "work").mkdir()
    (tmp_path / "image.tar").write_bytes(content)
    with pytest.raises(KitError) as caught:
        oci.read_image(tmp_path / "image.tar", tmp_path / "work")
    assert said in caught.value.message
    assert "\n" not in caught.value.message


LAYOUTS: dict[str, tuple[str, str]] = {
    "no-json": ("{", "not a readable image archive: "),
    "a-list": ("[]", "not a readable image archive: "),
    "no-manifests": ("{}", "not a readable image archive: "),
    "empty": ('{"manifests": []}', "no image for linux/"),
    "digest-outside": (
        '{"manifests": [{"digest": "sha256:../../../etc/passwd"}]}',
        "is neither a sha256 nor a sha512 digest",
    ),
    "digest-not-there": (json.dumps({"manifests": [{"digest": "sha256:" + "0" * 64}]}), "No such file"),
    "digest-a-number": ('{"manifests": [{"digest": 3}]}', "not a readable image archive: "),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_one_error(tmp_path: Path, name: str) -> None:
    index, said = LAYOUTS[name]
    layout = tmp_path / "layout"
    (layout / "blobs" / "sha256").mkdir(parents=True)
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (layout / "index.json").write_text(index)
    with pytest.raises(KitError) as caught:
        oci.read_image(layout, tmp_path)
    assert said in caught.value.message
    assert "\n" not in caught.value.message


JOBS: dict[str, tuple[Callable[[Path], object], str]] = {
    "not-utf-8": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "not UTF-8 text"),
    "zeros": (lambda path: path.write_bytes(b"\0" * 4096), "not valid TOML"),
    "deep": (lambda path: path.write_text("a = " + "[" * 3000 + "]" * 3000), "more than 100 tables"),
    "folder": (lambda path: path.mkdir(), "this is a folder"),
    "fifo": (os.mkfifo, "not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "link-to-itself": (lambda path: path.symlink_to(path), "job.toml"),
    "extends-itself": (lambda path: path.write_text('extends = "job.toml"'), "builds on this file itself"),
    "extends-a-device": (
        lambda path: path.write_text('extends = "/dev/zero"'),
        "/dev/zero: this is not a regular file",
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_job_file_is_one_error(tmp_path: Path, name: str) -> None:
    make, said = JOBS[name]
    make(tmp_path / "job.toml")
    with pytest.raises(KitError) as caught:
        config.load_job(tmp_path / "job.toml", cluster="local")
    assert said in caught.value.message
    assert len(caught.value.message.splitlines()) <= 2


RUNS: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "damaged: "),
    "cut-off": (lambda path: path.write_text('{"schema": 1, "run_id":'), "damaged: "),
    "newer-kit": (lambda path: path.write_text('{"schema": 99}'), "damaged: "),
    "a-list": (lambda path: path.write_text("[]"), "damaged: "),
    "deep": (lambda path: path.write_text("[" * 100_000), "damaged: "),
    "fifo": (os.mkfifo, "not a regular file"),
    "not-utf-8": (lambda path: path.write_bytes(b"\xff\xfe"), "damaged: "),
    "title": (lambda path: path.write_text('{"\x1b]0;mine\x07": 1}'), "damaged: "),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_folder_is_unreadable_with_its_reason(tmp_path: Path, name: str) -> None:
    make, said = RUNS[name]
    run = tmp_path / "digits-1"
    RunPaths(run).state.mkdir(parents=True)
    make(RunPaths(run).manifest)
    (one,) = status.read_statuses([run], queue=lambda _: {})
    assert one.state == run_facts.UNREADABLE
    assert said in one.reason
    assert "\n" not in one.reason
    assert "\x1b" not in one.reason
