"""Inputs of a build: the context and its digest, apt sources, wheels, and names of images."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from kit.config import load_model
from kit.errors import ConfigError, ImageError, UsageError
from kit.images.build import bootstrap_base, build_context, host_apt_sources, wheels
from kit.images.sources import image_reference
from kit.images.sources.engine_hints import registry_hint
from kit.schema.image import Bootstrap, ImageSpec, PythonPackages
from tests.support import REPO

SPEC = ImageSpec.model_validate({"base": {"reference": "x"}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "image"
    (made / "sub").mkdir(parents=True)
    (made / "Dockerfile").write_text("FROM x\n")
    (made / "sub/run.sh").write_text("#!/bin/sh\n")
    (made / "sub/run.sh").chmod(0o755)
    (made / "link").symlink_to("sub/run.sh")
    (made / "image.toml").write_text("")
    (made / "image.lock").write_text("")
    return made


def digest(folder: Path, spec: ImageSpec = SPEC) -> str:
    return build_context.digest(spec, build_context.scan(folder))


def test_the_digest_does_not_depend_on_umask_times_or_the_lock(folder: Path) -> None:
    before = digest(folder)
    (folder / "Dockerfile").chmod(0o600)
    (folder / "sub/run.sh").chmod(0o700)
    os.utime(folder / "Dockerfile", (0, 0))
    (folder / "image.lock").write_text("other")
    (folder / "image.toml").write_text("# a comment")
    assert digest(folder) == before


@pytest.mark.parametrize("change", ["content", "mode", "target", "name", "spec"])
def test_the_digest_changes_with(folder: Path, change: str) -> None:
    before, spec = digest(folder), SPEC
    if change == "content":
        (folder / "Dockerfile").write_text("FROM y\n")
    elif change == "mode":
        (folder / "sub/run.sh").chmod(0o644)
    elif change == "target":
        (folder / "link").unlink()
        (folder / "link").symlink_to("elsewhere")
    elif change == "name":
        (folder / "Dockerfile").rename(folder / "Containerfile")
    else:
        spec = ImageSpec.model_validate({"base": {"reference": "y"}})
    assert digest(folder, spec) != before


def test_the_bound_on_memory_and_the_description_decide_nothing(folder: Path) -> None:
    table = {"base": {"reference": "x"}, "description": "words", "squash": {"memory": "1G"}}
    assert digest(folder, ImageSpec.model_validate(table)) == digest(folder)


def test_dockerignore_is_heeded(folder: Path) -> None:
    (folder / ".dockerignore").write_text("# a comment\nsub/*\n!sub/keep\n")
    (folder / "sub/keep").write_text("")
    assert {file.name for file in build_context.scan(folder)} == {".dockerignore", "Dockerfile", "link", "sub/keep"}


def test_the_stream_is_a_tar_of_the_files_and_the_wheels(folder: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    wheel.write_bytes(b"w" * 1000)
    content = b"".join(build_context.stream(build_context.scan(folder), [wheel]))
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        found = {member.name: (member.mode, member.mtime, member.uid) for member in archive.getmembers()}
        inner = archive.extractfile("wheels/a-1-py3-none-any.whl")
        assert inner is not None
        assert inner.read() == b"w" * 1000
        assert archive.getmember("link").linkname == "sub/run.sh"
    assert found["Dockerfile"] == (0o644, 0, 0)
    assert found["sub/run.sh"] == (0o755, 0, 0)
    assert "image.lock" not in found


def test_a_fifo_in_the_folder_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(ImageError, match="neither a file nor a link"):
        build_context.scan(folder)


def test_apt_sources_of_the_suite_in_both_formats(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://off/ bookworm main\ndeb-src http://a/ bookworm main\n"
        "deb [arch=amd64 signed-by=/k] http://a/ bookworm main contrib # words\ndeb http://a/ trixie main\n"
    )
    (tmp_path / "sources.list.d/b.sources").write_text(
        "Types: deb deb-src\nURIs: http://b/\nSuites: bookworm bookworm-updates\nComponents: main\n"
        "Signed-By:\n -----BEGIN PGP\n .\n words\n\n"
        "Types: deb\nURIs: http://c/\nSuites: bookworm-security\nComponents: main\nSigned-By: /keys/c.gpg\n\n"
        "Enabled: no\nTypes: deb\nURIs: http://d/\nSuites: bookworm\nComponents: main\n"
    )
    (tmp_path / "sources.list.d/old.list.bak").write_text("deb http://e/ bookworm main\n")
    assert host_apt_sources.lines("bookworm", ["main"], root=tmp_path) == [
        "deb [arch=amd64 signed-by=/k] http://a/ bookworm main",
        "deb http://b/ bookworm main",
        "deb http://b/ bookworm-updates main",
        "deb [signed-by=/keys/c.gpg] http://c/ bookworm-security main",
    ]
    assert host_apt_sources.lines("noble", ["main"], root=tmp_path) == []


def test_a_bootstrap_is_known_again_by_what_it_is_made_of() -> None:
    one = Bootstrap(suite="bookworm", packages=("bash",))
    assert bootstrap_base.key(one) == bootstrap_base.key(Bootstrap(suite="bookworm", packages=("bash",)))
    assert bootstrap_base.key(one) != bootstrap_base.key(Bootstrap(suite="bookworm", packages=("bash", "tar")))


HEX = "0" * 64


@pytest.mark.parametrize(
    ("uri", "plain", "enroot"),
    [
        ("docker://reg.io#a/b:1", "reg.io/a/b:1", "docker://reg.io#a/b:1"),
        ("docker://me@reg.io:5000#a", "reg.io:5000/a:latest", "docker://me@reg.io:5000#a:latest"),
        ("docker://reg.io/a/b", "reg.io/a/b:latest", "docker://reg.io#a/b:latest"),
        ("localhost/a:x", "localhost/a:x", "docker://localhost#a:x"),
        ("docker://ns/a", "docker.io/ns/a:latest", "docker://ns/a:latest"),
        ("debian:12", "docker.io/library/debian:12", "docker://library/debian:12"),
        (f"reg.io/a:tag@sha256:{HEX}", f"reg.io/a@sha256:{HEX}", f"docker://reg.io#a@sha256:{HEX}"),
    ],
)
def test_names_of_images(uri: str, plain: str, enroot: str) -> None:
    found = image_reference.parse(uri)
    assert (found.plain, found.enroot) == (plain, enroot)


@pytest.mark.parametrize(
    "uri", ["", "docker://", "Upper/x", "reg.io#A", "a b", "x:$(id)", "reg.io#a@sha256:12", "a;b", "a'b", "-rf"]
)
def test_what_is_no_name_is_refused(uri: str) -> None:
    with pytest.raises(UsageError):
        image_reference.parse(uri)


@pytest.mark.parametrize("uri", ["dockerd://a b", "dockerd://reg#a", "podman://a@sha256:0", "dockerd://$(id)"])
def test_what_enroot_would_refuse_of_an_engine_is_refused(uri: str) -> None:
    with pytest.raises(UsageError):
        image_reference.local(uri)


def wheel_index(root: Path) -> tuple[Path, str]:
    """A package index with one package; its folder and the package's sha256."""
    name, dist = "kit_test_wheel-1.0-py3-none-any.whl", "kit_test_wheel-1.0.dist-info"
    files = {
        "kit_test_wheel.py": "",
        f"{dist}/METADATA": "Metadata-Version: 2.1\nName: kit-test-wheel\nVersion: 1.0\n",
        f"{dist}/WHEEL": "Wheel-Version: 1.0\nGenerator: kit\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    folder = root / "index/kit-test-wheel"
    folder.mkdir(parents=True)
    record = "".join(f"{path},sha256={_record_hash(text)},{len(text)}\n" for path, text in files.items())
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, text in {**files, f"{dist}/RECORD": f"{record}{dist}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
    return root / "index", hashlib.sha256((folder / name).read_bytes()).hexdigest()


def _record_hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def host_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose pip knows one empty index, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (tmp_path / "empty/kit-test-wheel").mkdir(parents=True)
    (tmp_path / "empty/kit-test-wheel/index.html").write_text("")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "empty").as_uri())
    return tmp_path


def test_wheels_come_from_an_extra_index_only_when_the_host_lacks_them(host_pip: Path) -> None:
    index, sha256 = wheel_index(host_pip)
    (host_pip / "requirements.lock").write_text(f"kit-test-wheel==1.0 --hash=sha256:{sha256}\n")
    said: list[str] = []
    with pytest.raises(ImageError, match="could not be fetched"):
        wheels.fetch(PythonPackages(), host_pip, fresh=False, on_line=said.append)
    packages = PythonPackages(extra_indexes=(index.as_uri(),))
    (found,) = wheels.fetch(packages, host_pip, fresh=False, on_line=said.append)
    assert hashlib.sha256(found.read_bytes()).hexdigest() == sha256
    assert any("extra indexes" in line for line in said)
    os.environ["PIP_INDEX_URL"] = "file:///nowhere"
    assert wheels.fetch(packages, host_pip, fresh=False, on_line=said.append) == (found,)


def test_a_wheel_with_another_hash_is_refused_and_not_kept(host_pip: Path) -> None:
    index, _ = wheel_index(host_pip)
    (host_pip / "requirements.lock").write_text(f"kit-test-wheel==1.0 --hash=sha256:{HEX}\n")
    packages = PythonPackages(extra_indexes=(index.as_uri(),))
    with pytest.raises(ImageError, match=r"(?i)hash"):
        wheels.fetch(packages, host_pip, fresh=False, on_line=lambda _: None)
    assert [path for path in (host_pip / "cache").rglob("*") if path.suffix == ".whl"] == []


def test_the_shipped_image_is_read_and_its_lock_pins_every_package() -> None:
    folder = REPO / "containers/train-cpu"
    spec = load_model(folder / "image.toml", ImageSpec)
    assert spec.build.network == "none"
    assert spec.python is not None
    text = (folder / spec.python.requirements).read_text()
    pinned = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert "torch==2.13.0+cpu \\" in pinned
    assert all("==" in line for line in pinned)
    assert "://" not in text


@pytest.mark.parametrize(
    "table",
    [
        "[base]\n",
        '[base]\nreference = "a"\nbootstrap = { suite = "b" }\n',
        '[base]\nreference = "a"\n[squash]\ncompressor = "lz4"\nlevel = 3\n',
        '[base]\nreference = "a"\n[squash]\ncompressor = "gzip"\nlevel = 12\n',
        '[base]\nbootstrap = { suite = "b", packages = ["-o", "x"] }\n',
        '[base]\nreference = "a"\n[build]\nplatform = "windows/amd64"\n',
    ],
)
def test_a_wrong_image_toml_is_refused(tmp_path: Path, table: str) -> None:
    (tmp_path / "image.toml").write_text(table)
    with pytest.raises(ConfigError):
        load_model(tmp_path / "image.toml", ImageSpec)


def test_a_port_is_no_status_of_a_registry() -> None:
    assert (
        registry_hint("127.0.0.1:40161/some/image:1: the registry says 404 Not Found")
        == "check the image's name and tag"
    )
