"""image.lock: read, written, compared. Users commit it, so it is written only when its content changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from kit import data_folders
from kit.config import load_model
from kit.errors import ImageError
from kit.files import temporary_names, untrusted_files
from kit.schema.image import ImageLock

FILE = "image.lock"

_SHA256 = re.compile(r"[0-9a-f]{64}")
# The lines of a lock that name its bytes, in the form that `write` gives them.
_HEAD_LINE = re.compile(
    r'(?P<key>name|sha256|size) = (?:"(?P<text>[a-z0-9._-]+)"|(?P<number>[0-9]+))'
    r"|(?!name|sha256|size )[a-z_]+ = .*|#.*|"
)
_HEAD_BYTES = 4096

_HEADER = "# Written by the kit; commit it. A run of this image gets these bytes and no others.\n"


def find(name: str, *, project: Path) -> Path | None:
    """The lock of the image `name`: the project's first, then the user's, then the kit's own; None if there is none.

    A folder with an image.toml and no lock is an image that was not built: the lock of another image of its name is not its own.
    """
    for root in data_folders.roots(project):
        folder = root / "containers" / name
        if (folder / FILE).is_file():
            return folder / FILE
        if (folder / "image.toml").is_file():
            return None
    return None


def place(entry: data_folders.Entry, *, project: Path) -> Path:
    """The path for writing an entry's lock: next to its image.toml, but in the project for an image of the kit itself.

    An update replaces the files of an installed kit, and git would see a change in a clone that is not the project.
    """
    own = entry.root == data_folders.packaged().resolve()
    return (project / "containers" / entry.name if own else entry.folder) / FILE


def platform_of(architecture: str) -> str | None:
    """`linux/amd64`, as a lock has it; None for an image that names no architecture."""
    return f"linux/{architecture}" if re.fullmatch("[a-z0-9]+", architecture) else None


def read_lock(path: Path) -> ImageLock:
    """The lock in `path`; ConfigError when it is missing or damaged."""
    return load_model(path, ImageLock)


@dataclass(frozen=True, kw_only=True)
class Head:
    """The bytes that a lock names. size in bytes."""

    name: str
    sha256: str
    size: int


def head(path: Path) -> Head:
    """The first lines of a lock, which name its bytes. ConfigError as `read`.

    Reading only these lines is fast, and a store may have a thousand locks. The tables come after them. A lock in which a user has
    changed or removed one of these lines is read completely.
    """
    try:
        start = untrusted_files.head(path, _HEAD_BYTES).decode("utf-8", errors="replace").partition("\n[")[0]
    except OSError:
        start = ""
    lines = [_HEAD_LINE.fullmatch(line) for line in start.splitlines()]
    # Check every line: a lock with Git's merge conflict markers names two images and is not valid.
    named = [line for line in lines if line and line["key"]]
    found = {line["key"]: line["text"] or line["number"] for line in named} if all(lines) and len(named) == 3 else {}
    if found.keys() == {"name", "sha256", "size"} and _SHA256.fullmatch(found["sha256"]) and found["size"].isdecimal():
        return Head(name=found["name"], sha256=found["sha256"], size=int(found["size"]))
    whole = read_lock(path)
    return Head(name=whole.name, sha256=whole.sha256, size=whole.size)


def write_lock(path: Path, lock: ImageLock) -> bool:
    """Write the lock; return whether the file changed.

    The engine's id of the image differs between two builds of the same bytes, so a new id alone is not a reason to write.
    """
    if path.is_file() and is_same(read_lock(path), lock):
        return False
    text = _HEADER + tomli_w.dumps(lock.model_dump(mode="json", by_alias=True, exclude_none=True))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_names.beside(path) as incoming:
            incoming.write_text(text, encoding="utf-8")
            incoming.rename(path)
    except OSError as error:
        raise ImageError(f"{path}: cannot be written: {error.strerror}") from None
    return True


def is_same(old: ImageLock, new: ImageLock) -> bool:
    """Whether both locks name the same bytes, made from the same inputs."""
    return old.inputs == new.inputs and not any(differences(old, new))


def differences(old: ImageLock, new: ImageLock) -> Iterator[str]:
    """The differences of two locks, causes first, one phrase each: `packages.pip.numpy: 2.1.0 -> 2.2.0`."""
    before, after = _deciding(old), _deciding(new)
    if old.platform is None:
        # An older kit wrote it: the same bytes are no reason to write it again, which would end its signature.
        after.pop("platform", None)
    changed = [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]
    results = {"sha256", "size"}
    for key in sorted(changed, key=lambda key: key in results):
        yield f"{key}: {before.get(key, '(nothing)')} -> {after.get(key, '(nothing)')}"


def _deciding(lock: ImageLock) -> dict[str, object]:
    """The lock without values that may differ between two builds of the same bytes, and without `inputs`, which
    explains nothing.
    """
    table = lock.model_dump(mode="json", by_alias=True, exclude={"inputs": True, "name": True})
    table["tools"] = {"mksquashfs": table["tools"]["mksquashfs"]}
    return _flat(table)


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, object] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat
