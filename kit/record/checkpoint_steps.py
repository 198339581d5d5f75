"""The checkpoints in a run folder, by step: of the kit's programs, of replica groups, and of frameworks that number them."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit.errors import RunError
from kit.files import untrusted_files
from kit.schema.run_paths import RunPaths

# step-00000120 (the kit's, TorchTitan's), iter_0000120 (Megatron-LM), checkpoint-120 (Hugging Face), global_step120 (DeepSpeed).
_NAME = re.compile(r"(?:step-|iter_|checkpoint-|global_step)(?P<step>\d{1,18})")
_GROUP = re.compile(r"replica-\d+")
# The file that the kit's programs write last, and the files in which a framework names its newest checkpoint.
_COMPLETE, _LATEST, _MEGATRON = "complete.json", "latest", "latest_checkpointed_iteration.txt"
_NAMED = 10


@dataclass(frozen=True)
class SavedStep:
    """A checkpoint. folders: one, or one for each replica group. pointers: files that name it as the newest, by path in the run."""

    folders: tuple[Path, ...]
    pointers: dict[str, str]


def steps(run_dir: Path) -> list[int]:
    """The steps with a checkpoint of every replica group, in order."""
    return sorted(set.intersection(*({step for step, _ in _inside(root)} for root in _roots(run_dir))))


def find(run_dir: Path, step: int) -> SavedStep:
    """The checkpoint of a step; RunError, with the existing steps, if there is none."""
    folders, pointers = [], {}
    if step not in steps(run_dir):
        there = steps(run_dir)
        more = "..., " if len(there) > _NAMED else ""
        shown = f"; there are {more}{', '.join(map(str, there[-_NAMED:]))}" if there else ""
        folder = RunPaths(run_dir).checkpoints
        hint = f"--from-step {min(there, key=lambda one: abs(one - step))}" if there else "leave --from-step out"
        raise RunError(f"{folder}: no checkpoint of step {step}{shown}", hint=hint)
    for root in _roots(run_dir):
        folder = next(path for number, path in _inside(root) if number == step)
        folders.append(folder)
        here = root.relative_to(run_dir)
        if (root / _MEGATRON).is_file():
            pointers[f"{here}/{_MEGATRON}"] = f"{step}"
        elif (root / _LATEST).is_file():
            pointers[f"{here}/{_LATEST}"] = f"{folder.name}\n"
    return SavedStep(tuple(folders), pointers)


def require(run_dir: Path, step: int) -> None:
    """RunError if a step has no checkpoint, or if its files have changed: the program would then start at step 0."""
    for folder in find(run_dir, step).folders:
        if fault := _fault(folder):
            raise RunError(f"{folder}: damaged: {fault}", hint="--from-step with another step")


def _roots(run_dir: Path) -> list[Path]:
    root = RunPaths(run_dir).checkpoints
    groups = sorted(path for path in root.glob("replica-*") if _GROUP.fullmatch(path.name))
    return groups or [root]


def _inside(root: Path) -> Iterator[tuple[int, Path]]:
    kits = (root / _LATEST).is_file()
    for path in sorted(root.glob("*")):
        found = _NAME.fullmatch(path.name)
        if found and path.is_dir() and (not kits or not path.name.startswith("step-") or (path / _COMPLETE).is_file()):
            yield int(found["step"]), path


def _fault(folder: Path) -> str:
    """The difference from complete.json. Empty for an undamaged checkpoint, and for one of a program that writes no such file."""
    if not (folder / _COMPLETE).is_file():
        return ""
    try:
        wanted = json.loads(untrusted_files.read_bytes(folder / _COMPLETE))["files"]
        for name, (size, crc) in wanted.items():
            if (folder / name).stat().st_size != size or _crc(folder / name) != crc:
                return f"{name} is not as it was written"
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _crc(path: Path) -> int:
    crc = 0
    with untrusted_files.open_regular(path) as source:
        while part := source.read(1 << 20):
            crc = zlib.crc32(part, crc)
    return crc
