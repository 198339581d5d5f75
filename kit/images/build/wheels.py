"""Python packages for a build: fetched on the host against a hash lock, with the host's own pip configuration."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import platformdirs

from kit import shell
from kit.errors import ImageError, ToolError
from kit.files import temporary_names, untrusted_files
from kit.schema.image import PythonPackages


def fetch(packages: PythonPackages, folder: Path, *, fresh: bool, on_line: Callable[[str], None]) -> tuple[Path, ...]:
    """The packages of the lock file in `folder`, from the cache or the index, sorted: wheels, and sources for those in `sdists`.

    fresh: fetch again even if the cache has them. ImageError when the lock is missing or a package cannot be downloaded.
    """
    lock = folder / packages.requirements
    if not lock.is_file():
        hint = (
            f"write requirements.txt, and the kit makes it; or pip-compile --generate-hashes -o {packages.requirements}"
        )
        raise ImageError(f"{lock}: no such file: it lists the wheels to fetch", hint=hint)
    cached = platformdirs.user_cache_path("kit") / "wheels" / _key(packages, lock)
    if fresh or not cached.is_dir():
        _download_to_cache(cached, packages, lock, on_line)
    return tuple(sorted(p for p in cached.iterdir() if p.name.endswith((".whl", ".tar.gz"))))


def _key(packages: PythonPackages, lock: Path) -> str:
    meaning = [
        packages.version,
        packages.platforms,
        packages.sdists,
        hashlib.sha256(untrusted_files.read_bytes(lock)).hexdigest(),
    ]
    return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()[:16]


def _download_to_cache(cached: Path, packages: PythonPackages, lock: Path, on_line: Callable[[str], None]) -> None:
    """Download into a folder next to the cache, then rename it, so that an interrupted download never looks complete."""
    with working_folder(cached.name) as work:
        (work / "wheels").mkdir()
        _download(packages, lock, work / "wheels", on_line)
        shutil.rmtree(cached, ignore_errors=True)
        (work / "wheels").rename(cached)


@contextlib.contextmanager
def working_folder(name: str) -> Iterator[Path]:
    """A private folder for pip next to the cached wheels, removed afterwards; after a kill -9, by the next call."""
    cache = platformdirs.user_cache_path("kit") / "wheels"
    cache.mkdir(parents=True, exist_ok=True)
    temporary_names.sweep(cache)
    with temporary_names.beside(cache / name) as work:
        work.mkdir(mode=0o700)
        yield work


def _download(packages: PythonPackages, lock: Path, target: Path, on_line: Callable[[str], None]) -> None:
    argv = [*pip(), "download", "--require-hashes", "--progress-bar=off", "--no-input", "--disable-pip-version-check"]
    argv += platform(packages)
    # --no-deps: a lock with hashes names every package, so pip need not look for more. Also, pip accepts --no-binary only with it.
    argv += ["--no-deps", *(f"--no-binary={name}" for name in packages.sdists)]
    argv += [f"--dest={target}", f"--requirement={lock}"]
    try:
        _run(argv, target.parent, on_line)
    except ToolError as error:
        if not packages.extra_indexes:
            raise _failure(lock, error) from None
        on_line("this machine's own pip configuration does not find them; asking the image's extra indexes")
        try:
            _run([*argv, *(f"--extra-index-url={index}" for index in packages.extra_indexes)], target.parent, on_line)
        except ToolError as second:
            raise _failure(lock, second) from None


def platform(packages: PythonPackages) -> list[str]:
    """Options that make pip choose wheels for the image and not for this machine."""
    tags = [f"--platform={tag}" for tag in packages.platforms]
    return ["--only-binary=:all:", f"--python-version={packages.version}", "--implementation=cp", *tags]


def _run(argv: list[str], work: Path, on_line: Callable[[str], None]) -> None:
    # pip's own temporary files go into a folder that is removed even after pip or the kit is killed.
    for line in shell.lines(shell.bound(argv), env={**os.environ, "TMPDIR": str(work)}):
        # pip also prints search locations and saved files. A failure shows pip's last lines, whatever they are.
        if line.lstrip().startswith(("Collecting", "Downloading", "Processing")):
            on_line(line.strip())


def _failure(lock: Path, error: ToolError) -> ImageError:
    hint = "pip's configuration on this machine is used as it is ('pip config list'); a changed hash needs a new lock"
    return ImageError(f"{lock.name}: the packages could not be fetched: {error.message}", hint=hint)


def pip() -> list[str]:
    """The argv that starts the host's pip."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-P", "-m", "pip"]
    return [shell.require("pip3", hint="apt-get install python3-pip")]
