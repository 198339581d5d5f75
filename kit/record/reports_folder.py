"""The folder of reports and exported runs. It ignores itself: git does not list it, and no snapshot takes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kit import data_folders
from kit.errors import RunError
from kit.files import untrusted_files

# The second where the first is a folder of the project's own.
_NAMES = ("reports", "kit-reports")
_FIRST_LINE = "# Reports and exports of kit; no part of a run's code."


def take() -> Path:
    """The project's folder for reports, made if it is missing. RunError if it cannot be written."""
    project = data_folders.project()
    folder = next((one for name in _NAMES if _is_free(one := project / name)), project / _NAMES[-1])
    try:
        folder.mkdir(exist_ok=True)
        if not _is_ours(folder):
            _write_new(folder / ".gitignore", f"{_FIRST_LINE}\n*\n")
    except OSError as error:
        raise RunError(f"{folder}: cannot be written: {error.strerror}", hint="-o FILE names another place") from None
    return folder


def _write_new(path: Path, text: str) -> None:
    """OSError if the file exists: a clone or a colleague may have put a link to a file of the user's own there."""
    with path.open("x", encoding="utf-8") as sink:
        sink.write(text)


def shown(path: Path) -> Path:
    """The path relative to the working folder, if it is in it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def inside(folder: Path) -> Iterator[Path]:
    """The folders of reports in a job's folder."""
    yield from (folder / name for name in _NAMES if _is_ours(folder / name))


def _is_free(folder: Path) -> bool:
    return _is_ours(folder) or not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _is_ours(folder: Path) -> bool:
    try:
        return untrusted_files.read_text(folder / ".gitignore").startswith(_FIRST_LINE)
    except (OSError, UnicodeError):
        return False
