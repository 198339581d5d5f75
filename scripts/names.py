"""Checks names of functions, of variables that live long, and of classes: `make lint`.

A function is verb and object, since its reader does not always see its module; a variable that lives for more than five lines says
what it holds; kit/, launchers/ and templates/ have one class of a name. Prints file:line of each wrong one; exit code 1 then.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# They say nothing without the module or the object before them. Functions are verb and object.
FUNCTIONS = {"of", "made", "one", "read", "prepare"}
VARIABLES = {"one", "made", "found", "said", "told", "place", "there"}
MOST_LINES = 5
# Methods: a constructor that is read with the name of its class, and the one method of the protocol Framework.
KEPT = {("kit/errors.py", "of"), ("kit/frameworks/", "prepare")}
# `read` of a file object takes a number of bytes.
SIZES = {"size", "count"}
# The stand-in for a module that a run leaves out has the names of the module.
STAND_INS = "templates/kit_node/absent/"
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def _find_functions(tree: ast.Module, file: str) -> Iterator[tuple[int, str]]:
    """Functions of the module and methods, and aliases."""
    for owner in ast.walk(tree):
        for node in owner.body if isinstance(owner, ast.Module | ast.ClassDef) else ():
            if isinstance(node, FUNCTION) and node.name in FUNCTIONS:
                is_stream = node.name == "read" and bool(
                    SIZES & {arg.arg for arg in (*node.args.posonlyargs, *node.args.args)}
                )
                is_kept = is_stream or any(file.startswith(place) and node.name == name for place, name in KEPT)
                if not (is_kept and isinstance(owner, ast.ClassDef)):
                    yield node.lineno, f"function {node.name}: name it by verb and object"
        if isinstance(owner, ast.alias) and owner.asname in FUNCTIONS:
            yield owner.lineno, f"alias {owner.asname}: name it after the module"


def _find_variables(function: ast.AST) -> Iterator[tuple[int, str]]:
    lines = defaultdict[str, list[int]](list)
    for node in ast.walk(function):
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
        if name in VARIABLES:
            lines[name].append(node.lineno)  # type: ignore[attr-defined] # both have one
    for name, at in lines.items():
        if max(at) - min(at) > MOST_LINES:
            yield min(at), f"{name} lives for {max(at) - min(at)} lines: name it after what it holds"


def _find_doubled_classes() -> Iterator[str]:
    """Classes that have the name of another one, in whichever of the three trees."""
    classes = defaultdict[str, list[str]](list)
    for folder in ("kit", "launchers", "templates"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            file = str(path.relative_to(ROOT))
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not file.startswith(STAND_INS):
                    classes[node.name].append(f"{file}:{node.lineno}")
    for name, (first, *others) in classes.items():
        for other in others:
            yield f"{other}: class {name}: {first} has the name: say what this one is"


def main() -> int:
    """Return 1 if there is a wrong name."""
    wrong = set(_find_doubled_classes())
    for folder in ("kit", "templates/kit_node"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            file, tree = str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))
            long = [pair for node in ast.walk(tree) if isinstance(node, FUNCTION) for pair in _find_variables(node)]
            wrong |= {f"{file}:{line}: {text}" for line, text in (*_find_functions(tree, file), *long)}
    print("\n".join(sorted(wrong)) or "names: as they should be")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
