"""Files that a run's program wrote, chosen by patterns, for `kit export --outputs`."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from kit.errors import UsageError
from kit.files import untrusted_files
from kit.schema.run_paths import RunPaths

# Folders of a run with what its program wrote; others are the kit's, and an export has them anyway.
_KITS = frozenset({"bin", "lib", "code", "configs", "locks", "logs", "monitor", "state"})
_NAMED = 8


def find(run_dir: Path, patterns: Sequence[str], code: Mapping[str, str]) -> dict[str, Path]:
    """Path in the run folder -> file, for every file that matches a pattern. code: path -> sha256 of the snapshot's files.

    A pattern is relative to the program's working folder or to the run folder; that of a folder means all that is in it. Links and
    hidden files are left out, and so is the code as it was submitted. UsageError for a pattern that leads out or matches nothing.
    """
    files: dict[str, Path] = {}
    for pattern in patterns:
        _require_inside(pattern)
        matching = {str(path.relative_to(run_dir)): path for path in _matching(run_dir, pattern, code)}
        if not matching:
            raise _nothing(run_dir, pattern, code)
        files |= matching
    return files


def _require_inside(pattern: str) -> None:
    parts = PurePosixPath(pattern).parts
    if not parts or parts[0] == "/" or ".." in parts:
        problem = f"--outputs {shlex.quote(pattern)}: not a path in the program's working folder"
        raise UsageError(problem, hint="--outputs 'out/*.pt', relative to that folder")


def _matching(run_dir: Path, pattern: str, code: Mapping[str, str]) -> Iterator[Path]:
    workspace = RunPaths(run_dir).workspace
    for root in (workspace, run_dir):
        for path in root.glob(pattern) if root.is_dir() else ():
            below = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
            yield from (one for one in below if _is_output(one, run_dir, workspace, code))


def _is_output(path: Path, run_dir: Path, workspace: Path, code: Mapping[str, str]) -> bool:
    parts = path.relative_to(run_dir).parts
    if any(part.startswith(".") or part == "__pycache__" for part in parts) or parts[0] in _KITS or len(parts) < 2:
        return False
    # A link on the way could lead to any file of the machine.
    if not path.is_file() or os.path.realpath(path) != os.path.join(os.path.realpath(run_dir), *parts):  # noqa: PTH118
        return False
    name = str(path.relative_to(workspace)) if path.is_relative_to(workspace) else ""
    return name not in code or code[name] != _digest(path)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with untrusted_files.open_regular(path) as source:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _nothing(run_dir: Path, pattern: str, code: Mapping[str, str]) -> UsageError:
    written = sorted({_top(path, run_dir) for path in _matching(run_dir, "*", code)})
    problem = f"--outputs {shlex.quote(pattern)}: no file that the program of {run_dir.name} wrote matches"
    if not written:
        return UsageError(f"{problem}; its folder has none", hint=f"kit export {run_dir.name}, without --outputs")
    listed = ", ".join(written[:_NAMED]) + (f" and {len(written) - _NAMED} more" if len(written) > _NAMED else "")
    hint = f"kit export {run_dir.name} --outputs {shlex.quote(written[0])}"
    return UsageError(f"{problem}; there are: {listed}", hint=hint)


def _top(path: Path, run_dir: Path) -> str:
    workspace = RunPaths(run_dir).workspace
    return path.relative_to(workspace if path.is_relative_to(workspace) else run_dir).parts[0]
