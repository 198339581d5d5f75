"""Runs a program of launchers/ on this node, in an image or with the user's Python: the kit itself lacks its packages.

The program prints its progress, warnings, error and result as lines of JSON. The kit adds the container and the progress bar.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kit import data_folders, render, shell
from kit.errors import ImageError, RunError, ToolError, UsageError
from kit.images import check_against_lock, image_lock
from kit.images.progress import ProgressReporter
from kit.runtimes.base import Container
from kit.runtimes.bubblewrap import runtime
from kit.schema.mount import Mount
from kit.schema.resources_slurm_container import ContainerOptions
from kit.schema.run_paths import CONTAINER_RUN

_LAUNCHERS = "/kit/launchers"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A host path that is passed to the program. inside: its path in the container. tail: a path below it, or empty."""

    host: Path
    inside: str
    tail: str = ""
    writable: bool = False

    def word(self, *, contained: bool) -> str:
        """The path as an argument of the program."""
        return (self.inside if contained else str(self.host)) + self.tail


@dataclass(frozen=True, kw_only=True)
class NodeProgram:
    """A program to run. script: its path below launchers/. image: name of the image to run in. python: an interpreter with its
    packages, to run without a container.

    needs: packages that the image must have. why: the reason, for the error. store: of images.
    """

    script: str
    image: str
    python: str | None
    needs: tuple[str, ...]
    why: str
    store: Path
    project: Path

    def run(self, words: Sequence[str | Shown], report: ProgressReporter) -> dict[str, Any]:
        """Run the program, and return its result.

        RunError with the program's own error; ImageError and LockError for the image; ToolError when it fails otherwise.
        """
        shown = [word for word in words if isinstance(word, Shown)]
        contained = self.python is None
        given = [word if isinstance(word, str) else word.word(contained=contained) for word in words]
        launchers = data_folders.packaged() / "launchers"
        if self.python is not None:
            argv = [self.python, str(launchers / self.script), *given]
            return _run(argv, {**os.environ, "PYTHONPATH": str(launchers)}, {}, report)
        program = ["python3", f"{_LAUNCHERS}/{self.script}", *given]
        outside = {one.inside: str(one.host) for one in shown}
        with tempfile.TemporaryDirectory(prefix="kit-") as kits_own:
            render.write_all(Path(kits_own))
            return _run(self._contained(shown, program, Path(kits_own, "bin")), _environment(), outside, report)

    def _contained(self, shown: Sequence[Shown], program: Sequence[str], programs: Path) -> list[str]:
        """The argv that runs `program` in the image. It sees only these mounts, and can write only where `shown` allows it.

        programs: the kit's own, bin/ of a run folder.
        """
        shell.require("bwrap", hint="install bubblewrap, or use --no-container and --python")
        image = self._image()
        packaged = data_folders.packaged()
        try:
            mounts = (
                Mount(source=str(programs), target=f"{CONTAINER_RUN}/bin", flags=("ro",)),
                Mount(source=str(packaged / "launchers"), target=_LAUNCHERS, flags=("ro",)),
                *(Mount(source=str(o.host), target=o.inside, flags=() if o.writable else ("ro",)) for o in shown),
            )
        except ValidationError as error:
            raise UsageError(f"a path cannot be mounted: {error.errors()[0]['msg']}") from None
        container = Container(
            image=str(image),
            mounts=mounts,
            workdir="/",
            options=ContainerOptions(remap_root=False),
            bin=programs,
            home=str(Path.home()),
        )
        script, *words = runtime.wrap([], program, container)
        return [script, "--isolated", *words]

    def _image(self) -> Path:
        """The image's file, after checking that it matches its lock and has the program's packages."""
        path = image_lock.find(self.image, project=self.project)
        if path is None:
            data_folders.find("containers", self.image, project_dir=self.project, key="--image")
            raise ImageError(f"image {self.image} is not built yet", hint=f"run 'kit build-image {self.image}'")
        lock = image_lock.read_lock(path)
        if missing := lock.packages.lacking(self.needs):
            raise ImageError(
                f"image {self.image} lacks {', '.join(missing)}, which {self.why} needs",
                hint="--image IMAGE names another image; --no-container --python PYTHON takes a Python that has them",
            )
        return check_against_lock.check(lock, self.store, full=False)


def _environment() -> dict[str, str]:
    """The program's environment. Of the user's own it has only the paths of programs and temporary files."""
    kept = {name: os.environ[name] for name in ("HOME", "PATH", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONPATH": _LAUNCHERS, "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8"}


def _run(argv: Sequence[str], env: dict[str, str], outside: dict[str, str], report: ProgressReporter) -> dict[str, Any]:
    """Run the program, report its progress, and return its result.

    outside: path as the program sees it -> path as the user sees it.
    """
    result: dict[str, Any] | None = None
    refused: RunError | None = None
    with contextlib.ExitStack() as bar:
        try:
            for message in _said(shell.lines(argv, env=env), outside, report):
                if "error" in message:
                    refused = RunError(message["error"], hint=message["hint"])
                elif "stage" in message:
                    bar.close()
                    advance, done = bar.enter_context(report.counting(message["stage"], message["total"])), 0
                elif "done" in message:
                    advance(message["done"] - done)
                    done = message["done"]
                elif "warning" in message:
                    report.warn(message["warning"])
                else:
                    result = message
        except ToolError:
            if refused is None:
                raise
    if refused is not None:
        raise refused
    if result is None:
        raise ToolError(f"{argv[0]}: the program ended and reported nothing")
    return result


def _said(lines: Iterator[str], outside: dict[str, str], report: ProgressReporter) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines. Other lines are messages of other programs."""
    for line in lines:
        text = line
        for inside, path in outside.items():
            text = text.replace(inside, path)
        try:
            content = json.loads(text)
        except ValueError:
            content = None
        if isinstance(content, dict):
            yield content
        else:
            report.line(text)
