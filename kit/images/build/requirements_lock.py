"""Writes the hash lock of a requirements.txt: pip resolves it for the image's platform, given the packages of the image's base."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kit import shell
from kit.errors import ImageError, LockError, ToolError
from kit.files import temporary_names, untrusted_files
from kit.images.build import wheels
from kit.schema.image import PythonPackages

SOURCE = "requirements.txt"
_HEADER = "# Written by the kit from requirements.txt; commit it. inputs: "


def refresh(
    packages: PythonPackages, folder: Path, held: Mapping[str, str], *, locked: bool, on_line: Callable[[str], None]
) -> bool:
    """Write the hash lock again if requirements.txt or the base's packages changed since it was written. Return whether it was.

    held: name -> version of the base's packages: they keep their versions and are not in the lock. A folder without
    requirements.txt has a lock written by the user. LockError if the lock is out of date and `locked` is set, ImageError when pip
    finds no solution.
    """
    source, lock = folder / SOURCE, folder / packages.requirements
    if not source.is_file() or source == lock:
        return False
    inputs = _inputs(packages, source, held)
    if lock.is_file() and _made_from(lock) in (inputs, ""):
        return False
    if locked:
        raise LockError(f"{lock}: it was made from another {SOURCE}", hint="build once without --locked, and commit it")
    on_line(f"{lock.name} is written from {SOURCE}")
    lines = _resolved(packages, source, held)
    with temporary_names.beside(lock) as incoming:
        incoming.write_text(f"{_HEADER}{inputs}\n" + "".join(lines), encoding="utf-8")
        incoming.rename(lock)
    return True


def exact(wanted: Mapping[str, str], packages: PythonPackages, *, on_line: Callable[[str], None]) -> str:
    """The hash lock of exactly these versions, without their dependencies. ImageError when pip finds no wheel for one."""
    lines = []
    for name, version in sorted(wanted.items()):
        with wheels.working_folder("exact") as work:
            on_line(f"looking for the wheel of {name} {version}")
            options = ["--no-deps", f"--dest={work / 'found'}", f"{name}=={version}"]
            try:
                _pip(packages, work, "download", *options)
            except ToolError as error:
                raise ImageError(
                    f"{name} {version}: pip finds no wheel for it: {error.message.strip().splitlines()[-1]}",
                    hint="'pip config list' says where this machine's pip looks",
                ) from None
            (file,) = (work / "found").iterdir()
            lines.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}\n")
    return "".join(lines)


def _pip(packages: PythonPackages, work: Path, command: str, *options: str) -> None:
    """Run one of pip's commands for the image's platform and indexes. ToolError when it fails."""
    argv = [*wheels.pip(), command, "--quiet", "--no-input", "--disable-pip-version-check"]
    argv += [*wheels.platform(packages), *(f"--extra-index-url={index}" for index in packages.extra_indexes), *options]
    shell.run(shell.bound(argv), env={**os.environ, "TMPDIR": str(work)})


def _made_from(lock: Path) -> str:
    """The digest in the lock's first line; empty for a lock that another tool wrote, which the kit does not change."""
    first = untrusted_files.read_text(lock).partition("\n")[0]
    return first.removeprefix(_HEADER) if first.startswith(_HEADER) else ""


def _inputs(packages: PythonPackages, source: Path, held: Mapping[str, str]) -> str:
    meaning = [packages.version, packages.platforms, untrusted_files.read_text(source), dict(sorted(held.items()))]
    return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()


def _resolved(packages: PythonPackages, source: Path, held: Mapping[str, str]) -> list[str]:
    with wheels.working_folder("pins") as work:
        constraints, report = work / "held.txt", work / "report.json"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in held.items()), encoding="utf-8")
        options = ["--dry-run", "--ignore-installed", f"--report={report}", f"--target={work}/none"]
        try:
            _pip(packages, work, "install", *options, f"--requirement={source}", f"--constraint={constraints}")
        except ToolError as error:
            raise ImageError(
                f"{source}: pip finds no solution: {error.message}",
                hint="every package must come as a wheel for the image's Python, and fit what the base holds",
            ) from None
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return sorted(line for item in found if (line := _line(item, held)))


def _line(item: dict[str, Any], held: Mapping[str, str]) -> str:
    name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
    version = item["metadata"]["version"]
    if held.get(name) == version:
        return ""
    hashes = item["download_info"]["archive_info"].get("hashes") or {}
    if "sha256" not in hashes:
        raise ImageError(f"{name} {version}: its index gives no sha256", hint="use an index that does, or pip-compile")
    return f"{name}=={version} --hash=sha256:{hashes['sha256']}\n"
