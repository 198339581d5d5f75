"""Build context: the files of the image's folder, in a form that does not depend on the machine."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.errors import ImageError
from kit.files import temporary_names, untrusted_files
from kit.schema.image import ImageSpec, Squash

# Raise this number when the kit itself writes other bytes from the same inputs (`kit.images.squash`).
RECIPE = 2

# Only the values in image.toml matter for the digest, not its bytes: a new comment does not cause a rebuild.
_NOT_CONTEXT = frozenset({"image.toml", "image.lock"})
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ContextFile:
    """One entry of the context. mode: 0o755 or 0o644, by the owner's x bit; the umask has no effect. target: of a symbolic link."""

    name: str
    path: Path
    mode: int
    target: str | None


def scan(folder: Path) -> tuple[ContextFile, ...]:
    """All files of the image's folder in byte order, without those that .dockerignore excludes.

    ImageError for a socket or a device.
    """
    ignored = _dockerignore(folder)
    files = []
    for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).as_posix().encode()):
        name = path.relative_to(folder).as_posix()
        mode = path.lstat().st_mode
        left_out = name in _NOT_CONTEXT or temporary_names.is_temporary(path.name) or "__pycache__" in path.parts
        if left_out or stat.S_ISDIR(mode) or ignored(name):
            continue
        files.append(context_file(name, path))
    return tuple(files)


def context_file(name: str, path: Path) -> ContextFile:
    """The entry for a path. ImageError for a socket or a device."""
    mode = path.lstat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise ImageError(f"{path}: neither a file nor a link", hint="move it out of the image's folder")
    target = str(path.readlink()) if stat.S_ISLNK(mode) else None
    return ContextFile(name=name, path=path, mode=0o755 if mode & stat.S_IXUSR else 0o644, target=target)


def files_digest(files: Iterable[ContextFile]) -> str:
    """sha256 (hex) of names, modes and contents."""
    listed = [[file.name, file.mode, file.target or _sha256(file.path)] for file in files]
    return hashlib.sha256(json.dumps(listed, ensure_ascii=True).encode()).hexdigest()


def digest(spec: ImageSpec, files: Iterable[ContextFile], *, base: str = "", automatic: Sequence[str] = ()) -> str:
    """sha256 (hex) of everything in the folder that determines the image's bytes.

    base: the locked digest of another image. automatic: arguments of the Dockerfile whose values the engine's platform decides.
    """
    listed = [[file.name, file.mode, file.target or _sha256(file.path)] for file in files]
    # The memory limit changes how long squashing takes, not its result. Defaults are excluded, so that a key that a later kit adds
    # does not make every lock stale.
    squash = spec.squash.model_copy(update={"memory": Squash().memory})
    # The places of context and Dockerfile decide nothing: their contents are in the list of files.
    build = spec.build.model_copy(update={"context": None, "dockerfile": "Dockerfile"})
    decisive = spec.model_copy(update={"squash": squash, "description": "", "build": build})
    meaning = decisive.model_dump(mode="json", exclude_defaults=True)
    inputs = {"recipe": RECIPE, "spec": meaning, "files": listed, **({"base": base} if base else {})}
    # Older kits left these arguments empty, so an image with them is built again.
    inputs |= {"automatic": [*automatic]} if automatic else {}
    text = json.dumps(inputs, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def with_wheels(files: Iterable[ContextFile], wheels: Iterable[Path]) -> tuple[ContextFile, ...]:
    """The files of the folder, and the packages below `wheels/`."""
    extra = (ContextFile(name=f"wheels/{wheel.name}", path=wheel, mode=0o644, target=None) for wheel in wheels)
    return (*files, *extra)


def replacing(files: Iterable[ContextFile], name: str, path: Path) -> tuple[ContextFile, ...]:
    """The files, with the content of `path` for the file `name`."""
    changed = ContextFile(name=name, path=path, mode=0o644, target=None)
    return tuple(changed if file.name == name else file for file in files)


def stream(files: Iterable[ContextFile], wheels: Iterable[Path]) -> Iterator[bytes]:
    """The context with `wheels/` as a tar for the engine. Files are read while the tar is sent, and not copied on disk."""
    for file in with_wheels(files, wheels):
        member = tarfile.TarInfo(file.name)
        member.mode = file.mode
        if file.target is not None:
            member.type, member.linkname = tarfile.SYMTYPE, file.target
        else:
            member.size = file.path.stat().st_size
        yield member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        if file.target is None:
            with file.path.open("rb") as content:
                yield from _exactly(content, member.size, file.path)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _exactly(content: io.BufferedReader, size: int, path: Path) -> Iterator[bytes]:
    left = size
    while left:
        chunk = content.read(min(left, _CHUNK))
        if not chunk:
            raise ImageError(f"{path}: became shorter while it was read", hint="build again")
        left -= len(chunk)
        yield chunk
    yield bytes(-size % tarfile.BLOCKSIZE)


def _dockerignore(folder: Path) -> Callable[[str], bool]:
    file = folder / ".dockerignore"
    if not file.is_file():
        return lambda _: False
    from kit.images.sources.engine import ignored_by

    return ignored_by(folder, untrusted_files.read_text(file).splitlines())


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
