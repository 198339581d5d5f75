"""`kit prepare-data`: starts launchers/prepare/prepare.py in an image on this node, which has the tokenizer's package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import RunError, UsageError
from kit.images.progress import Report
from kit.run_launcher_program import NodeProgram, Shown

BYTES = "bytes"


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """What to prepare: files, folders and datasets, into the folder `target`. tokenizer: `bytes`, or a path.

    image: in what, by name; python: without a container, an interpreter that has what the files need. options: words for
    prepare.py, handed on. store: of images.
    """

    sources: tuple[Path, ...]
    target: Path
    tokenizer: str
    image: str
    python: str | None
    store: Path
    project: Path
    options: tuple[str, ...] = ()


def prepare(order: Preparation, report: Report) -> dict[str, Any]:
    """Prepare and return what was made: target, digest, documents, tokens, vocabulary, bytes, seconds.

    RunError for what cannot be read or tokenized: no folder is made then, and what was done is not done again. UsageError for paths
    that cannot be, ImageError and LockError for the image, ToolError when the program fails otherwise.
    """
    target = order.target.absolute()
    for source in order.sources:
        if not source.exists():
            raise RunError(
                f"{source}: no such file or folder", hint="text files, folders of them, or a dataset's folder"
            )
        if target.resolve() == source.resolve() or source.resolve() in target.resolve().parents:
            raise UsageError(f"{target}: the prepared data may not lie in {source}, which is read")
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
    """The package that reads a tokenizer; docs/guides/data.md lists what the files themselves need."""
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
