"""`kit convert-checkpoint`: runs launchers/convert/convert.py, which needs torch, in an image on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kit.errors import RunError, UsageError
from kit.images.progress import ProgressReporter
from kit.run_launcher_program import NodeProgram, Shown
from kit.schema.image import ImageLock
from kit.schema.run_paths import RunPaths

Format = Literal["pytorch", "huggingface"]

NEEDS: dict[Format, tuple[str, ...]] = {"pytorch": ("torch", "numpy"), "huggingface": ("torch", "numpy", "safetensors")}

# Files of a checkpoint, or of a folder of them: launchers/convert/source.py follows the links.
_MARKS = ("latest", "latest_checkpointed_iteration.txt", "complete.json", ".metadata")


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The conversion to make. image: name of the image to run in; python: an interpreter with torch, to run without a container.

    options: extra arguments for convert.py. store: of images.
    """

    source: Path
    target: Path
    to: Format
    image: str
    python: str | None
    store: Path
    project: Path
    force: bool = False
    options: tuple[str, ...] = ()


def convert(order: Conversion, report: ProgressReporter) -> dict[str, Any]:
    """Convert and return facts about the result: source, target, to, tensors, bytes, files, model_config.

    RunError for a checkpoint that is incomplete or cannot be converted to this format; the target is then unchanged. UsageError for
    impossible paths, ImageError and LockError for the image, ToolError when the program fails otherwise.
    """
    source, target = _checkpoint(order.source), order.target.absolute()
    _check(order, source, target)
    program = NodeProgram(
        script="convert/convert.py",
        image=order.image,
        python=order.python,
        needs=NEEDS[order.to],
        why=f"--to {order.to}",
        store=order.store,
        project=order.project,
    )
    made = Shown(host=target.parent, inside="/kit/target", tail=f"/{target.name}", writable=True)
    words = ["--to", order.to, *(["--force"] if order.force else []), *order.options, "--json-lines"]
    return program.run([Shown(host=source, inside="/kit/source"), made, *words], report)


def _checkpoint(source: Path) -> Path:
    """The checkpoint folder. For a run folder, the folder of its checkpoints."""
    source = source.absolute()
    paths = RunPaths(source)
    if not source.is_dir():
        raise RunError(f"{source}: no such folder", hint="the folder of a checkpoint, of all of them, or of a run")
    # Also of a program that was started without the kit: its folder has no manifest.
    is_of_checkpoints = any((source / name).exists() for name in _MARKS)
    return paths.checkpoints if paths.checkpoints.is_dir() and not is_of_checkpoints else source


def _check(order: Conversion, source: Path, target: Path) -> None:
    """Refuse wrong paths before anything is started."""
    if not target.parent.is_dir():
        raise RunError(f"{target}: the folder {target.parent} does not exist", hint=f"mkdir -p {target.parent}")
    resolved, held = target.resolve(), source.resolve()
    if resolved == held or held in resolved.parents or resolved in held.parents:
        raise UsageError(f"{target}: the target must not contain the checkpoint or lie inside it")
    if os.path.lexists(target) and not order.force:
        raise RunError(f"{target}: the target exists already", hint="--force replaces it when the new one is complete")


def lacking(lock: ImageLock, to: Format) -> list[str]:
    """The packages that `--to` needs and that the image lacks, by its lock; empty if the lock lists no packages."""
    return lock.packages.lacking(NEEDS[to])
