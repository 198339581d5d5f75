"""Finds the modules of a launcher's library that its programs import: `kit generate` writes these only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

_PACKAGE = "lib"


def without_unused(texts: Mapping[str, str]) -> dict[str, str]:
    """The files without modules of lib/ that no program imports, directly or through other modules.

    texts: path below the launcher's folder in the run -> text. A program that no parser of Python reads needs all of lib/.
    """
    needed = {name for name in texts if not name.startswith(f"{_PACKAGE}/")}
    waiting = [name for name in needed if name.endswith(".py")]
    while waiting:
        name = waiting.pop()
        try:
            tree = ast.parse(texts[name])
        except SyntaxError:
            return dict(texts)
        found = {file for module in _imported(tree, name) for file in _files(module)} & texts.keys() - needed
        needed |= found
        waiting += found
    return {name: text for name, text in texts.items() if name in needed}


def _imported(tree: ast.Module, file: str) -> Iterator[str]:
    """Dotted names that may be modules of the library. A text counts, too: importlib.import_module("lib.device")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # `from . import x` in lib/model.py is lib.x.
            package = file.split("/")[: -node.level] if node.level else []
            module = ".".join([*package, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _files(module: str) -> Iterator[str]:
    """The files that an import of this name reads, if they exist."""
    parts = module.split(".")
    if parts[0] == _PACKAGE:
        for length in range(1, len(parts) + 1):
            path = "/".join(parts[:length])
            yield from (f"{path}.py", f"{path}/__init__.py")
