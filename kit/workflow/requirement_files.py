"""Reads the Python packages that a file names: requirements.txt, pyproject.toml, uv.lock, poetry.lock or environment.yml."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit import shell
from kit.errors import ToolError, UsageError
from kit.files import untrusted_files
from kit.schema.image import canonical

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?\s*(?=$|[<>=!~;@, ])")
_URL = re.compile(r"@\s*\S*(://|\+)|^\S+://")
# Files that a requirements.txt includes; pip's own depth has no limit, and a circle has no end.
_MOST_FILES = 20
# What conda's name of a package without its own Python package is called; they come with the base.
_OF_THE_BASE = frozenset({"python", "pip", "setuptools", "wheel"})
_UV = (
    "export", "--frozen", "--format=requirements-txt", "--no-hashes", "--no-header", "--no-annotate", "--no-dev",
    "--no-emit-project", "--no-emit-workspace", "--quiet",
)  # fmt: skip
_POETRY = ("export", "--format=requirements.txt", "--without-hashes")


@dataclass(frozen=True)
class Needs:
    """The requirements of a file. source: its name. lines: pip's form. left: lines that an image cannot take: options, folders and
    addresses. indexes: further indexes of packages that the file names.
    """

    source: str
    lines: tuple[str, ...]
    left: tuple[str, ...]
    indexes: tuple[str, ...] = ()


def name_in(line: str) -> str | None:
    """The package that a requirement names, in PyPI's normalized form; None if the line names none."""
    found = _NAME.match(line)
    return canonical(found[1]) if found and not _URL.search(line) else None


def exact_version(line: str) -> str | None:
    """The version of a requirement with ==; else None."""
    exact = re.search(r"==\s*([A-Za-z0-9.+!]+)(?!\.?\*)", line)
    return exact[1] if exact else None


def read_requirements(path: Path, extras: Collection[str] = ()) -> Needs:
    """The requirements in a file, chosen by its name. extras: optional dependencies of a pyproject.toml or a lock.

    A uv.lock or poetry.lock is read by its own program. UsageError for a file that does not exist or is broken, an extra that it
    does not have, a program that is missing, and an environment.yml with packages of conda.
    """
    if not path.is_file():
        raise UsageError(
            f"{path}: no such file", hint="requirements.txt, pyproject.toml, uv.lock, poetry.lock, environment.yml"
        )
    reader = _READERS.get(path.name) or (_of_conda if path.suffix in (".yml", ".yaml") else None)
    if reader is None and extras:
        problem = f"{path}: {path.name} has no extras"
        raise UsageError(problem, hint="--extra is for pyproject.toml, uv.lock and poetry.lock")
    lines = [*(reader or _of_requirements)(path, tuple(extras))]
    taken = tuple(line for line in lines if name_in(line))
    found = [re.fullmatch(r"(?:-i|--index-url|--extra-index-url)[ =]+(\S+)", line) for line in lines]
    indexes = tuple(dict.fromkeys(one[1] for one in found if one))
    left = tuple(line for line, option in zip(lines, found, strict=True) if line not in taken and not option)
    return Needs(path.name, taken, left, indexes)


def has_uv() -> bool:
    """Whether this machine has the program that reads a uv.lock."""
    return shell.which("uv") is not None


def _of_requirements(path: Path, _: Sequence[str] = (), seen: frozenset[Path] = frozenset()) -> list[str]:
    """The lines of a requirements.txt and of the files that it includes, without comments, hashes and pip's continuation signs."""
    text = untrusted_files.read_text(path).replace("\\\n", " ")
    seen |= {path.resolve()}
    requirements: list[str] = []
    for raw in text.splitlines():
        line = re.sub(r"\s+--hash=\S+", "", re.sub(r"(^|\s)#.*", "", raw)).strip()
        inner = re.fullmatch(r"(?:-r|--requirement)[ =]*(\S+)", line)
        place = (path.parent / inner[1]).resolve() if inner else None
        if place is None:
            requirements += [line] if line else []
        elif place.is_file() and place not in seen and len(seen) < _MOST_FILES:
            requirements += _of_requirements(place, (), seen)
        else:
            requirements.append(line)
    return requirements


def _of_project(path: Path, extras: Sequence[str]) -> list[str]:
    """`project.dependencies` and the optional ones that `extras` names, also through an extra that names the project itself."""
    try:
        table = tomllib.loads(untrusted_files.read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}", hint="name the image yourself: --image") from None
    project: Any = table.get("project")
    project = project if isinstance(project, dict) else {}
    if "poetry" in (table.get("tool") or {}) and "dependencies" not in project:
        hint = f"kit init --image NAME --requirements {shlex.quote(str(path.parent / 'poetry.lock'))}"
        raise UsageError(f"{path}: its packages are in Poetry's own form", hint=hint)
    if "dependencies" in (project.get("dynamic") or ()):
        problem = f"{path}: project.dependencies is dynamic: only its build program knows it"
        raise UsageError(problem, hint=f"pip-compile {shlex.quote(str(path))} -o requirements.txt, and name that file")
    optional = {canonical(str(name)): value for name, value in (project.get("optional-dependencies") or {}).items()}
    requirements, open_, done = (
        _texts(project.get("dependencies")),
        [canonical(extra_name) for extra_name in extras],
        set[str](),
    )
    while open_:
        extra = open_.pop(0)
        if extra not in optional:
            raise UsageError(f"{path}: no extra {extra}", hint=f"extras: {', '.join(sorted(optional)) or 'none'}")
        for line in _texts(optional[extra]):
            own = re.match(r"[\w.-]+\s*\[([^\]]*)\]", line)
            if own and name_in(line) == canonical(str(project.get("name", ""))):
                more = [canonical(extra_name.strip()) for extra_name in own[1].split(",")]
                open_ += [extra_name for extra_name in more if extra_name not in done]
            else:
                requirements.append(line)
        done.add(extra)
    return list(dict.fromkeys(requirements))


def _texts(value: object) -> list[str]:
    return [line for line in value if isinstance(line, str)] if isinstance(value, list) else []


def _of_uv(path: Path, extras: Sequence[str]) -> list[str]:
    """What uv exports, and an option for each index that the lock names beside the one of most packages."""
    argv = [*_UV, f"--directory={path.parent}", *(f"--extra={extra}" for extra in extras)]
    lines = _exported(path, "uv", argv)
    try:
        packages: Any = tomllib.loads(untrusted_files.read_text(path)).get("package") or ()
        used = [package["source"]["registry"] for package in packages if "registry" in package.get("source", {})]
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
        raise UsageError(
            f"{path}: not a lock of uv", hint=f"uv lock --directory {shlex.quote(str(path.parent))}"
        ) from None
    usual = max(used, key=used.count, default=None)
    return [*(f"--extra-index-url {url}" for url in dict.fromkeys(used) if url != usual), *lines]


def _of_poetry(path: Path, extras: Sequence[str]) -> list[str]:
    return _exported(path, "poetry", [*_POETRY, f"--directory={path.parent}", *(f"--extras={one}" for one in extras)])


def _exported(path: Path, program: str, argv: Sequence[str]) -> list[str]:
    """The lines of a program's export. UsageError if the program is missing or refuses."""
    elsewhere = f"or export it on another machine, and name the file: {program} {' '.join(argv[:3])} > requirements.txt"
    if shell.which(program) is None:
        install = (
            "pipx install poetry; pipx inject poetry poetry-plugin-export" if program == "poetry" else "pip install uv"
        )
        raise UsageError(
            f"{path}: only {program} reads it, and {program} is not on this machine", hint=f"{install}; {elsewhere}"
        )
    try:
        said = shell.run([program, *argv], timeout=120).stdout
    except ToolError as error:
        plugin = "; the command export is Poetry's plugin poetry-plugin-export" if program == "poetry" else ""
        raise UsageError(f"{path}: {error.message}", hint=f"update the lock with '{program} lock'{plugin}") from None
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in said.splitlines())
    return [line for line in lines if line]


def _of_conda(path: Path, extras: Sequence[str]) -> list[str]:
    """The lines below `pip:`. UsageError for packages of conda, which no pip installs."""
    pip, conda, below = list[str](), list[str](), ""
    for raw in untrusted_files.read_text(path).splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).rstrip()
        item = re.fullmatch(r"\s*-\s+(.*)", line)
        if item is None:
            below = line.strip() if line else below
        elif item[1].strip() == "pip:":
            below = "pip:"
        elif below == "pip:":
            pip.append(item[1].strip("\"' "))
        elif below == "dependencies:":
            conda.append(item[1].strip("\"' "))
    packages = [re.split(r"[=<>! ]", one.rpartition("::")[2])[0] for one in conda]
    if own := [one for one in packages if one not in _OF_THE_BASE]:
        named = ", ".join(own[:3]) + (f" and {len(own) - 3} more" if len(own) > 3 else "")
        problem = f"{path}: {named}: packages of conda, and the packages of such an image come from pip"
        hint = (
            "name them below pip:, or write a Dockerfile with micromamba: kit init --image NAME --from-dockerfile PATH"
        )
        raise UsageError(problem, hint=hint)
    return pip


_READERS: dict[str, Callable[[Path, Sequence[str]], list[str]]] = {
    "pyproject.toml": _of_project,
    "uv.lock": _of_uv,
    "poetry.lock": _of_poetry,
}
