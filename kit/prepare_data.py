"""`kit prepare-data`: runs launchers/prepare/prepare.py on this node, in an image with the tokenizer's package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import RunError, UsageError
from kit.images.progress import ProgressReporter
from kit.run_launcher_program import NodeProgram, Shown

BYTES = "bytes"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """The data to prepare: files, folders and datasets, into the folder `target`. tokenizer: `bytes`, or a path.

    image: name of the image to run in. python: an interpreter with the needed packages, to run without a container. options: extra
    arguments for prepare.py. store: of images.
    """

    sources: tuple[Path, ...]
    target: Path
    tokenizer: str
    image: str
    python: str | None
    store: Path
    project: Path
    options: tuple[str, ...] = ()


def prepare_sources(order: Preparation, report: ProgressReporter) -> dict[str, Any]:
    """Prepare the data and return facts about the result: target, digest, documents, tokens, vocabulary, bytes, seconds.

    RunError for data that cannot be read or tokenized: then no folder is made, and a later call continues with the finished parts.
    UsageError for impossible paths, ImageError and LockError for the image, ToolError when the program fails otherwise.
    """
    target = order.target.absolute()
    for source in order.sources:
        if not source.exists():
            raise RunError(
                f"{source}: no such file or folder", hint="text files, folders of them, or a dataset's folder"
            )
        if target.resolve() == source.resolve() or source.resolve() in target.resolve().parents:
            raise UsageError(f"{target}: the prepared data cannot be written into {source}, which is read")
    target.parent.mkdir(parents=True, exist_ok=True)
    program = NodeProgram(
        script="prepare/prepare.py",
        image=order.image,
        python=order.python,
        needs=("numpy", *_package(order.tokenizer)),
        why=f"--tokenizer {order.tokenizer}",
        store=order.store,
        project=order.project,
    )
    sources = [
        Shown(host=source.absolute(), inside=f"/kit/source/{number}/{source.absolute().name or 'root'}")
        for number, source in enumerate(order.sources)
    ]
    made = Shown(host=target.parent, inside="/kit/target", tail=f"/{target.name}", writable=True)
    words = ["--tokenizer", _tokenizer(order.tokenizer), *order.options, "--json-lines"]
    return program.run([*sources, "--to", made, *words], report)


def _package(tokenizer: str) -> tuple[str, ...]:
    """The package that reads a tokenizer. docs/guides/data.md lists the packages for reading the files."""
    if tokenizer == BYTES:
        return ()
    return ("tiktoken",) if tokenizer.endswith(".tiktoken") else ("tokenizers",)


def _tokenizer(which: str) -> str | Shown:
    if which == BYTES:
        return which
    path = Path(which).absolute()
    if not path.exists():
        raise RunError(
            f"--tokenizer {which}: no such file or folder", hint="bytes, a .json or .tiktoken file, or a folder"
        )
    return Shown(host=path, inside=f"/kit/tokenizer/{path.name}")
