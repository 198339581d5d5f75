"""Images against a real Docker Engine and real mksquashfs: build, lock, reproduce, and every fault that leaves no trace."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from kit import data_folders, shell
from kit.errors import ConfigError, EngineError, ImageError, LockError
from kit.images import check_against_lock, image_lock, importing, store
from kit.images.build import build
from kit.images.progress import Silent
from kit.images.sources import engine as engines
from tests.cluster.image_lab import (
    DOCKERFILE,
    DyingEngine,
    ImageLab,
    kill_at,
    mounted,
    needs_root,
    small_disk,
    wait_until,
)
from tests.support import REPO

pytestmark = pytest.mark.engine


@pytest.fixture
def lab(engine: engines.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageLab]:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    made = ImageLab(project=tmp_path / "project", store=tmp_path / "store")
    made.write()
    yield made
    engine.remove("kit-image/tiny:latest")


def test_a_build_is_locked_and_a_second_one_does_nothing(lab: ImageLab) -> None:
    first = lab.build()
    assert first.built
    assert first.image == store.path(lab.store, first.lock.sha256)
    assert store.digest_of(first.image) == first.lock.sha256
    assert image_lock.read_lock(lab.lock_file) == first.lock
    written = lab.lock_file.stat().st_mtime_ns
    second = lab.build()
    assert not second.built
    assert second.seconds < 0.5
    assert lab.lock_file.stat().st_mtime_ns == written
    check_against_lock.check(first.lock, lab.store, full=True)


def test_a_build_without_changes_imports_no_docker(lab: ImageLab) -> None:
    lab.build()
    code = "import sys; from kit.cli import main\ntry: main()\nexcept SystemExit: sys.exit('docker' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "build-image", "tiny"],
        cwd=lab.project,
        env=os.environ | {"KIT_STORE": str(lab.store)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "nothing has changed" in done.stdout
    assert done.returncode == 0


def test_two_builds_from_nothing_give_the_same_bytes(lab: ImageLab, tmp_path: Path) -> None:
    first = lab.build(fresh=True)
    umask = os.umask(0o077)
    try:
        second = lab.build(fresh=True, store=tmp_path / "other")
    finally:
        os.umask(umask)
    assert second.lock.sha256 == first.lock.sha256
    assert second.changes == ()


@needs_root
def test_overlay_mount_and_streamed_export_give_the_same_bytes(
    lab: ImageLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = lab.build()
    monkeypatch.setattr(engines, "_reachable", lambda driver: ())
    streamed = lab.build(store=tmp_path / "other")
    assert (overlay.method, streamed.method) == ("overlay mount of the layers", "streamed export")
    assert streamed.lock.sha256 == overlay.lock.sha256


@needs_root
def test_a_root_that_may_not_mount_takes_the_slower_way(lab: ImageLab, tmp_path: Path) -> None:
    """As root of a container without CAP_SYS_ADMIN."""
    first = lab.build()
    (tmp_path / "other").mkdir()
    weak = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-m", "kit"]
    done = subprocess.run(
        [*weak, "build-image", "tiny", "--json", "--store", str(tmp_path / "other")],
        cwd=lab.project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "taking a slower way" in done.stderr, done.stderr
    result = json.loads(done.stdout)
    assert result["method"] == "streamed export"
    assert result["digest"] == first.lock.digest


@needs_root
def test_the_tree_is_what_enroot_needs(lab: ImageLab, tmp_path: Path) -> None:
    with mounted(lab.build().image, tmp_path / "mnt") as tree:
        environment = set((tree / "etc/environment").read_text().splitlines())
        assert environment == {"GREETING=hello", """QUOTED=it's "quoted" $HOME""", "PATH=/bin:/usr/bin"}
        assert (tree / "etc/fstab").read_text() == (
            "${ENROOT_ROOTFS}/data /data none x-create=dir,bind,rw,nosuid,nodev\n"
        )
        assert not list((tree / "dev").iterdir())
        assert not (tree / ".dockerenv").exists()
        assert not (tree / "var/log/build.log").exists()
        assert (tree / "etc/hosts.own").read_text() == "own\n"
        assert (tree / "app/file").stat().st_mode & 0o7777 == 0o4755
        assert (tree / "app/file").stat().st_ino == (tree / "app/hard").stat().st_ino
        assert (tree / "app/soft").readlink() == Path("/app/file")
        assert (tree / "locked").stat().st_mode & 0o700 == 0o700
        assert all(path.lstat().st_uid == 0 and path.lstat().st_mtime == 0 for path in tree.rglob("*"))
        in_it = ["chroot", str(tree), "/bin/sh", "/etc/rc"]
        assert shell.run(in_it).stdout == "entry default words $HOME"
        assert shell.run([*in_it, "given 'words'", "$x"]).stdout == "entry given 'words' $x"


UV_LIKE = r"""
ARG BASE
FROM ${BASE}
RUN mkdir -p /root/.cache/uv /usr/lib/site /tmp && echo module > /root/.cache/uv/idna.py \
    && ln /root/.cache/uv/idna.py /usr/lib/site/idna.py && ln /root/.cache/uv/idna.py /usr/lib/site/again.py \
    && echo lib > /tmp/wheel.so && ln /tmp/wheel.so /usr/lib/wheel.so
RUN mkdir -p /etc && echo mine > /etc/rc && ln /etc/rc /opt-rc
WORKDIR /tmp/work
"""


@needs_root
def test_files_that_are_linked_to_what_is_dropped_stay_in_every_way(
    lab: ImageLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.write(UV_LIKE)
    by_mount = lab.build()
    monkeypatch.setattr(engines, "_reachable", lambda driver: ())
    by_stream = lab.build(store=tmp_path / "other")
    assert by_stream.method == "streamed export"
    assert by_stream.lock.sha256 == by_mount.lock.sha256
    with mounted(by_stream.image, tmp_path / "mnt") as tree:
        assert (tree / "usr/lib/site/idna.py").read_text() == "module\n"
        assert (tree / "usr/lib/site/idna.py").stat().st_ino == (tree / "usr/lib/site/again.py").stat().st_ino
        assert (tree / "usr/lib/wheel.so").read_text() == "lib\n"
        assert (tree / "opt-rc").read_text() == "mine\n"
        assert not (tree / "tmp/work").exists()
        assert not (tree / "root/.cache").exists()


def test_an_image_stands_on_the_locked_bytes_of_another(lab: ImageLab, engine: engines.Engine) -> None:
    child = lab.project / "containers/child"
    child.mkdir(parents=True)
    (child / "image.toml").write_text('[base]\nimage = "tiny"\n')
    (child / "Dockerfile").write_text('ARG BASE\nFROM ${BASE}\nRUN echo "$GREETING" > /app/more\n')
    order = build.BuildOrder(name="child", project=lab.project, store=lab.store)
    with pytest.raises(LockError, match="its base, image tiny, has no lock"):
        build.build(replace(order, locked=True), Silent())
    made = build.build(order, Silent())
    # The base, which was not built yet, was built first: another build of it finds nothing to do.
    parent = lab.build()
    assert not parent.built
    base = made.lock.base
    assert (base.kind, base.reference, base.digest) == ("image", "tiny", parent.lock.digest)
    assert made.lock.config == parent.lock.config
    found = shell.run(["unsquashfs", "-cat", str(made.image), "app/more", "app/file"]).stdout
    assert found == "hello\ncontent"
    # A base whose file is gone comes back as its lock names it, though nothing else of the child is made again.
    parent.image.unlink()
    assert not build.build(order, Silent()).built
    assert parent.image.is_file()
    lab.write(DOCKERFILE + "RUN echo other > /app/other\n")
    lab.build()
    assert build.build(order, Silent()).lock.base.digest != base.digest
    engine.remove("kit-image/child:latest")
    for image in docker.from_env().images.list("kit-base/image-tiny"):
        engine.remove(image.tags[0])


def test_a_dockerfile_that_leaves_the_base_out_is_refused(lab: ImageLab) -> None:
    lab.write("FROM debian:12\n")
    with pytest.raises(ImageError, match="line 1: FROM debian:12"):
        lab.build()


def test_locked_names_what_changed_and_leaves_everything(lab: ImageLab) -> None:
    first = lab.build()
    before = lab.lock_file.read_text()
    lab.build(locked=True, fresh=True)
    lab.write(DOCKERFILE.replace("ARG GREETING=hello", "ARG GREETING=goodbye"))
    with pytest.raises(LockError) as caught:
        lab.build(locked=True)
    assert "config.env.GREETING: hello -> goodbye" in caught.value.message
    assert lab.lock_file.read_text() == before
    assert [path.stem for path in lab.images() if path.suffix == ".sqsh"] == [first.lock.sha256]


def test_a_step_that_gives_other_bytes_each_time_is_found(lab: ImageLab) -> None:
    lab.write(DOCKERFILE + "RUN date +%N > /app/now\n")
    lab.build()
    with pytest.raises(LockError, match="a step of the Dockerfile gives other bytes each time"):
        lab.build(locked=True, fresh=True)


def test_a_build_with_a_network_says_so_in_its_lock(lab: ImageLab) -> None:
    lab.write(toml='[build]\nnetwork = "host"\n')
    made = lab.build().lock
    assert not made.reproducible
    assert "network" in made.notes[0]


DOWNLOAD = 'RUN bash -c "exec 3<>/dev/tcp/{host}/{port} && echo GET / >&3 && cat <&3 > /app/answer"\n'


def test_a_step_downloads_only_with_a_network(lab: ImageLab) -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        step = DOWNLOAD.format(host="127.0.0.1", port=server.server_address[1])
        lab.write(DOCKERFILE + step)
        with pytest.raises(ImageError, match=r"(?s)the build failed at Step \d+/\d+ : RUN bash.*refused") as caught:
            lab.build()
        assert '[build] network = "default"' in caught.value.hint
        lab.write(DOCKERFILE + step, toml='[build]\nnetwork = "host"\n')
        made = lab.build()
        server.shutdown()
    assert shell.run(["unsquashfs", "-cat", str(made.image), "app/answer"]).stdout == "downloaded"
    assert not made.lock.reproducible


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"downloaded")


def test_build_arguments_and_target_stage(lab: ImageLab) -> None:
    staged = DOCKERFILE.replace("FROM ${BASE}", "FROM ${BASE} AS first", 1) + "FROM first AS second\nENV STAGE=second\n"
    lab.write(staged, toml='[build]\nargs = { GREETING = "a \\"b\\" $c" }\ntarget = "first"\n')
    env = lab.build().lock.config.env
    assert env["GREETING"] == 'a "b" $c'
    assert "STAGE" not in env


def test_a_failing_step_is_shown_with_its_last_lines(lab: ImageLab) -> None:
    lab.write(DOCKERFILE + "RUN echo the last words && ls /no-such-place\n")
    with pytest.raises(ImageError) as caught:
        lab.build()
    assert "RUN echo the last words" in caught.value.message
    assert "  the last words" in caught.value.message
    assert "/no-such-place" in caught.value.message
    assert lab.images() == []


def test_a_dockerfile_that_cannot_be_read_names_its_line(lab: ImageLab) -> None:
    lab.write("ARG BASE\nFROM ${BASE}\nFETCH everything\n")
    with pytest.raises(ImageError, match=r"(?i)line 3: unknown instruction: FETCH"):
        lab.build()


def test_a_typo_in_image_toml_names_the_nearest_key(lab: ImageLab) -> None:
    lab.write(toml='[squash]\ncompresor = "zstd"\n')
    with pytest.raises(ConfigError, match=r"squash\.compresor.*compressor"):
        lab.build()


def test_an_env_value_with_a_newline_reaches_the_container(lab: ImageLab, tmp_path: Path) -> None:
    lab.write(toml='[build]\nargs = { GREETING = "two\\nlines" }\n')
    made = lab.build()
    assert made.lock.config.env["GREETING"] == "two\nlines"
    shell.run(["unsquashfs", "-quiet", "-no-progress", "-d", str(tmp_path / "tree"), str(made.image), "etc"])
    assert "GREETING" not in (tmp_path / "tree/etc/environment").read_text()
    rc = (tmp_path / "tree/etc/rc").read_text().replace("exec ", 'printf %s "$GREETING"; exit; ', 1)
    script = tmp_path / "rc"
    script.write_text(rc.replace("cd /app", "cd /"))
    assert shell.run(["sh", str(script), "x"]).stdout == "two\nlines"


@pytest.mark.parametrize(("flags", "stale"), [(0, True), (1, False), (3, False)])
def test_byte_code_that_would_be_compiled_again_is_found(lab: ImageLab, flags: int, stale: bool) -> None:
    (lab.folder / "a.pyc").write_bytes(b"\xa7\r\r\n" + flags.to_bytes(4, "little") + bytes(100))
    lab.write(DOCKERFILE + "COPY a.pyc /app/__pycache__/a.cpython-311.pyc\n")
    process = lab.kit("build-image", "tiny")
    _, err = process.communicate()
    assert process.returncode == 0
    assert ("compiles it again" in err) is stale


def test_two_builders_at_once_make_it_once(lab: ImageLab) -> None:
    lab.write(DOCKERFILE + "RUN sleep 1\n")
    both = [lab.kit("build-image", "tiny", "--json") for _ in range(2)]
    outputs = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    results = [json.loads(out) for out, _ in outputs]
    assert sorted(result["built"] for result in results) == [False, True]
    assert results[0]["digest"] == results[1]["digest"]
    assert sum("waiting, then using it" in err for _, err in outputs) == 1


@pytest.mark.parametrize(
    "stage", ["making the base ready", "building with the engine", "squashing by", "checking and locking"]
)
def test_a_builder_that_is_killed_leaves_nothing_and_blocks_nobody(lab: ImageLab, stage: str) -> None:
    good = lab.build()
    old_lock = lab.lock_file.read_text()
    lab.write(
        DOCKERFILE.replace("echo content", "echo other; dd if=/dev/urandom of=/app/big bs=1M count=40; echo content")
    )
    kill_at(lab.kit("build-image", "tiny"), stage)
    assert [path.stem for path in lab.images() if path.suffix == ".sqsh"] == [good.lock.sha256]
    assert lab.lock_file.read_text() == old_lock
    wait_until(lambda: not _mentioning(lab.store))
    again = lab.build()
    assert again.built
    assert list((lab.store / "tmp").iterdir()) == []
    assert list((lab.store / "locks").iterdir()) == []


def _mentioning(place: Path) -> list[str]:
    """Command lines of running processes that name a path."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(place) in words:
            found.append(words)
    return found


def test_no_engine_says_what_to_do(lab: ImageLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/socket")
    with pytest.raises(EngineError) as caught:
        lab.build()
    assert "unix:///no/such/socket" in caught.value.message
    assert "DOCKER_HOST" in caught.value.hint


@pytest.mark.parametrize("limit", [2_000, 300_000], ids=["while building", "while exporting"])
def test_an_engine_that_dies_midway_leaves_nothing(
    lab: ImageLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(engines, "_reachable", lambda driver: ())
    with monkeypatch.context() as dying:
        dying.setenv("DOCKER_HOST", DyingEngine(tmp_path / "engine.sock", limit).url)
        with pytest.raises(EngineError, match="stopped answering"):
            lab.build()
    assert lab.images() == []
    assert not lab.lock_file.exists()
    assert lab.build().built


@needs_root
@pytest.mark.parametrize("options", ["size=2m", "size=64m,nr_inodes=12"], ids=["space", "inodes"])
def test_a_full_disk_leaves_the_old_image_usable(lab: ImageLab, tmp_path: Path, options: str) -> None:
    with small_disk(tmp_path / "disk", options) as disk:
        with pytest.raises(ImageError) as caught:
            lab.build(store=disk / "store")
        assert "No space left" in caught.value.message or "space" in caught.value.hint
        assert not list((disk / "store").glob("sha256/*.sqsh"))
        assert not list((disk / "store").glob("tmp/*"))
    assert not lab.lock_file.exists()


@needs_root
def test_a_store_that_cannot_be_written_is_said_before_the_work(lab: ImageLab, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=1m,ro") as disk, pytest.raises(ImageError) as caught:
        lab.build(store=disk / "store")
    assert "Read-only file system" in caught.value.message
    assert "--store" in caught.value.hint


def test_a_name_with_shell_characters_is_refused(lab: ImageLab, tmp_path: Path) -> None:
    process = lab.kit("build-image", f"$(touch {tmp_path}/ran)")
    _, err = process.communicate()
    assert process.returncode == ConfigError.exit_code
    assert "Traceback" not in err
    assert "no such folder" in err, "with a slash it is a folder"
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_the_shipped_image_can_be_built_again_from_nothing(engine: engines.Engine) -> None:
    """The acceptance of the whole: other umask, locale and time zone, nothing cached, and the digest of the lock."""
    store_dir = data_folders.image_store()
    if not store.path(store_dir, image_lock.read_lock(REPO / "containers/train-cpu/image.lock").sha256).is_file():
        pytest.skip("train-cpu has not been built here: kit build-image train-cpu")
    done = subprocess.run(
        [sys.executable, "-m", "kit", "verify-image", "train-cpu", "--rebuild"],
        cwd=REPO,
        env=os.environ | {"LC_ALL": "C", "TZ": "Asia/Kathmandu"},
        umask=0o077,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0 and "packages.apt." in done.stderr:
        pytest.skip("the distribution's mirror has newer packages than the lock")
    assert "the same bytes" in done.stdout, done.stderr


@pytest.mark.pyxis
@needs_root
@pytest.mark.skipif(shell.which("enroot") is None, reason="enroot is not installed")
def test_the_tree_is_that_of_enroot_import(lab: ImageLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every difference to `enroot import dockerd://` of the same image is one of the table in docs/guides/images.md."""
    lab.build()
    (tmp_path / "temp").mkdir()
    env = os.environ | {
        "ENROOT_TEMP_PATH": str(tmp_path / "temp"),
        "ENROOT_CACHE_PATH": str(tmp_path / "enroot-cache"),
        "ENROOT_DATA_PATH": str(tmp_path / "enroot-data"),
        "ENROOT_RUNTIME_PATH": str(tmp_path / "enroot-run"),
    }
    shell.run(["enroot", "import", "-o", str(tmp_path / "enroot.sqsh"), "dockerd://kit-image/tiny:latest"], env=env)
    order = importing.ImportOrder(uri="dockerd://kit-image/tiny:latest", name="x", project=lab.project, store=lab.store)
    ours = _tree(importing.run(order, Silent()).image, tmp_path / "ours")
    theirs = _tree(tmp_path / "enroot.sqsh", tmp_path / "theirs")
    engines_own = {"etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/mtab"}
    documented = {"etc/rc", "etc/rc.local", "run", "tmp", "mnt"} | engines_own
    assert {path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)} <= documented
    for image in ("ours", "theirs"):
        said = shell.run(["chroot", str(tmp_path / image), "/bin/sh", "/etc/rc", "a b", "$HOME"]).stdout
        assert said == "entry a b $HOME"


def _tree(image: Path, target: Path) -> dict[str, tuple[object, ...]]:
    """Path -> type and mode, owner, link target or content, of an unpacked image."""
    shell.run(["unsquashfs", "-quiet", "-no-progress", "-d", str(target), str(image)])
    found: dict[str, tuple[object, ...]] = {}
    for path in target.rglob("*"):
        stat = path.lstat()
        what = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(target))] = (oct(stat.st_mode), stat.st_uid, stat.st_gid, what)
    return found
