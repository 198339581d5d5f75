"""`kit import-image`: every kind of source, the same bytes by every way, and what registries answer."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from kit import shell
from kit.errors import ImageError, LockError, UsageError
from kit.images import image_lock, importing, squash_and_lock
from kit.images.progress import Silent
from kit.images.sources import engine as engines
from kit.images.sources import layer_cache
from tests.cluster import faulty_registry
from tests.cluster.image_lab import (
    BASE,
    DOCKERFILE,
    ImageLab,
    engine_of_one_module,
    import_base,
    mounted,
    needs_root,
)

pytestmark = pytest.mark.engine

IMAGE = "kit-test/import:latest"

needs_skopeo = pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not installed")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engines.Engine]:
    """An engine that holds `IMAGE`, with what images hold in the wild: whiteouts, links, setuid, devices, capabilities."""
    with engine_of_one_module() as found:
        work = tmp_path_factory.mktemp("import")
        import_base(found, work)
        lab = ImageLab(project=work / "project", store=work / "store")
        lab.write(
            DOCKERFILE
            + "RUN mkdir /gone /opaque && touch /gone/a /opaque/old /removed\n"
            + "RUN rm -rf /gone /removed /opaque && mkdir /opaque && touch /opaque/new && mknod /app/null c 1 3\n"
            + "RUN echo second > /app/second && rm /app/soft && ln -s ../data /app/soft\n"
        )
        lab.build()
        docker.from_env().images.get("kit-image/tiny:latest").tag(IMAGE)
        yield found
        found.remove(IMAGE)


@pytest.fixture
def lab(engine: engines.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageLab:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    (tmp_path / "project").mkdir()
    return ImageLab(project=tmp_path / "project", store=tmp_path / "store")


def run_import(lab: ImageLab, uri: str, *, name: str = "", locked: bool = False) -> squash_and_lock.Outcome:
    order = importing.ImportOrder(uri=uri, name=name, project=lab.project, store=lab.store, locked=locked)
    return importing.run(order, Silent())


def saved(work: Path) -> Path:
    """The archive of a `docker save`."""
    archive = work / "saved.tar"
    with archive.open("wb") as out:
        out.writelines(docker.from_env().images.get(IMAGE).save(named=True))
    return archive


def exported(engine: engines.Engine, work: Path) -> Path:
    """The image's merged tree, as a tar that the engine wrote."""
    with (work / "rootfs.tar").open("wb") as out, engine.export(IMAGE) as chunks:
        out.writelines(chunks)
    return work / "rootfs.tar"


def oci_layout(work: Path) -> Path:
    shell.run(["skopeo", "copy", "--quiet", f"docker-archive:{saved(work)}", f"oci:{work / 'layout'}:image"])
    return work / "layout"


def listing(image: Path) -> list[str]:
    """Type, mode, owner, size, time and link of every path."""
    return shell.run(["unsquashfs", "-d", "", "-lln", str(image)], env=os.environ | {"TZ": "UTC"}).stdout.splitlines()


def test_engine_docker_save_and_streamed_export_give_the_same_bytes(
    lab: ImageLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_archive = run_import(lab, str(saved(tmp_path)), name="archive")
    by_engine = run_import(lab, f"dockerd://{IMAGE}", name="engine")
    monkeypatch.setattr(engines, "_reachable", lambda driver: ())
    (lab.project / "containers/engine/image.lock").unlink()
    by_stream = run_import(lab, f"dockerd://{IMAGE}", name="engine")
    assert by_stream.method == "streamed export"
    assert listing(by_archive.image) == listing(by_engine.image) == listing(by_stream.image)
    assert by_archive.lock.sha256 == by_engine.lock.sha256 == by_stream.lock.sha256
    assert by_archive.lock.config == by_engine.lock.config


@needs_skopeo
def test_oci_layout_and_archive_give_the_bytes_of_docker_save(lab: ImageLab, tmp_path: Path) -> None:
    layout = oci_layout(tmp_path)
    archive = tmp_path / "oci.tar"
    with tarfile.open(archive, "w") as out:
        out.add(layout, arcname=".")
    shas = {
        run_import(lab, str(source), name=name).lock.sha256
        for name, source in {"layout": layout, "archive": archive, "saved": tmp_path / "saved.tar"}.items()
    }
    assert len(shas) == 1


@needs_root
def test_the_imported_tree_is_the_image_less_devices(lab: ImageLab, tmp_path: Path) -> None:
    image = run_import(lab, str(saved(tmp_path)), name="archive").image
    with mounted(image, tmp_path / "mnt") as tree:
        assert sorted(path.name for path in (tree / "opaque").iterdir()) == ["new"]
        assert not (tree / "gone").exists()
        assert not (tree / "removed").exists()
        assert (tree / "app/file").stat().st_mode & 0o7777 == 0o4755
        assert (tree / "app/file").stat().st_ino == (tree / "app/hard").stat().st_ino
        assert (tree / "app/soft").readlink() == Path("../data")
        assert (tree / "app/null").is_char_device()
        assert (tree / "var/log/build.log").is_file()
        assert (tree / "app/second").stat().st_mtime > 0
        assert shell.run(["chroot", str(tree), "/bin/sh", "/etc/rc"]).stdout == "entry default words $HOME"


def test_importing_the_same_again_does_nothing(lab: ImageLab) -> None:
    assert run_import(lab, f"dockerd://{IMAGE}", name="again").built
    assert not run_import(lab, f"dockerd://{IMAGE}", name="again").built


@needs_root
def test_rootfs_folder_and_tar_give_the_same_tree_as_root_and_as_a_user(
    engine: engines.Engine, lab: ImageLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = exported(engine, tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    shell.run(["tar", "-xpf", str(tar), "-C", str(folder), "--exclude=dev/*"])
    as_root = run_import(lab, str(folder), name="folder")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    as_user = run_import(lab, str(folder), name="folder")
    by_tar = run_import(lab, str(tar), name="tar")
    assert as_user.lock.sha256 == as_root.lock.sha256
    assert as_user.changes == ()
    assert [line.split()[0] for line in listing(by_tar.image)] == [line.split()[0] for line in listing(as_root.image)]
    assert by_tar.lock.sha256 == as_root.lock.sha256


def test_capabilities_are_kept_and_other_xattrs_are_not(lab: ImageLab, tmp_path: Path) -> None:
    tar = tmp_path / "root.tar"
    # cap_net_raw+ep: revision 2 with the effective bit, permitted 1 << 13 (linux/capability.h).
    capability = bytes.fromhex("0100000200200000000000000000000000000000")
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as out:
        for name in ("b", "a-long-name-" + "x" * 120):
            member = tarfile.TarInfo(name)
            member.pax_headers = {
                "SCHILY.xattr.security.capability": capability.decode(errors="surrogateescape"),
                "SCHILY.xattr.user.kit": "words with = and \n in them",
            }
            out.addfile(member)
    image = run_import(lab, str(tar), name="xattrs").image
    if os.geteuid() == 0:
        target = tmp_path / "all"
        shell.run(["unsquashfs", "-quiet", "-no-progress", "-d", str(target), str(image)])
        for name in ("b", "a-long-name-" + "x" * 120):
            assert os.listxattr(target / name) == ["security.capability"]
            assert os.getxattr(target / name, "security.capability") == capability


def test_names_and_link_targets_of_any_bytes_survive(lab: ImageLab, tmp_path: Path) -> None:
    names = ["plain", "with blank", 'quote"s', "back\\slash", "ünïcode", "x" * 200, "dir/" + "y" * 150]
    tar = tmp_path / "root.tar"
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as out:
        for name in names:
            out.addfile(tarfile.TarInfo(name))
            link = tarfile.TarInfo(f"{name}.link")
            link.type, link.linkname = tarfile.SYMTYPE, f"/{name}"
            out.addfile(link)
    image = run_import(lab, str(tar), name="names").image
    target = tmp_path / "tree"
    shell.run(["unsquashfs", "-quiet", "-no-progress", "-d", str(target), str(image)])
    for name in names:
        assert (target / name).is_file()
        assert (target / f"{name}.link").readlink() == Path(f"/{name}")


def test_an_image_without_cmd_gets_a_shell(lab: ImageLab, tmp_path: Path) -> None:
    image = run_import(lab, f"dockerd://{BASE}", name="base").image
    shell.run(["unsquashfs", "-quiet", "-no-progress", "-d", str(tmp_path / "tree"), str(image), "etc/rc"])
    assert (tmp_path / "tree/etc/rc").read_text().endswith("exec /bin/sh\n")


def test_a_squashfs_file_is_taken_as_it_is(lab: ImageLab) -> None:
    made = run_import(lab, f"dockerd://{IMAGE}", name="first")
    taken = run_import(lab, str(made.image), name="second")
    assert taken.lock.sha256 == made.lock.sha256
    assert taken.lock.config.env == made.lock.config.env
    assert taken.lock.config.workdir == "/app"
    assert image_lock.read_lock(lab.project / "containers/second/image.lock").source == str(made.image)


def test_a_cut_off_squashfs_file_is_refused(lab: ImageLab, tmp_path: Path) -> None:
    made = run_import(lab, f"dockerd://{IMAGE}", name="first")
    cut = tmp_path / "cut.sqsh"
    cut.write_bytes(made.image.read_bytes()[:-8192])
    with pytest.raises(LockError, match="cut off"):
        run_import(lab, str(cut))


def test_a_damaged_archive_is_refused(lab: ImageLab, tmp_path: Path) -> None:
    archive = saved(tmp_path)
    content = bytearray(archive.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = b"\xff" * 8
    archive.write_bytes(content)
    with pytest.raises(ImageError, match="damaged"):
        run_import(lab, str(archive), name="damaged")
    assert list((lab.store / "sha256").iterdir()) == []


@pytest.mark.parametrize(
    "source", ["dockerd://no/such:image", "./no-such-file", "docker://REG/Upper", "dockerd://a@sha256:0"]
)
def test_what_is_no_image_is_refused_by_name(lab: ImageLab, source: str) -> None:
    with pytest.raises((ImageError, UsageError)) as caught:
        run_import(lab, source, name="x")
    assert source.partition("://")[2].removeprefix("./") in caught.value.message


class Registry(http.server.BaseHTTPRequestHandler):
    """A registry that answers every image with `status`."""

    status = 401

    def do_GET(self) -> None:
        if self.path == "/v2/":
            self._answer(200, b"{}")
        else:
            self._answer(self.status, b'{"errors":[{"code":"%s","message":"no"}]}' % self._code())

    def do_HEAD(self) -> None:
        self.do_GET()

    def _code(self) -> bytes:
        return {401: b"UNAUTHORIZED", 404: b"MANIFEST_UNKNOWN", 429: b"TOOMANYREQUESTS"}[self.status]

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's own name
        pass


@pytest.mark.parametrize("with_skopeo", [pytest.param(True, marks=needs_skopeo), False], ids=["skopeo", "engine"])
@pytest.mark.parametrize(
    ("status", "hint"), [(401, "docker login"), (404, "check the image's name"), (429, "limits pulls")]
)
def test_what_a_registry_refuses_is_said_with_what_to_do(
    lab: ImageLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, status: int, hint: str, with_skopeo: bool
) -> None:
    handler = type("Handler", (Registry,), {"status": status})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    _plain_http(monkeypatch, tmp_path, f"127.0.0.1:{server.server_port}", with_skopeo=with_skopeo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(ImageError) as caught:
            run_import(lab, f"docker://127.0.0.1:{server.server_port}#some/image:1")
    finally:
        server.shutdown()
        server.server_close()
    assert hint in caught.value.hint, caught.value.message
    assert list((lab.store / "sha256").iterdir()) == []


def _blob(content: bytes, kind: str) -> dict[str, object]:
    return {"mediaType": kind, "size": len(content), "digest": f"sha256:{hashlib.sha256(content).hexdigest()}"}


class BreakingOff(Registry):
    """A registry that has an image, and drops the line in the middle of its only layer, every time."""

    layer = os.urandom(400_000)
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [f"sha256:{'0' * 64}"]}}
    )
    _DOCKER = "application/vnd.docker."
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": f"{_DOCKER}distribution.manifest.v2+json",
            "config": _blob(config.encode(), f"{_DOCKER}container.image.v1+json"),
            "layers": [_blob(layer, f"{_DOCKER}image.rootfs.diff.tar.gzip")],
        }
    ).encode()

    def do_GET(self) -> None:
        if "/manifests/" in self.path:
            self._send(self.manifest, f"{self._DOCKER}distribution.manifest.v2+json", whole=True)
        elif self.path.endswith(hashlib.sha256(self.config.encode()).hexdigest()):
            self._send(self.config.encode(), "application/octet-stream", whole=True)
        elif "/blobs/" in self.path:
            self._send(self.layer, "application/octet-stream", whole=False)
        else:
            self._answer(200, b"{}")

    def _send(self, body: bytes, kind: str, *, whole: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(body).hexdigest()}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body if whole else body[:100_000])
        self.close_connection = True


# The engine asks again for a minute before it gives up.
@pytest.mark.parametrize(
    "with_skopeo",
    [pytest.param(True, marks=needs_skopeo), pytest.param(False, marks=pytest.mark.slow)],
    ids=["skopeo", "engine"],
)
def test_a_line_that_drops_leaves_nothing(
    lab: ImageLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, with_skopeo: bool
) -> None:
    monkeypatch.setattr(layer_cache, "_FIRST_WAIT_S", 0.01)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), BreakingOff)
    _plain_http(monkeypatch, tmp_path, f"127.0.0.1:{server.server_port}", with_skopeo=with_skopeo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with pytest.raises(ImageError):
            run_import(lab, f"docker://127.0.0.1:{server.server_port}#some/image:1")
    finally:
        server.shutdown()
        server.server_close()
    assert list((lab.store / "sha256").iterdir()) == []


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A real registry, Debian's docker-registry; its host and port."""
    with faulty_registry.registry(tmp_path / "registry") as place:
        yield place


def _plain_http(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, *, with_skopeo: bool) -> None:
    """Let skopeo talk to a local registry without TLS, as the engine does anyway; or hide skopeo."""
    config = tmp_path / "home/.config/containers/registries.conf"
    config.parent.mkdir(parents=True)
    config.write_text(f'[[registry]]\nlocation = "{place}"\ninsecure = true\n')
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if not with_skopeo:
        which = shell.which
        monkeypatch.setattr(shell, "which", lambda name, **kw: None if name == "skopeo" else which(name, **kw))


@pytest.mark.parametrize("with_skopeo", [pytest.param(True, marks=needs_skopeo), False], ids=["skopeo", "engine"])
def test_a_tag_of_a_registry_is_locked_by_its_digest(
    lab: ImageLab, registry: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, with_skopeo: bool
) -> None:
    _plain_http(monkeypatch, tmp_path, registry, with_skopeo=with_skopeo)
    client = docker.from_env()
    client.images.get(IMAGE).tag(f"{registry}/some/image", "1")
    client.api.push(f"{registry}/some/image", "1")
    client.images.remove(f"{registry}/some/image:1")
    made = run_import(lab, f"docker://{registry}#some/image:1")
    assert made.lock.name == "image"
    assert made.lock.source == f"docker://{registry}#some/image:1"
    assert made.lock.base.digest.startswith("sha256:")
    again = run_import(lab, f"{registry}/some/image@{made.lock.base.digest}", name="by-digest")
    assert again.lock.base.digest == made.lock.base.digest
    assert again.lock.sha256 == made.lock.sha256


@pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed")
def test_podman_gives_the_bytes_that_docker_gives(lab: ImageLab, tmp_path: Path) -> None:
    loaded = shell.run(["podman", "load", "--quiet", "--input", str(saved(tmp_path))]).stdout
    shell.run(["podman", "tag", loaded.rpartition("Loaded image: ")[2], f"localhost/{IMAGE}"])
    try:
        made = run_import(lab, f"podman://{IMAGE}", name="from-podman")
    finally:
        shell.run(["podman", "rmi", "--force", f"localhost/{IMAGE}"])
    assert made.lock.sha256 == run_import(lab, f"dockerd://{IMAGE}", name="from-docker").lock.sha256
