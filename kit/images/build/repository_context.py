"""Context of an image whose Dockerfile is a repository's own: the files that its COPY and ADD lines can copy."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kit.errors import ImageError
from kit.files import temporary_names, untrusted_files
from kit.images.build.build_context import ContextFile, context_file
from kit.images.build.dockerfile_lines import Instruction

# Files of each run folder. An image is not built from the project's runs.
_RUN_FILES = ("batch.sh", "manifest.json")
_GLOB = frozenset("*?[$\\")
_URL = ("http://", "https://", "git@", "git://", "<<")


def scan(context: Path, dockerfile: Path, steps: Iterable[Instruction], *, without: Path) -> tuple[ContextFile, ...]:
    """The Dockerfile and the files that it can copy, in byte order, without those that the ignore file excludes.

    without: the image's folder; its image.toml and image.lock are left out, and so are folders of runs. ImageError for a source
    that does not exist, is excluded or is outside the context, and for a socket or a device.
    """
    if not context.is_dir():
        raise ImageError(f"{context}: no such folder", hint="paths of [build] context count from the image's folder")
    if context not in dockerfile.parents:
        hint = "name a folder above both as the context (--context, [build] context in image.toml)"
        raise ImageError(f"{dockerfile}: the Dockerfile is outside the context, {context}", hint=hint)
    ignored = _ignored(context, dockerfile)
    own = {(without / name).resolve() for name in ("image.toml", "image.lock")}
    sources = [*_sources(steps)]
    whole = any(source == "." for _, source in sources)
    files: dict[str, ContextFile] = {}
    for one, source in sources:
        _require(context, dockerfile, one, source, ignored)
    for name in [""] if whole else sorted({source for _, source in sources}):
        for path in _walk(context / name):
            inner = path.relative_to(context).as_posix()
            if path.resolve() not in own and not temporary_names.is_temporary(path.name) and not ignored(inner):
                files[inner] = context_file(inner, path)
    file = dockerfile.relative_to(context).as_posix()
    if file not in files:
        # An engine's classic builder would remove an excluded Dockerfile before COPY, and BuildKit would not.
        files.pop(".dockerignore", None)
        files[file] = context_file(file, dockerfile)
    return tuple(files[name] for name in sorted(files, key=os.fsencode))


def _walk(place: Path) -> Iterator[Path]:
    if place.is_symlink() or not place.is_dir():
        yield place
        return
    for folder, folders, files in os.walk(place):
        folders[:] = [name for name in folders if not _is_run(Path(folder) / name)]
        yield from (Path(folder) / name for name in files)
        yield from (Path(folder) / name for name in folders if (Path(folder) / name).is_symlink())


def _is_run(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _RUN_FILES)


def _sources(steps: Iterable[Instruction]) -> Iterator[tuple[Instruction, str]]:
    """The sources in the context, normalized; `.` for the whole context, also where a pattern or a variable may mean any file."""
    for step in steps:
        if step.word == "RUN" and any(flag.startswith("--mount=") and _binds_context(flag) for flag in step.flags):
            yield step, "."
        if step.word not in ("COPY", "ADD") or any(flag.startswith("--from=") for flag in step.flags):
            continue
        words = [word.strip("[],\"'") for word in step.words]
        for word in [word for word in words if word][:-1]:
            if word.startswith(_URL):
                continue
            yield step, "." if _GLOB & {*word} else posixpath.normpath(word.lstrip("/") or ".")


def _binds_context(flag: str) -> bool:
    options = dict(part.partition("=")[::2] for part in flag.removeprefix("--mount=").split(","))
    return options.get("type", "bind") == "bind" and "from" not in options


def _require(context: Path, dockerfile: Path, step: Instruction, source: str, ignored: Callable[[str], bool]) -> None:
    location = f"{dockerfile}: line {step.line}: {step.word} {source}"
    if source == ".." or source.startswith("../"):
        hint = f"name a folder above as the context (--context, [build] context in image.toml), or move the file into {context}"
        raise ImageError(f"{location}: it is outside the context, {context}", hint=hint)
    path = context / source
    if not path.exists() and not path.is_symlink():
        hint = "paths count from the context: --context, [build] context in image.toml"
        raise ImageError(f"{location}: no such file in the context, {context}", hint=hint)
    if path.is_file() and ignored(source):
        hint = f"remove the pattern that excludes it, or write !{source} at the end"
        raise ImageError(f"{location}: {_ignore_file(context, dockerfile).name} excludes the file", hint=hint)


def _ignore_file(context: Path, dockerfile: Path) -> Path:
    """NAME.dockerignore beside the Dockerfile counts before the context's own (Docker's "Dockerfile-specific ignore files")."""
    beside = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
    return beside if beside.is_file() else context / ".dockerignore"


def _ignored(context: Path, dockerfile: Path) -> Callable[[str], bool]:
    file = _ignore_file(context, dockerfile)
    if not file.is_file():
        return lambda _: False
    from kit.images.sources.engine import ignored_by

    return ignored_by(context, untrusted_files.read_text(file).splitlines(), keep="")
