"""`kit convert-checkpoint`: starts launchers/convert/convert.py, which has torch, in an image on this machine.

The kit itself has no torch. What it adds is the container and the bar.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from kit import data_folders, shell
from kit.errors import ImageError, RunError, ToolError, UsageError
from kit.images import lock as image_lock
from kit.images import verify
from kit.images.progress import Report
from kit.runtimes.base import Container
from kit.runtimes.bubblewrap import runtime
from kit.spec.image import ImageLock
from kit.spec.job import ContainerOptions
from kit.spec.mount import Mount
from kit.spec.paths import CONTAINER_RUN, RunPaths

Format = Literal["pytorch", "huggingface"]

NEEDS: dict[Format, tuple[str, ...]] = {"pytorch": ("torch", "numpy"), "huggingface": ("torch", "numpy", "safetensors")}

_SOURCE, _TARGET, _LAUNCHERS = "/kit/source", "/kit/target", "/kit/launchers"


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What to convert. image: in what, by name; python: without a container, an interpreter that has torch.

    options: words for convert.py, handed on. store: of images.
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


def convert(order: Conversion, report: Report) -> dict[str, Any]:
    """Convert and return what was made: source, target, to, tensors, bytes, files, model_config.

    RunError for a checkpoint that is incomplete, or cannot become what was asked; the target is then as it was. UsageError for
    paths that cannot be, ImageError and LockError for the image, ToolError when the program fails otherwise.
    """
    source, target = _checkpoint(order.source), order.target.absolute()
    _check(order, source, target)
    words = ["--to", order.to, *(["--force"] if order.force else []), *order.options, "--json-lines"]
    launchers = data_folders.packaged() / "launchers"
    if order.python is not None:
        argv = [order.python, str(launchers / "convert/convert.py"), str(source), str(target), *words]
        return _run(argv, {**os.environ, "PYTHONPATH": str(launchers)}, {}, report)
    program = ["python3", f"{_LAUNCHERS}/convert/convert.py", _SOURCE, f"{_TARGET}/{target.name}", *words]
    shown = {_TARGET: str(target.parent), _SOURCE: str(source)}
    return _run(_contained(order, source, target, program), _environment(), shown, report)


def _checkpoint(source: Path) -> Path:
    """A run folder means its checkpoints."""
    source = source.absolute()
    paths = RunPaths(source)
    if not source.is_dir():
        raise RunError(f"{source}: no such folder", hint="the folder of a checkpoint, of all of them, or of a run")
    return paths.checkpoints if paths.manifest.is_file() and paths.checkpoints.is_dir() else source


def _check(order: Conversion, source: Path, target: Path) -> None:
    """What can be refused before anything is started."""
    if not target.parent.is_dir():
        raise RunError(f"{target}: its folder does not exist", hint=f"mkdir -p {target.parent}")
    resolved, held = target.resolve(), source.resolve()
    if resolved == held or held in resolved.parents or resolved in held.parents:
        raise UsageError(f"{target}: the target may not hold the checkpoint, nor lie in it")
    if os.path.lexists(target) and not order.force:
        raise RunError(f"{target}: it exists", hint="--force replaces it, once the new one is whole")


def _contained(order: Conversion, source: Path, target: Path, program: Sequence[str]) -> list[str]:
    """The argv that runs `program` in the image, which sees the checkpoint (read-only) and the target's folder."""
    shell.require("bwrap", hint="install bubblewrap, or convert with --no-container and --python")
    image = _image(order)
    packaged = data_folders.packaged()
    try:
        mounts = (
            Mount(source=str(packaged / "templates/bin"), target=f"{CONTAINER_RUN}/bin", flags=("ro",)),
            Mount(source=str(packaged / "launchers"), target=_LAUNCHERS, flags=("ro",)),
            Mount(source=str(source), target=_SOURCE, flags=("ro",)),
            Mount(source=str(target.parent), target=_TARGET),
        )
    except ValidationError as error:
        raise UsageError(f"a path cannot be mounted: {error.errors()[0]['msg']}") from None
    container = Container(
        image=str(image),
        mounts=mounts,
        workdir="/",
        options=ContainerOptions(remap_root=False),
        bin=packaged / "templates/bin",
        home=str(Path.home()),
    )
    script, *words = runtime.wrap([], program, container)
    return [script, "--isolated", *words]


def _image(order: Conversion) -> Path:
    """The image's file, which is the locked one and has what the program imports."""
    path = image_lock.find(order.image, project=order.project)
    if path is None:
        data_folders.find("containers", order.image, project_dir=order.project, key="--image")
        raise ImageError(f"image {order.image} is not built yet", hint=f"run 'kit build-image {order.image}'")
    lock = image_lock.read(path)
    if missing := lacking(lock, order.to):
        raise ImageError(
            f"image {order.image} lacks {', '.join(missing)}, which --to {order.to} needs",
            hint="name another with --image, or a python that has them with --no-container --python",
        )
    return verify.check(lock, order.store, full=False)


def lacking(lock: ImageLock, to: Format) -> list[str]:
    """The packages that `--to` needs and the image has not, by its lock; none where the lock lists no packages."""
    return lock.packages.lacking(NEEDS[to])


def _environment() -> dict[str, str]:
    """Nothing of the user's own reaches the program but where programs and temporary files are."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": _LAUNCHERS, "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}


def _run(argv: Sequence[str], env: dict[str, str], shown: dict[str, str], report: Report) -> dict[str, Any]:
    """Run, report on the way, and return the last word. shown: paths as the program sees them -> as the user does."""
    result: dict[str, Any] | None = None
    refused: RunError | None = None
    with contextlib.ExitStack() as bar:
        try:
            for said in _said(shell.lines(argv, env=env), shown, report):
                if "error" in said:
                    refused = RunError(said["error"], hint=said["hint"])
                elif "stage" in said:
                    bar.close()
                    advance, done = bar.enter_context(report.counting(said["stage"], said["total"])), 0
                elif "done" in said:
                    advance(said["done"] - done)
                    done = said["done"]
                elif "warning" in said:
                    report.warn(said["warning"])
                else:
                    result = said
        except ToolError:
            if refused is None:
                raise
    if refused is not None:
        raise refused
    if result is None:
        raise ToolError(f"{argv[0]}: the conversion ended and reported nothing")
    return result


def _said(lines: Iterator[str], shown: dict[str, str], report: Report) -> Iterator[dict[str, Any]]:
    """The objects among the lines; all else is somebody's own message."""
    for line in lines:
        text = line
        for inside, outside in shown.items():
            text = text.replace(inside, outside)
        try:
            content = json.loads(text)
        except ValueError:
            content = None
        if isinstance(content, dict):
            yield content
        else:
            report.line(text)
