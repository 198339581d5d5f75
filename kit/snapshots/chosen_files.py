"""Chooses the files of a workspace: those that git does not ignore, else all; but never those that `.kitignore` names."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kit import git, shell
from kit.errors import ConfigError, Fault, ToolError
from kit.files import untrusted_files

IGNORE_FILE = ".kitignore"
# Files that are never code, for a folder without git.
_NEVER = (".git/", "__pycache__/", ".venv/")
# git ls-files(1) only warns and continues (dir.c, read_directory_recursive).
_CLOSED = re.compile(r"warning: could not open directory '(?P<path>.*)': (?P<why>.*)")
# A folder with more files is probably a home folder, or data.
MOST_FILES = 100_000


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Relative paths with their lstat(2) results. added: files that git does not track. passed: FIFOs, sockets and devices.

    without: relative paths that the caller excluded. by_git: whether git chose the files.
    """

    files: dict[str, os.stat_result]
    added: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    by_git: bool = False


def choose(folder: Path, *, without: Collection[Path] = (), rules: Sequence[str] = (), asked_by: str) -> Chosen:
    """Choose the workspace's files in `folder`. without: folders and files to exclude: the runs, mounted folders, secrets.

    rules: patterns of more files to exclude, in the syntax of .gitignore. asked_by: the job file, named in the ConfigError. It is
    raised when git refuses, and for more than MOST_FILES files.
    """
    try:
        listed = _git_files(folder, asked_by)
    except _ClosedFolder as closed:
        raise _unreadable(closed.path, closed.why, asked_by) from None
    # Only paths inside the folder matter, relative to it.
    out = tuple(os.path.relpath(path, folder) for path in without if path.is_relative_to(folder))
    if listed:
        ignore = _ignored(folder, rules, (IGNORE_FILE,))
    else:
        ignore = _ignored(folder, (*_NEVER, *rules), (".gitignore", IGNORE_FILE) if listed is None else (IGNORE_FILE,))
    files: dict[str, os.stat_result] = {}
    outputs = set(_own_outputs())
    added, passed = [], []
    for path, tracked in listed or _walk(folder, ignore, out, asked_by):
        if (out and _within(path, out)) or (ignore and ignore.match_file(path)):
            continue
        try:
            seen = os.lstat(f"{folder}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            continue  # git tracks the file, but it was deleted
        except PermissionError as error:
            raise _unreadable(os.path.dirname(path), error, asked_by) from None  # noqa: PTH120 - relative
        if stat.S_ISDIR(seen.st_mode) or (seen.st_dev, seen.st_ino) in outputs:
            continue
        if not (stat.S_ISREG(seen.st_mode) or stat.S_ISLNK(seen.st_mode)):
            passed.append(path)
            continue
        files[path] = seen
        if not tracked:
            added.append(path)
        if len(files) > MOST_FILES:
            raise _too_many(folder, asked_by)
    by_git = bool(listed)
    if by_git:
        beside = [
            path
            for path in _special_files(folder, files)
            if not (_within(path, out) or (ignore and ignore.match_file(path)))
        ]
        passed += _not_ignored(folder, beside)
    return Chosen(files=files, added=tuple(added) if by_git else (), passed=tuple(passed), without=out, by_git=by_git)


def _own_outputs() -> Iterator[tuple[int, int]]:
    """Device and inode of the files that this command prints to: `kit submit >submit.log` changes its file while it is read."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            seen = os.fstat(number)
            if stat.S_ISREG(seen.st_mode):
                yield seen.st_dev, seen.st_ino


def _special_files(folder: Path, found: Iterable[str]) -> Iterator[str]:
    """FIFOs, sockets and devices in the folders of these files. git does not list them."""
    for below in sorted({"", *(path.rpartition("/")[0] for path in found)}):
        with contextlib.suppress(OSError), os.scandir(f"{folder}/{below}") as entries:
            for one in entries:
                if not (one.is_symlink() or one.is_dir(follow_symlinks=False) or one.is_file(follow_symlinks=False)):
                    yield f"{below}/{one.name}".lstrip("/")


def _not_ignored(folder: Path, paths: Sequence[str]) -> list[str]:
    """The paths that git does not ignore."""
    if not paths:
        return []
    done = git.run(folder, "-c", "core.quotePath=false", "check-ignore", "--", *paths, check=False)
    return [path for path in paths if path not in done.stdout.splitlines()]


def _within(path: str, folders: Iterable[str]) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in folders)


def _too_many(folder: Path, asked_by: str) -> ConfigError:
    problem = f"{folder} has more than {MOST_FILES:,} files, which the run would take with it"
    hint = f"a job file in a folder of its own; or name what is not code in {folder / IGNORE_FILE}; or snapshot = false"
    return ConfigError.of(Fault(file=asked_by, key="snapshot", problem=problem, hint=hint))


def _unreadable(path: str, why: str | OSError, asked_by: str) -> ConfigError:
    said = why.strerror if isinstance(why, OSError) else why
    problem = f"the folder {path or '.'} cannot be read: {said}"
    hint = f"chmod u+rx {path or '.'}, or name it in {IGNORE_FILE}; or snapshot = false"
    return ConfigError.of(Fault(file=asked_by, key="snapshot", problem=problem, hint=hint))


class _Rules(Protocol):
    """Rules that exclude files."""

    def match_file(self, file: str, /) -> bool:
        """Whether they exclude this relative path. A folder's path ends with a slash."""


class _OnlyNever:
    """The rules of _NEVER, and no others."""

    _names = frozenset(one.rstrip("/") for one in _NEVER)

    def match_file(self, file: str, /) -> bool:
        return not self._names.isdisjoint(file.split("/")[:-1])


def _ignored(folder: Path, rules: Iterable[str], names: Iterable[str]) -> _Rules | None:
    """These rules and those in files of these names in the folder, in git's syntax; None if there are none."""
    lines = [*rules]
    for name in names:
        try:
            lines += untrusted_files.read_text(folder / name).splitlines()
        except FileNotFoundError:
            continue
    if not lines:
        return None
    if lines == [*_NEVER]:
        return _OnlyNever()
    # Its import takes a thirtieth of a `kit render`, and few jobs have rules.
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


def _walk(folder: Path, ignore: _Rules | None, out: Sequence[str], asked_by: str) -> Iterator[tuple[str, bool]]:
    """All files under a folder that are not ignored, in the form of `_listed`. Links are not followed."""
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            entries = os.scandir(f"{folder}/{below}")
        except PermissionError as error:
            raise _unreadable(below.rstrip("/"), error, asked_by) from None
        with entries as found:
            for one in found:
                path = f"{below}{one.name}"
                if not one.is_dir(follow_symlinks=False):
                    yield path, True
                elif path not in out and not (ignore and ignore.match_file(f"{path}/")):
                    waiting.append(f"{path}/")


def _git_files(folder: Path, asked_by: str) -> list[tuple[str, bool]] | None:
    """The files as `_listed` yields them. Empty if the folder is in no repository; None if git is not installed."""
    if not any((above / ".git").exists() for above in (folder, *folder.parents)):
        return []
    if shell.which("git") is None:
        return None
    try:
        return [*_listed(folder)]
    except _NoRepository:
        return []
    except ToolError as error:
        said = error.message.strip().splitlines()[0]
        problem = f"git does not say which files of {folder} are the job's: {said}"
        # git itself runs no program of a repository that it does not trust; of one that it trusts, it does.
        own = "dubious ownership" in said
        hint = (
            f"{f'git -C {folder} status, and what it says' if own else 'correct what git names'}; or snapshot = false"
        )
        raise ConfigError.of(Fault(file=asked_by, key="snapshot", problem=problem, hint=hint)) from None


class _ClosedFolder(Exception):  # noqa: N818
    """git may not enter a folder. It skips the folder with a warning."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(path)
        self.path, self.why = path, why


class _NoRepository(Exception):  # noqa: N818
    """git reports that the folder is in no repository."""


def _listed(folder: Path, below: str = "") -> Iterator[tuple[str, bool]]:
    """Each path, and whether git tracks it. The files of submodules and of nested repositories are included."""
    options = ["-z", "-t", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    done = git.run(f"{folder}/{below}", "ls-files", *options, check=False, env={"LC_ALL": "C"})
    if closed := _CLOSED.search(done.stderr):
        raise _ClosedFolder(f"{below}{closed['path']}".rstrip("/"), closed["why"])
    if done.returncode:
        if "not a git repository" in done.stderr:
            raise _NoRepository
        raise ToolError(done.stderr or f"git ls-files ended with {done.returncode}")
    for word in done.stdout.split("\0"):
        path = f"{below}{word[2:]}"
        if word.endswith("/") or (word and _is_repository(f"{folder}/{path}")):
            # git lists only the folder of a nested repository. A submodule that was never fetched is empty.
            if _is_repository(f"{folder}/{path}"):
                yield from _listed(folder, f"{path.rstrip('/')}/")
        elif word:
            yield path, not word.startswith("?")


def _is_repository(path: str) -> bool:
    return os.path.lexists(f"{path}/.git")
