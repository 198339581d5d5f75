"""Compares two images, and a rebuild that gives other bytes from the same inputs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kit.errors import LockError
from kit.images import difference, image_lock, importing, squash_and_lock
from kit.images.progress import Silent
from kit.images.sources import oci
from kit.images.sources.layer_bytes import Blob
from tests.cluster import image_corpus as corpus


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


def image(work: Path, name: str, members: list[corpus.Member], config: dict[str, object]) -> squash_and_lock.Outcome:
    layout = corpus.oci_layout(work / f"{name}-layout", [corpus.tar_of(members)], config)
    (work / "project").mkdir(exist_ok=True)
    order = importing.ImportOrder(uri=str(layout), name=name, project=work / "project", store=work / "store")
    return importing.run(order, Silent())


SITE = "usr/lib/python3/site-packages"


def test_packages_files_environment_and_configuration_are_told_apart(tmp_path: Path) -> None:
    one = [
        corpus.f(f"{SITE}/numpy-1.0.dist-info/METADATA"),
        corpus.f("same", "1"),
        corpus.f("with blank", "1"),
        corpus.f("x"),
    ]
    two = [
        corpus.f(f"{SITE}/numpy-2.0.dist-info/METADATA"),
        corpus.f("same", "1"),
        corpus.f("with blank", "2"),
        corpus.f("y"),
    ]
    a = image(tmp_path, "a", one, {"Env": ["A=1", "B=2"], "WorkingDir": "/w"}).image
    b = image(tmp_path, "b", two, {"Env": ["A=1", "B=3"], "WorkingDir": "/v"}).image
    found = difference.between(a, b)
    assert found.packages == ("~ pip:numpy 1.0 -> 2.0",)
    assert found.environment == ("~ B 2 -> 3",)
    assert found.configuration == ("~ workdir /w -> /v",)
    assert {line for line in found.files if "etc/" not in line} == {
        f"- {SITE}/numpy-1.0.dist-info",
        f"- {SITE}/numpy-1.0.dist-info/METADATA",
        f"+ {SITE}/numpy-2.0.dist-info",
        f"+ {SITE}/numpy-2.0.dist-info/METADATA",
        "~ with blank",
        "- x",
        "+ y",
        "- w",
        "+ v",
    }
    assert not difference.between(a, a).any


def test_an_image_is_found_by_name_digest_and_path(tmp_path: Path) -> None:
    made = image(tmp_path, "a", [corpus.f("x")], {})
    for name in ("a", made.lock.sha256[:12], made.lock.digest, str(made.image)):
        assert difference.find(name, project=tmp_path / "project", store_dir=tmp_path / "store") == made.image
    with pytest.raises(LockError, match="no such image"):
        difference.find("nothing", project=tmp_path / "project", store_dir=tmp_path / "store")


def test_other_bytes_from_the_same_inputs_leave_the_lock_and_name_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = image(tmp_path, "a", [corpus.f("opt/stable", "1"), corpus.f("opt/changes", "1")], {})
    before = made.lock_file.read_text()
    read = oci.read_image
    other = corpus.tar_of([corpus.f("opt/stable", "1"), corpus.f("opt/changes", "2")])

    def reads(*arguments: object, **options: object) -> oci.OciImage:
        found = read(*arguments, **options)  # type: ignore[arg-type]
        (tmp_path / "other.tar").write_bytes(other)
        return replace(found, layers=(Blob.whole(tmp_path / "other.tar"),))

    # A build whose steps give other bytes each time: the inputs stay, what is read does not.
    monkeypatch.setattr(oci, "read_image", reads)
    made.image.rename(tmp_path / "aside")  # or nothing would be made again
    order = importing.ImportOrder(
        uri=made.lock.source, name="a", project=tmp_path / "project", store=tmp_path / "store"
    )
    with pytest.raises(LockError, match="the same inputs gave other bytes"):
        importing.run(order, Silent())
    assert made.lock_file.read_text() == before
    (tmp_path / "aside").rename(made.image)
    monkeypatch.setattr(squash_and_lock, "unchanged", lambda target: None)
    with pytest.raises(LockError) as caught:
        importing.run(order, Silent())
    assert "~ opt/changes" in caught.value.message
    assert "opt/stable" not in caught.value.message
    assert caught.value.exit_code == 5
    assert made.lock_file.read_text() == before
    relocked = importing.run(
        importing.ImportOrder(uri=order.uri, name="a", project=order.project, store=order.store, relock=True), Silent()
    )
    assert image_lock.read_lock(made.lock_file).sha256 == relocked.lock.sha256 != made.lock.sha256


def test_the_command_ends_with_1_where_images_differ(tmp_path: Path) -> None:
    a = image(tmp_path, "a", [corpus.f("x", "1")], {}).image
    b = image(tmp_path, "b", [corpus.f("x", "2")], {}).image
    done = subprocess.run(
        [sys.executable, "-m", "kit", "diff-images", str(a), str(b)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "files:\n  ~ x\n")
    done = subprocess.run(
        [sys.executable, "-m", "kit", "diff-images", str(a), str(a)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "no difference\n")
