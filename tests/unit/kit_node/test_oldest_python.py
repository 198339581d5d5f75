"""The oldest Python of the modules that run beside ranks is 3.8: own_python.sh runs this folder on it.

Any Python can tell their syntax.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.kit_node.conftest import NODE

MODULES = sorted([*NODE.glob("*.py"), *NODE.glob("absent/*.py")])
# torch is in the image of the job, whatever its Python is.
OF_FRAMEWORKS = {"all_reduce.py"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_it_has_the_syntax_of_python_3_8(path: Path) -> None:
    """ast.parse raises SyntaxError at what Python 3.8 does not know."""
    assert ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8)).body


@pytest.mark.parametrize("folder", [".", "absent"])
def test_it_is_loaded_without_any_package(folder: str) -> None:
    """On Python 3.8 this finds types that it does not have, in what is not an annotation."""
    names = [path.stem for path in sorted((NODE / folder).glob("*.py")) if path.name not in OF_FRAMEWORKS]
    code = f"import sys; sys.path.insert(0, {str(NODE / folder)!r}); import {', '.join(names)}; print('loaded')"
    done = subprocess.run([sys.executable, "-B", "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("loaded\n", "")


def test_all_functions_have_types() -> None:
    """mypy skips the body of a function without them where nobody calls it strictly."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.returns is not None, (path.name, node.name)
