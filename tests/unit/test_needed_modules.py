"""Modules of launchers/lib that a program needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kit.planning.needed_modules import without_unused
from tests.support import REPO


def files(launcher: str) -> dict[str, str]:
    """The files of a launcher as they are in a run's code/."""
    places = ((REPO / "launchers" / launcher, ""), (REPO / "launchers/lib", "lib/"))
    return {
        f"{prefix}{path.relative_to(folder)}": path.read_text(encoding="utf-8")
        for folder, prefix in places
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_modules_are_followed_through_each_form_of_import() -> None:
    texts = {
        "run.py": "import lib.a\nfrom lib import b\nimport_module('lib.c')\nfrom library import x",
        "lib/__init__.py": "",
        "lib/a.py": "from . import d",
        "lib/b.py": "from .deep.e import f",
        "lib/c.py": "from lib.g import h",
        **{f"lib/{name}.py": "" for name in ("d", "g", "x", "deep/__init__", "deep/e", "deep/y")},
    }
    assert texts.keys() - without_unused(texts).keys() == {"lib/x.py", "lib/deep/y.py"}


def test_a_program_that_is_no_python_keeps_all() -> None:
    texts = {"run.py": "if:", "lib/a.py": "", "lib/a.sh": ""}
    assert without_unused(texts) == texts


def test_torchtitan_needs_the_one_module_that_it_names() -> None:
    kept = without_unused(files("torchtitan"))
    assert {name for name in kept if name.startswith("lib/")} == {"lib/__init__.py", "lib/device.py"}


@pytest.mark.parametrize("launcher", ["ddp", "diloco", "fsdp"])
def test_what_a_launcher_needs_is_enough_to_import_its_library(launcher: str, tmp_path: Path) -> None:
    """With an importer that refuses nothing but what is not there: torch may be missing on this machine."""
    kept = without_unused(files(launcher))
    modules = [name for name in kept if name.startswith("lib/") and name.endswith(".py")]
    assert 5 < len(modules) < len([name for name in files(launcher) if name.startswith("lib/")])
    for name in modules:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(kept[name])
    imports = "\n".join(f"attempt({name[:-3].replace('/', '.')!r})" for name in modules)
    program = (
        "import importlib\n"
        "def attempt(name):\n"
        "    try: importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        assert not error.name.startswith('lib'), error\n"
    )
    argv = [sys.executable, "-c", program + imports]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
