"""The options of a TorchTitan checkout, as its dataclasses declare them: read as text, so nothing of it is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from kit.files import untrusted_files

# Where releases and forks declare JobConfig, and the sections that it consists of.
_PLACES = ("torchtitan/config_manager.py", "torchtitan/config/job_config.py")
_MOST_BYTES = 4 << 20


def options(folder: Path) -> dict[str, str]:
    """Option -> its annotation, such as `training.steps` -> `int`, of the checkout in a folder; empty if there is none."""
    for place in _PLACES:
        try:
            tree = ast.parse(untrusted_files.read_text(folder / place, most=_MOST_BYTES))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        classes = {one.name: one for one in tree.body if isinstance(one, ast.ClassDef)}
        if "JobConfig" in classes:
            return dict(_fields("JobConfig", classes, depth=0))
    return {}


def _fields(
    name: str, classes: Mapping[str, ast.ClassDef], *, depth: int, prefix: str = ""
) -> Iterator[tuple[str, str]]:
    """The annotated fields of a class. A field whose annotation is another class of the file is a section of options."""
    for line in classes[name].body:
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        kind = ast.unparse(line.annotation)
        # No release has more than three levels; a class that contains itself would have no end.
        if kind in classes and depth < 4:
            yield from _fields(kind, classes, depth=depth + 1, prefix=f"{prefix}{line.target.id}.")
        else:
            yield f"{prefix}{line.target.id}", kind
