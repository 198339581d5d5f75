"""Ctrl-C and kill -9 at any moment of any way to an image: after the next command nothing is left, and the bytes are the same.

A moment is a part of the time that the whole takes, from the first line that the command prints. What a killed command may leave is
looked for in the store, in its temporary folder, cache and project, among mounts and processes, and in the engine. This module has
an engine of its own: a command removes no image while somebody else builds in the same engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from kit import shell
from kit.errors import EngineError
from kit.images.sources import engine as engines
from tests.cluster.image_lab import (
    BASE,
    DOCKERFILE,
    ImageLab,
    import_base,
    needs_root,
    wait_until,
)

pytestmark = pytest.mark.engine

TAG = "kit-image/tiny:latest"
# Enough bytes, that do not compress, for squashing to be hit; and two steps after the longest one.
STEPS = (
    DOCKERFILE
    + "COPY noise /app/noise\nRUN sleep 0.3; cat /app/noise /app/noise > /app/more\nRUN echo last > /app/last\n"
)
NOISE = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Way:
    """A command that makes an image, and the way that it takes. weak: root without the right to mount. steps: of the Dockerfile."""

    words: tuple[str, ...]
    method: str
    weak: bool = False
    steps: str = STEPS


BUILD = ("build-image", "tiny", "--no-cache")
WAYS = {
    "build-overlay": Way(words=BUILD, method="overlay mount of the layers"),
    "build-buildkit": Way(
        words=BUILD,
        method="overlay mount of the layers",
        steps=STEPS.replace("RUN sleep", "RUN --mount=type=cache,target=/keep sleep"),
    ),
    "build-export": Way(words=BUILD, method="streamed export", weak=True),
    "import-overlay": Way(
        words=("import-image", f"dockerd://{TAG}", "--name", "it"), method="overlay mount of the layers"
    ),
    "import-export": Way(
        words=("import-image", f"dockerd://{TAG}", "--name", "it"), method="streamed export", weak=True
    ),
    "import-merge": Way(words=("import-image", "./saved.tar", "--name", "it"), method="merging the layers"),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[engines.Engine]:
    """A Docker Engine in which nobody else builds, with the base. DOCKER_HOST names it."""
    dockerd = shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if dockerd is None or os.geteuid() != 0:
        pytest.skip("an engine of its own needs root and dockerd")
    with tempfile.TemporaryDirectory(prefix="kit-engine-") as folder, pytest.MonkeyPatch.context() as patch:
        host = f"unix://{folder}/socket"
        argv = [dockerd, "--bridge=none", "--iptables=false", "--ip6tables=false", f"--host={host}"]
        argv += [f"--{name}={folder}/{name}" for name in ("data-root", "exec-root", "pidfile")]
        with Path(folder, "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as daemon:
            try:
                patch.setenv("DOCKER_HOST", host)
                wait_until(answers, seconds=60)
                found = engines.connect()
                import_base(found, tmp_path_factory.mktemp("base"))
                yield found
            finally:
                daemon.terminate()


def answers() -> bool:
    """Whether the engine of DOCKER_HOST does."""
    with contextlib.suppress(EngineError):
        engines.connect()
        return True
    return False


@pytest.fixture
def lab(engine: engines.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageLab]:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    made = ImageLab(project=tmp_path / "project", store=tmp_path / "store")
    made.write(STEPS)
    (made.folder / "noise").write_bytes(random.Random(1).randbytes(NOISE))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    yield made
    engine.remove(TAG)


def start(lab: ImageLab, way: Way, *more: str) -> subprocess.Popen[str]:
    # Tests that run in a shell's background inherit an ignored SIGINT.
    argv = ["env", "--default-signal=INT", sys.executable, "-m", "kit", *way.words, *more]
    if way.weak:
        argv = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", *argv]
    return subprocess.Popen(
        argv,
        cwd=lab.project,
        env=os.environ | {"KIT_STORE": str(lab.store)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def whole(lab: ImageLab, way: Way) -> tuple[dict[str, Any], float]:
    """The command's result, and the seconds from its first line to its end."""
    process = start(lab, way, "--json")
    assert process.stderr is not None
    process.stderr.readline()
    begin = time.monotonic()
    out, err = process.communicate()
    assert process.returncode == 0, err
    return json.loads(out), time.monotonic() - begin


def kill_after(lab: ImageLab, way: Way, seconds: float, number: signal.Signals) -> None:
    """End the command that long after its first line."""
    process = start(lab, way)
    assert process.stderr is not None
    process.stderr.readline()
    time.sleep(seconds)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode in (0, 130, -number), err


def forget(lab: ImageLab, result: dict[str, Any]) -> None:
    """Take the image and its lock away, so that the command has all of its work before it."""
    Path(result["lock"]).unlink(missing_ok=True)
    for file in (lab.store / "sha256").iterdir():
        file.unlink()


def left_in_the_engine() -> list[str]:
    """Images on the test's base that the tagged one does not stand on, and containers of any image.

    What BuildKit makes has no parent that an engine tells, so the layers decide.
    """
    client: Any = docker.APIClient(base_url=os.environ["DOCKER_HOST"])
    held = {one["Id"]: client.inspect_image(one["Id"]) for one in client.images(all=True)}

    def line(image: str) -> list[str]:
        found = []
        while image in held:
            found.append(image)
            image = held[image]["Parent"]
        return found

    base = client.inspect_image(BASE)
    layers = base["RootFS"]["Layers"]
    ours = {image for image, facts in held.items() if (facts["RootFS"].get("Layers") or [])[: len(layers)] == layers}
    needed = {base["Id"], *line(client.inspect_image(TAG)["Id"])}
    return [*(ours - needed), *(one["Id"] for one in client.containers(all=True))]


def left_on_the_machine(lab: ImageLab, result: dict[str, Any]) -> list[str]:
    """All that has to do with the test's folders and is not the image, its notes, its lock, or what the test wrote."""
    hexes = result["digest"].removeprefix("sha256:")
    expected = {
        f"{hexes}.sqsh",
        f"{hexes}.json",
        f"{hexes}.blocks",
        "image.lock",
        "image.toml",
        "Dockerfile",
        "noise",
        "saved.tar",
        "base.tar",
    }
    root = lab.store.parent
    files = [path for path in root.rglob("*") if not path.is_dir() and path.name not in expected]
    notes = list((lab.store / "refs").iterdir())
    left = [str(path) for path in files if path not in notes]
    left += [str(path) for path in notes if not Path(path.read_text().strip()).is_file()]
    left += [str(path) for path in (*(lab.store / "tmp").iterdir(), *(root / "tmp").iterdir())]
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return left + [line for line in mounts if str(root) in line] + processes(root)


def processes(root: Path) -> list[str]:
    """Command lines that name the test's folder, or processes that work in it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            at = str((folder / "cwd").readlink())
        except OSError:
            continue
        if str(root) in words or at.startswith(str(root)):
            found.append(words)
    return found


def check(lab: ImageLab, name: str, kills: list[tuple[float, signal.Signals]]) -> None:
    """Kill at each moment (0 to 1) by the signal, run the command again, and compare."""
    way = WAYS[name]
    lab.write(way.steps)
    if name.startswith("import"):
        whole(lab, WAYS["build-overlay"])
        forget(lab, {"lock": str(lab.lock_file)})
        for note in (lab.store / "refs").iterdir():
            note.unlink()
        if name == "import-merge":
            shell.run(["docker", "save", "-o", str(lab.project / "saved.tar"), TAG])
    first, seconds = whole(lab, way)
    assert first["method"] == way.method
    assert left_in_the_engine() == []
    for moment, number in kills:
        forget(lab, first)
        kill_after(lab, way, moment * seconds, number)
        wait_until(lambda: not processes(lab.store.parent))
        again, _ = whole(lab, way)
        assert again["digest"] == first["digest"], (moment, number)
        assert left_on_the_machine(lab, first) == [], (moment, number)
        assert left_in_the_engine() == [], (moment, number)


@needs_root
@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("build-overlay", [(0.3, signal.SIGKILL), (0.6, signal.SIGINT)]),
        ("build-buildkit", [(0.5, signal.SIGKILL)]),
        ("import-export", [(0.5, signal.SIGKILL)]),
        ("import-merge", [(0.5, signal.SIGKILL)]),
    ],
)
def test_a_kill_leaves_nothing(lab: ImageLab, name: str, kills: list[tuple[float, signal.Signals]]) -> None:
    check(lab, name, kills)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs_root
@pytest.mark.parametrize("name", WAYS)
def test_a_kill_at_eight_moments_leaves_nothing(lab: ImageLab, name: str) -> None:
    check(lab, name, [(n / 8, number) for n in range(8) for number in (signal.SIGINT, signal.SIGKILL)])
