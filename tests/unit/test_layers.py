"""The import contracts of pyproject.toml refuse what they are there to refuse: each is broken on purpose, in a copy of kit/."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import REPO

# One process for all rounds: it plants the lines of a round, asks import-linter, and takes them out again.
_LINT = """
import json, sys
from pathlib import Path
from importlinter import configuration
from importlinter.application import output, use_cases

configuration.configure()
said = {}
for name, planted in json.load(sys.stdin).items():
    before = {path: Path(path).read_text() if Path(path).exists() else None for path in planted}
    for path, line in planted.items():
        Path(path).write_text((before[path] or "") + "\\n" + line + "\\n")
    output.console.width = 200
    with output.console.capture() as captured:
        kept = use_cases.lint_imports("pyproject.toml", cache_dir="cache", no_logo=True)
    for path, text in before.items():
        Path(path).write_text(text) if text is not None else Path(path).unlink()
    said[name] = (kept, captured.get())
Path("said.json").write_text(json.dumps(said))
"""


def _contracts() -> list[dict[str, object]]:
    settings = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    contracts: list[dict[str, object]] = settings["tool"]["importlinter"]["contracts"]
    return contracts


def _layers() -> list[list[str]]:
    """The floors of kit/, the highest first; the modules of one floor may not import each other either."""
    (contract,) = (one for one in _contracts() if one.get("containers") == ["kit"])
    layers = contract["layers"]
    assert isinstance(layers, list)
    return [re.split(r"\s*[|:]\s*", layer) for layer in layers]


def _file(module: str) -> str:
    package = Path("kit", *module.split("."))
    return str(package / "__init__.py" if (REPO / package).is_dir() else package.with_suffix(".py"))


def _upward() -> Iterator[tuple[str, str]]:
    """Each module of kit/ with one of the floor above, and with its neighbour on the same floor."""
    layers = _layers()
    for above, floor in zip([["__main__"], *layers], layers, strict=False):
        for module in floor:
            if above is not floor and above[0] != module:
                yield module, above[0]
        if len(floor) > 1:
            yield floor[0], floor[1]


def _packages() -> list[str]:
    """All packages of kit/, and its modules at the top, but those of kit.images."""
    found = [path.parent.relative_to(REPO / "kit") for path in (REPO / "kit").rglob("__init__.py")]
    names = [".".join(path.parts) for path in found] + [path.stem for path in (REPO / "kit").glob("[a-z]*.py")]
    return sorted(name for name in names if name and name.split(".")[0] != "images")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bool, str]]:
    """What import-linter answers to each round: whether all contracts are kept, and its report."""
    folder = tmp_path_factory.mktemp("planted")
    shutil.copytree(REPO / "kit", folder / "kit", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPO / "pyproject.toml", folder)
    rounds: dict[str, dict[str, str]] = {
        "nothing": {},
        "docker": {_file(name): "import docker" for name in _packages()},
        "docker in images": {"kit/images/build/base_image.py": "import docker"},
        "torch": {_file("frameworks"): "import torch"},
        "subprocess": {_file("record"): "import subprocess"},
        "room": {"kit/unheard_of.py": ""},
        # Each already imports the other.
        "lazy circle": {"kit/record/manifest.py": "def look():\n    from kit.record import run_facts"},
        "lazy circle of inner rooms": {
            "kit/sweeps/points/expand.py": "def look():\n    from kit.sweeps.results import plot"
        },
    }
    for module, above in _upward():
        rounds[f"{module} -> {above}"] = {_file(module): f"import kit.{above}"}
    subprocess.run(
        [sys.executable, "-c", _LINT],
        input=json.dumps(rounds),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    answers: dict[str, tuple[bool, str]] = json.loads((folder / "said.json").read_text(encoding="utf-8"))
    return answers


def test_the_copy_itself_is_clean(said: dict[str, tuple[bool, str]]) -> None:
    assert said["nothing"][0], said["nothing"][1]
    assert said["docker in images"][0], said["docker in images"][1]


@pytest.mark.parametrize("package", _packages())
def test_docker_is_refused_outside_images(said: dict[str, tuple[bool, str]], package: str) -> None:
    kept, text = said["docker"]
    assert not kept
    assert f"kit.{package} -> docker (" in text


@pytest.mark.parametrize(("module", "above"), [*_upward()])
def test_an_upward_import_is_refused(said: dict[str, tuple[bool, str]], module: str, above: str) -> None:
    kept, text = said[f"{module} -> {above}"]
    assert not kept
    assert f"kit.{module} -> kit.{above} (" in text


@pytest.mark.parametrize("name", ["torch", "subprocess"])
def test_what_no_room_may_import_is_refused(said: dict[str, tuple[bool, str]], name: str) -> None:
    kept, text = said[name]
    assert not kept
    assert f"-> {name} (" in text


def test_a_circle_is_refused_inside_a_room_too_by_an_import_in_a_function(said: dict[str, tuple[bool, str]]) -> None:
    for name, arrow in (
        ("lazy circle", ".run_facts"),
        ("lazy circle of inner rooms", ".results"),
    ):
        kept, text = said[name]
        assert not kept
        assert "No cycles are allowed in kit." in text
        assert arrow in text


def test_a_room_without_a_floor_is_refused(said: dict[str, tuple[bool, str]]) -> None:
    kept, text = said["room"]
    assert not kept
    assert "- kit.unheard_of" in text


def test_no_two_public_records_of_one_name() -> None:
    names = [
        node.name
        for path in (REPO / "kit").rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert not {name for name in names if names.count(name) > 1}
