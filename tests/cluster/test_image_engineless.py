"""Images that stand on another and are built without an engine: the bytes of an engine's build, as root and as an ordinary user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from kit import shell
from kit.errors import EngineError
from kit.images.sources import engine as engines
from tests.cluster.image_lab import ImageLab, needs_root
from tests.support import REPO

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shell.which("bwrap") is None, reason="bubblewrap is not installed"),
]

NOBODY = 65534
# What an image of one's own does, and what it may meet: links on the way of a COPY, setuid, an owner, odd words, a closed folder.
STEPS = """\
ARG BASE
FROM ${BASE}
# a comment
COPY one two/ /app/by/
COPY one /soft/in/it
ENV FIRST=1 GREETING=other
WORKDIR /work/here
RUN pwd > where && echo "$FIRST $GREETING $HOME $PATH" > said && umask > mask \\
    && mkdir closed && echo x > closed/in && chmod 0 closed/in closed && chmod 4711 said
COPY two/inner here
CMD ["/bin/sh", "-c", "echo $FIRST"]
"""
PARENT = """\
ARG BASE
FROM ${BASE}
RUN mkdir -p /real /tmp && ln -s /real /soft && chmod 1777 /tmp && echo s > /real/s && chmod 4755 /real/s
"""


@pytest.fixture
def lab(engine: engines.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageLab]:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    made = ImageLab(project=tmp_path / "project", store=tmp_path / "store")
    made.write(PARENT)
    child = made.project / "containers/child"
    (child / "two").mkdir(parents=True)
    (child / "image.toml").write_text('[base]\nimage = "tiny"\n')
    (child / "Dockerfile").write_text(STEPS)
    (child / "one").write_text("one")
    (child / "two/inner").write_text("inner")
    (child / "two/inner").chmod(0o755)
    (child / "two/link").symlink_to("inner")
    yield made
    for tag in ("kit-image/child:latest", "kit-image/tiny:latest"):
        engine.remove(tag)
    for image in docker.from_env().images.list("kit-base/image-tiny"):
        engine.remove(image.tags[0])


def child(
    project: Path, store: Path, *before: str, host: str = "unix:///no/such/socket", python: str = sys.executable
) -> tuple[dict[str, object], str]:
    """`kit build-image child` with its result and what it said; host: of the engine, none by default."""
    done = subprocess.run(
        [*before, python, "-m", "kit", "build-image", "child", "--json", "--store", str(store)],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(REPO)} | ({"DOCKER_HOST": host} if host else {}),
        capture_output=True,
        text=True,
        check=False,
        umask=0o077,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@needs_root
def test_the_bytes_are_those_of_an_engine(lab: ImageLab) -> None:
    lab.build()
    by_engine, _ = child(lab.project, lab.store, host="")
    lock = lab.project / "containers/child/image.lock"
    engines_lock = lock.read_text()
    lock.unlink()
    by_root, said = child(lab.project, lab.store)
    assert "building without one" in said
    assert by_root["digest"] == by_engine["digest"]
    same = [line for line in engines_lock.splitlines() if not line.startswith(("engine", "image_id"))]
    assert [line for line in lock.read_text().splitlines() if line in same] == same


@needs_root
def test_an_ordinary_user_gets_the_same_bytes(lab: ImageLab, tmp_path: Path) -> None:
    parent = lab.build().image
    by_root, _ = child(lab.project, lab.store)
    home = tmp_path / "theirs"
    shutil.copytree(lab.project, home / "project", symlinks=True)
    (home / "store/sha256").mkdir(parents=True)
    shutil.copy(parent, home / "store/sha256")
    (home / "project/containers/child/image.lock").unlink()
    for path in (home, *home.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    for path in (tmp_path, *tmp_path.parents[:-1]):
        path.chmod(path.stat().st_mode | 0o011)
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", f"HOME={home}"]
    become += [f"XDG_{name}_HOME={home / name.lower()}" for name in ("CONFIG", "DATA", "CACHE", "STATE")]
    become += [f"PYTHONPATH={REPO}:{sysconfig.get_path('purelib')}", "PYTHONDONTWRITEBYTECODE=1"]
    if shell.run([*become, "bwrap", "--unshare-user", "--bind", "/", "/", "true"], check=False).returncode != 0:
        pytest.skip("this machine allows an ordinary user no namespaces")
    # A Python below the home of root is nobody else's.
    pythons = (sys.executable, "/usr/bin/python3")
    works = (one for one in pythons if shell.run([*become, one, "-c", "import kit.cli"], check=False).returncode == 0)
    python = next(works, "")
    if not python:
        pytest.skip("no Python here that another user may run with the kit's packages")
    by_user, _ = child(home / "project", home / "store", *become, python=python)
    assert by_user["method"] == "walking the folder"
    assert by_user["digest"] == by_root["digest"]
    assert list((home / "store/tmp").iterdir()) == []


def test_what_needs_an_engine_is_named_by_its_line(lab: ImageLab) -> None:
    lab.build()
    (lab.project / "containers/child/Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nVOLUME /data\n")
    done = shell.run(
        [sys.executable, "-m", "kit", "build-image", "child", "--store", str(lab.store)],
        cwd=lab.project,
        env=os.environ | {"PYTHONPATH": str(REPO), "DOCKER_HOST": "unix:///no/such/socket"},
        check=False,
    )
    assert done.returncode == EngineError.exit_code
    assert "no container engine answers" in done.stderr
    assert "line 3 of the Dockerfile (VOLUME) needs one" in " ".join(done.stderr.split())


@needs_root
def test_a_step_that_fails_is_shown_with_its_line_and_leaves_nothing(lab: ImageLab) -> None:
    lab.build()
    (lab.project / "containers/child/Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nRUN echo last words; exit 3\n")
    done = shell.run(
        [sys.executable, "-m", "kit", "build-image", "child", "--store", str(lab.store)],
        cwd=lab.project,
        env=os.environ | {"PYTHONPATH": str(REPO), "DOCKER_HOST": "unix:///no/such/socket"},
        check=False,
    )
    assert "RUN echo last words; exit 3 (line 3 of the Dockerfile)\n  last words\n  exit code 3\n" in done.stderr
    assert list((lab.store / "tmp").iterdir()) == []
    assert not (lab.project / "containers/child/image.lock").exists()
