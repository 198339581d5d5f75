"""A project with one small image, whose base is made of this machine's own shell and libraries: seconds, and no network."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from kit import shell
from kit.errors import EngineError
from kit.images import squash_and_lock
from kit.images.build import build
from kit.images.progress import Silent
from kit.images.sources.engine import Engine, connect
from tests.support import REPO


def needs_root(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that mounts something."""
    marked: Callable[..., None] = pytest.mark.root(
        pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")(test)
    )
    return marked


PROGRAMS = ("sh", "bash", "ls", "cat", "mkdir", "chmod", "ln", "env", "sleep", "date", "dd", "touch", "rm", "mknod")
BASE = "kit-test/base:2"

DOCKERFILE = r"""
ARG BASE
FROM ${BASE}
ARG GREETING=hello
ENV GREETING=${GREETING} QUOTED="it's \"quoted\" \$HOME" PATH=/bin:/usr/bin
RUN mkdir -p /app /data /locked /var/log /etc && echo content > /app/file && ln /app/file /app/hard && ln -s /app/file /app/soft \
    && chmod 4755 /app/file && chmod 0 /locked && date > /var/log/build.log && echo own > /etc/hosts.own
VOLUME /data
WORKDIR /app
LABEL kit.test="two words"
ENTRYPOINT ["/bin/bash", "-c", "echo entry \"$@\"", "name"]
CMD ["default words", "$HOME"]
"""


def rootfs(folder: Path, programs: Sequence[str] = PROGRAMS) -> Path:
    """A root filesystem with programs and the libraries that they need."""
    for program in programs:
        source = shutil.which(program)
        assert source is not None, program
        _copy(Path(source), folder / "bin" / Path(program).name)
        copy_libraries(Path(source), folder)
    return folder


def copy_libraries(program: Path, folder: Path) -> None:
    """What a program or a library needs."""
    for library in re.findall(r"(/\S+) \(0x", shell.run(["ldd", str(program)]).stdout):
        _copy(Path(library), folder / library.lstrip("/"))


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


@contextmanager
def engine_of_one_module() -> Iterator[Engine]:
    """The Docker Engine, for one module of tests at a time: its tags are the same for all, and a test that ends removes them."""
    with FileLock(Path(tempfile.gettempdir()) / "kit-tests-engine.lock"):
        try:
            yield connect()
        except EngineError as error:
            pytest.skip(f"{error.message}: scripts/engine.sh up")


def import_base(engine: Engine, work: Path) -> None:
    """Give the engine the base image."""
    tar = work / "base.tar"
    with tarfile.open(tar, "w") as archive:
        archive.add(rootfs(work / "root"), arcname=".")
    engine.import_tar(tar, BASE)


@dataclass(frozen=True, kw_only=True)
class ImageLab:
    """A project folder with containers/tiny, and a store of its own."""

    project: Path
    store: Path

    @property
    def folder(self) -> Path:
        """The image's folder."""
        return self.project / "containers" / "tiny"

    @property
    def lock_file(self) -> Path:
        """The image's lock."""
        return self.folder / "image.lock"

    def write(self, dockerfile: str = DOCKERFILE, *, toml: str = "") -> None:
        """Write containers/tiny."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "Dockerfile").write_text(dockerfile)
        (self.folder / "image.toml").write_text(f'[base]\nreference = "{BASE}"\n{toml}')

    def build(self, *, locked: bool = False, fresh: bool = False, store: Path | None = None) -> squash_and_lock.Outcome:
        """Build tiny in this process."""
        order = build.BuildOrder(
            name="tiny", project=self.project, store=store or self.store, locked=locked, fresh=fresh
        )
        return build.build(order, Silent())

    def kit(self, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a `kit` command in the project."""
        return subprocess.Popen(
            [sys.executable, "-m", "kit", *words],
            cwd=self.project,
            env=os.environ | {"KIT_STORE": str(self.store), "PYTHONPATH": str(REPO)} | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def images(self) -> list[Path]:
        """What is visible in the store."""
        return sorted((self.store / "sha256").glob("*")) if (self.store / "sha256").is_dir() else []


def kill_at(process: subprocess.Popen[str], text: str) -> None:
    """Send KILL as soon as the command prints `text` on stderr."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            return
    raise AssertionError(f"the command never printed {text!r}")


def wait_until(true: object, *, seconds: float = 10.0) -> None:
    """Poll a callable until it is true."""
    assert callable(true)
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.05)


@contextmanager
def mounted(image: Path, target: Path) -> Iterator[Path]:
    """A .sqsh, mounted read-only (root)."""
    target.mkdir(parents=True, exist_ok=True)
    shell.run(["mount", "-t", "squashfs", "-o", "loop,ro", str(image), str(target)])
    try:
        yield target
    finally:
        shell.run(["umount", str(target)])


@contextmanager
def small_disk(target: Path, options: str) -> Iterator[Path]:
    """A tmpfs with the given options (root)."""
    target.mkdir(parents=True)
    shell.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(target)])
    try:
        yield target
    finally:
        shell.run(["umount", "--lazy", str(target)])


class DyingEngine:
    """A socket before the real engine's that breaks every connection once `limit` bytes have come back through it."""

    def __init__(self, place: Path, limit: int) -> None:
        self.url = f"unix://{place}"
        self._left = limit
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(place))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            client, _ = self._listener.accept()
            engine = socket.socket(socket.AF_UNIX)
            engine.connect("/run/docker.sock")
            threading.Thread(target=self._pass, args=(client, engine, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(engine, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
                if counted:
                    self._left -= len(data)
                    if self._left < 0:
                        break
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
