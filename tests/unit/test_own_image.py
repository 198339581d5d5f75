"""`kit init --image`: the packages of a file, or a Dockerfile, become the folder of a new image that `kit build-image` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.config import load_model
from kit.errors import UsageError
from kit.images import image_lock
from kit.images.build import dockerfile_needs
from kit.schema.image import ImageSpec
from kit.workflow import own_image, own_packages, requirement_files
from kit.workflow.own_image import OwnImage
from tests.support import REPO

HELD = image_lock.read_lock(REPO / "containers/train-cpu/image.lock").packages.pip

PROJECT = """\
[project]
name = "My.Model"
dependencies = ["einops>=0.7", "numpy"]
[project.optional-dependencies]
train = ["tqdm", "my-model[log_all]"]
Log-All = ["colorlog; sys_platform == 'linux'", "my_model[train]"]
"""
UV_LOCK = """\
version = 1
[[package]]
name = "einops"
source = { registry = "https://one.example/simple" }
[[package]]
name = "torch"
source = { registry = "https://cpu.example/whl" }
[[package]]
name = "numpy"
source = { registry = "https://one.example/simple" }
[[package]]
name = "mine"
source = { virtual = "." }
"""
CONDA = """\
name: mine
channels: [one]
dependencies:
  - python=3.11  # as the base has it
  - pip
{conda}  - pip:
      - einops>=0.7
      - "tqdm"
variables:
  A: b
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "user" / name.lower()))
    made = tmp_path / "project"
    (made / ".git").mkdir(parents=True)
    return made


def write(project: Path, name: str, text: str) -> Path:
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(text)
    return project / name


def program(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program first in PATH that keeps its arguments and prints a text; return the file of its arguments."""
    folder.mkdir()
    said, asked = write(folder, "said", text), folder / "asked"
    write(folder, name, f'#!/bin/sh\nprintf "%s\\n" "$@" > {asked}\ncat {said}\n').chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return asked


def test_requirements_are_read_with_the_files_that_they_include(project: Path) -> None:
    write(project, "parts/more.txt", "tqdm\n-r ../requirements.txt\n")
    text = "--index-url https://one.example/simple\n# words\neinops==0.8 \\\n    --hash=sha256:00\n-r parts/more.txt\n-e .\n"
    found = requirement_files.read_requirements(
        write(
            project,
            "requirements.txt",
            text + "x @ https://one.example/x.whl\ngit+https://one.example/y\n-r none.txt\n",
        )
    )
    assert found.lines[:2] == ("einops==0.8", "tqdm")
    assert found.indexes == ("https://one.example/simple",)
    assert set(found.left) == {
        "-e .",
        "x @ https://one.example/x.whl",
        "git+https://one.example/y",
        "-r none.txt",
        "-r ../requirements.txt",
    }


@pytest.mark.parametrize(
    ("extras", "lines"),
    [
        ((), ("einops>=0.7", "numpy")),
        (("train",), ("einops>=0.7", "numpy", "tqdm", "colorlog; sys_platform == 'linux'")),
        (("log-all",), ("einops>=0.7", "numpy", "colorlog; sys_platform == 'linux'", "tqdm")),
    ],
)
def test_extras_of_a_project_are_taken_also_through_each_other(
    project: Path, extras: tuple[str, ...], lines: tuple[str, ...]
) -> None:
    assert requirement_files.read_requirements(write(project, "pyproject.toml", PROJECT), extras).lines == lines


@pytest.mark.parametrize(
    ("file", "extras", "said"),
    [
        (("pyproject.toml", PROJECT), ("eval",), ("no extra eval", "extras: log-all, train")),
        (("pyproject.toml", "[project]\ndynamic = ['dependencies']\n"), (), ("dynamic", "pip-compile")),
        (("pyproject.toml", "[tool.poetry.dependencies]\nnumpy = '*'\n"), (), ("Poetry's own form", "poetry.lock")),
        (("requirements.txt", "numpy\n"), ("train",), ("has no extras", "pyproject.toml")),
        (
            ("env.yml", CONDA.format(conda="  - one::torch>=2\n  - x\n")),
            (),
            ("torch, x: packages of conda", "below pip:"),
        ),
        (("uv.lock", UV_LOCK), (), ("uv is not on this machine", "pip install uv")),
        (("poetry.lock", ""), (), ("poetry is not on this machine", "poetry-plugin-export")),
    ],
)
def test_what_cannot_be_read_gets_one_sentence(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: tuple[str, str],
    extras: tuple[str, ...],
    said: tuple[str, str],
) -> None:
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(UsageError, match=said[0]) as caught:
        requirement_files.read_requirements(write(project, *file), extras)
    assert said[1] in caught.value.hint


def test_an_environment_of_pip_packages_is_taken(project: Path) -> None:
    found = requirement_files.read_requirements(write(project, "environment.yml", CONDA.format(conda="")))
    assert (found.lines, found.left) == (("einops>=0.7", "tqdm"), ())


def test_a_lock_is_read_by_its_own_program(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = write(project, "uv.lock", UV_LOCK)
    asked = program(tmp_path / "bin", "uv", "einops==0.8.2\ntorch==2.9.0+cpu ; sys_platform == 'linux'\n", monkeypatch)
    found = requirement_files.read_requirements(lock, ("train",))
    assert found.lines == ("einops==0.8.2", "torch==2.9.0+cpu ; sys_platform == 'linux'")
    assert found.indexes == ("https://cpu.example/whl",)
    assert {"--frozen", "--no-emit-project", "--extra=train", f"--directory={project}"} <= {*asked.read_text().split()}
    # A pyproject.toml means the lock beside it.
    write(project, "pyproject.toml", PROJECT)
    said: list[str] = []
    made = own_image.write(OwnImage(name="mine", requirements=project / "pyproject.toml"), project, said.append)
    assert (made / "requirements.txt").read_text() == "".join(f"{line}\n" for line in found.lines)
    assert (
        load_model(made / "image.toml", ImageSpec).python
        == ImageSpec.model_validate(
            {"base": {"image": "train-cpu"}, "python": {"extra-indexes": ["https://cpu.example/whl"]}}
        ).python
    )
    assert said[0].startswith(str(lock))
    assert [f"torch==2.9.0+cpu: {HELD['torch']} is in train-cpu" in line for line in said[1:]] == [True]


def test_versions_of_the_base_are_compared(project: Path) -> None:
    """A lock for several Pythons names a package once for each."""
    lines = [
        f"numpy=={HELD['numpy']} ; python_version < '3.12'",
        "numpy==99 ; python_version > '3.12'",
        "torch>=1",
        "filelock==0.1",
    ]
    needs = requirement_files.read_requirements(write(project, "requirements.txt", "\n".join(lines)))
    assert own_packages.conflicts(needs, "train-cpu", project) == [f"filelock==0.1: {HELD['filelock']}"]


def test_an_image_of_a_dockerfile_is_the_one_of_build_image(project: Path) -> None:
    write(project, "docker/train.Dockerfile", "FROM debian:12\nCOPY src /src\n")
    said: list[str] = []
    wanted = OwnImage(name="mine", dockerfile=project / "docker/train.Dockerfile")
    made = own_image.write(wanted, project, said.append)
    assert made == project / "containers/mine"
    build = load_model(made / "image.toml", ImageSpec).build
    assert (build.context, build.dockerfile, build.network) == ("../..", "docker/train.Dockerfile", "default")
    assert said == [f"context: {project} (build.context in image.toml)"]
    assert dockerfile_needs.read_dockerfile(project / build.dockerfile, target=None, own_base=True).base == "debian:12"
    # Outside of the folder, the file's own folder is the context; a folder is its own.
    other = write(project.parent / "other", "Dockerfile", "FROM debian:12\n")
    for name, path in (("two", other), ("three", other.parent)):
        found = load_model(
            own_image.write(OwnImage(name=name, dockerfile=path), project, said.append) / "image.toml", ImageSpec
        )
        assert (found.build.context, found.build.dockerfile) == ("../../../other", "Dockerfile")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (OwnImage(name=None, base="train-cpu"), "--image does not name it"),
        (OwnImage(name="mine", extras=("x",)), "--requirements does not name it"),
        (OwnImage(name="mine", dockerfile=Path("x"), packages=("tqdm",)), "the other options change it"),
        (OwnImage(name="mine", requirements=Path("none.txt")), r"none\.txt: no such file"),
    ],
)
def test_options_that_make_no_image_are_refused(project: Path, wanted: OwnImage, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        own_image.write(wanted, project, print)
    assert not (project / "containers").exists()
