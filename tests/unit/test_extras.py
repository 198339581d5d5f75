"""Optional imports of kit/: each belongs to an extra, and the error without it says the line that installs the extra."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kit.cli.mcp import mcp
from kit.cli.serve import serve
from kit.errors import ToolError, UsageError
from kit.images import image_lock, sbom
from kit.migrate import bash_tree
from kit.notices import send
from kit.reports import vega_library
from kit.sweeps.results import plot, result_files
from kit.sweeps.search import search_requirements
from tests.support import REPO

PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
# The module that Python imports -> the extra whose package has it.
OPTIONAL = {
    "anyio": "serve",
    "apprise": "notify",
    "cyclonedx": "sbom",
    "matplotlib": "plot",
    "mcp": "mcp",
    "mcp_types": "mcp",
    "numpy": "search",
    "optuna": "search",
    "packageurl": "sbom",
    "prometheus_client": "serve",
    "pyarrow": "parquet",
    "spdx_tools": "sbom",
    "starlette": "serve",
    "tree_sitter": "migrate",
    "tree_sitter_bash": "migrate",
    "uvicorn": "serve",
    "vl_convert": "report",
}
# Modules that come with a package of another name.
COMES_WITH = {
    "packageurl": "cyclonedx_python_lib",
    "cyclonedx": "cyclonedx_python_lib",
    "mcp_types": "mcp",
    "vl_convert": "vl_convert_python",
    "anyio": "starlette",
}
# Packages of a base dependency whose module kit/ imports by itself.
OF_THE_BASE = {"annotated_types": "pydantic", "click": "typer", "pydantic_core": "pydantic", "urllib3": "requests"}


def packages(requirements: list[str]) -> set[str]:
    """The names of requirements, as modules are written."""
    return {re.split(r"[^A-Za-z0-9_.-]", one, maxsplit=1)[0].replace("-", "_").lower() for one in requirements}


def imported() -> Iterator[tuple[str, Path]]:
    """Each module outside the standard library that a file of kit/ imports, anywhere in it."""
    for path in sorted((REPO / "kit").rglob("*.py")):
        if "_data" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for top in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"kit"}:
                yield top, path


def test_every_import_is_of_the_base_or_of_an_extra() -> None:
    found = dict(imported())
    base = packages(PROJECT["dependencies"]) | set(OF_THE_BASE)
    assert {name: path.name for name, path in found.items() if name not in base and name not in OPTIONAL} == {}
    assert set(OPTIONAL) <= set(found), "a module that nothing imports any more"


@pytest.mark.parametrize(("module", "extra"), OPTIONAL.items())
def test_each_extra_has_the_package(module: str, extra: str) -> None:
    assert COMES_WITH.get(module, module) in packages(PROJECT["optional-dependencies"][extra])


def _plot() -> None:
    plot._figure((), "x", "y", "line")


def _parquet() -> None:
    nothing: Any = None
    result_files._write_parquet(nothing, Path("x"))


def _sbom(form: Any) -> None:
    sbom.make_sbom(image_lock.read_lock(REPO / "containers/train-cpu/image.lock"), form, now=datetime.now(UTC))


# What is missing, and what the command that needs it calls.
CALLS: list[tuple[str, Callable[[], object]]] = [
    ("apprise", send.require_apprise),
    ("cyclonedx", lambda: _sbom("cyclonedx")),
    ("matplotlib", _plot),
    ("mcp", mcp),
    ("mcp_types", mcp),
    ("optuna", search_requirements.argv),
    ("prometheus_client", serve),
    ("pyarrow", _parquet),
    ("spdx_tools", lambda: _sbom("spdx")),
    ("starlette", serve),
    ("tree_sitter", lambda: bash_tree.parse("")),
    ("tree_sitter_bash", lambda: bash_tree.parse("")),
    ("uvicorn", serve),
    ("vl_convert", vega_library.script),
]


@pytest.mark.parametrize(("module", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_what_is_not_installed_is_named_with_the_line_that_adds_it(
    module: str, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python's own mark of a module that cannot be imported.
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises((ToolError, UsageError)) as caught:
        call()
    assert caught.value.hint == f"pip install 'slurm-kit[{OPTIONAL[module]}]'"


def test_each_optional_module_is_tried_but_those_that_come_with_another() -> None:
    assert set(OPTIONAL) - {name for name, _ in CALLS} == {"anyio", "numpy", "packageurl"}
