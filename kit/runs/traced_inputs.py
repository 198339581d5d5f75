"""Records what a part of the kit read from the machine, so that its result can be kept until one of these things changes.

Recorded are: each file that is opened, each path that is looked at (also one that is not there), each folder that is listed, each
link, and the source of all loaded code. Python reports opened and listed paths to audit hooks. It does not report stat(), lstat(),
readlink() and access(): these functions are replaced while the recording runs. What git answers is recorded too: it is asked again.
Another process, a connection, the clock, and a file that is written outside the user's cache folder make the recording useless,
because their results may differ next time.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs

from kit import git, shell
from kit.errors import ToolError
from kit.runs import recordings

# Seconds. A file that changed more recently may change again without a new time: the clock of NFS ticks once a second.
_SETTLED_S = 2.0
# With more inputs, looking at each of them takes longer than making the result again.
_MOST = 3000
_GIT_S = 120.0
_OUTSIDE = (
    "subprocess.",
    "socket.",
    "os.posix_spawn",
    "os.fork",
    "os.system",
    "os.exec",
    "sqlite3.",
    "os.listxattr",
    "os.getxattr",
)
_PATCHED = ("stat", "lstat", "readlink", "access", "statvfs")
_stat, _lstat, _readlink, _run = os.stat, os.lstat, os.readlink, shell.run

Input = list[Any]  # [how it was used, path or git's command as JSON, signature]


class Trace:
    """The inputs of one recording. is_whole: nothing else can change the result, besides the arguments and the environment."""

    def __init__(self) -> None:
        self._used: dict[tuple[str, str], None] = {}
        self._cache = str(platformdirs.user_cache_path("kit"))
        self._asked: dict[str, Any] = {}  # git's command -> the signature of its answer
        self.is_whole = True

    def inputs(self) -> list[Input] | None:
        """The inputs with their signatures; None if they are incomplete, too many, or changed a moment ago."""
        code = {("stat", path) for module in [*sys.modules.values()] if (path := _source(module))}
        used = [*self._used, *sorted(code - self._used.keys())]
        if not self.is_whole or len(used) > _MOST:
            return None
        latest = (time.time() - _SETTLED_S) * 1e9
        found = [[how, path, signature(how, path)] for how, path in used]
        recent = any(isinstance(one, list) and max(one[-2:]) > latest for _, _, one in found)
        return None if recent else [*found, *(["git", asked, told] for asked, told in self._asked.items())]

    def use(self, how: str, path: Any) -> None:
        """Note that a path was used. Numbers of open files are left out: opening them was noted."""
        if isinstance(path, int):
            return
        text = os.fsdecode(path)
        absolute = text if text.startswith("/") else f"{os.getcwd()}/{text}"  # noqa: PTH109 - its text counts
        if how == "open":
            how = "text" if absolute.startswith(("/proc/", "/sys/")) else "stat"
        self._used[how, absolute] = None

    def ask(self, argv: shell.Argv, options: dict[str, Any]) -> shell.Completed:
        """Run a program. Note git's answer."""
        known = {"check", "timeout", "errors", "env", "input"}
        if argv[0] != "git" or options.keys() - known or options.get("input") or options.get("check", True):
            self.is_whole = False
            return _run(argv, **options)
        with recordings.paused():
            done = _run(argv, **options)
        language = (options.get("env") or {}).get("LC_ALL")
        self._asked[json.dumps([list(argv), options.get("errors", "replace"), language])] = _answer(done)
        return done

    def event(self, name: str, words: tuple[Any, ...]) -> None:
        """Note an event that Python reports to audit hooks."""
        if name == "open":
            path, _, flags = words
            is_code = isinstance(path, str) and path.endswith(".pyc")
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.is_whole &= is_code or str(path).startswith(self._cache)
            elif not is_code:
                self.use("open", path)
        elif name in {"os.listdir", "os.scandir"}:
            self.is_whole &= not isinstance(words[0], int)
            self.use("list", "." if words[0] is None else words[0])
        elif name.startswith(_OUTSIDE):
            self.is_whole = False


_is_hooked = False


def _heard(name: str, words: tuple[Any, ...]) -> None:
    if recordings.active:
        recordings.active[-1].event(name, words)


@contextmanager
def recorded() -> Iterator[Trace]:
    """Record what runs inside of the `with` block, on this thread."""
    global _is_hooked  # noqa: PLW0603 - an audit hook cannot be removed
    if not _is_hooked:
        _is_hooked = True
        sys.addaudithook(_heard)
    trace = Trace()
    before = {name: getattr(os, name) for name in _PATCHED}
    clock = time.time
    shell.run = lambda argv, **options: trace.ask(argv, options)
    for name, function in before.items():
        setattr(os, name, _noting(trace, name, function))
    time.time = _noting_clock(trace, clock)
    recordings.active.append(trace)
    try:
        yield trace
    finally:
        recordings.active.remove(trace)
        time.time, shell.run = clock, _run
        for name, function in before.items():
            setattr(os, name, function)


def unchanged(inputs: list[Input]) -> bool:
    """Whether all inputs are as they were recorded."""
    return all(signature(how, path) == found for how, path, found in inputs)


def signature(how: str, path: str) -> Any:
    """What an input is now; the number of the error where there is nothing. The last two of a file are its times, in ns."""
    try:
        if how == "git":
            return _asked_again(*json.loads(path))
        if how == "text":
            return hashlib.sha256(Path(path).read_bytes()).hexdigest()
        return _readlink(path) if how == "readlink" else _facts(how, path)
    except OSError as error:
        return error.errno
    except ToolError as error:
        return str(error)


def _facts(how: str, path: str) -> list[int]:
    found = _lstat(path) if how == "lstat" else _stat(path)
    kept = [found.st_mode, found.st_dev, found.st_ino, found.st_uid, found.st_gid]
    if stat.S_ISDIR(found.st_mode) and how != "list":
        return [*kept, 0, 0]  # what is in it was not asked
    return [*kept, found.st_size, found.st_ctime_ns, found.st_mtime_ns]


def _asked_again(argv: list[str], errors: str, language: str | None) -> str:
    env = git.environment({"LC_ALL": language} if language else {})
    return _answer(_run(argv, check=False, timeout=_GIT_S, errors=errors, env=env))


def _answer(done: shell.Completed) -> str:
    said = json.dumps([done.returncode, done.stdout, done.stderr]).encode(errors="surrogateescape")
    return hashlib.sha256(said).hexdigest()


def _noting(trace: Trace, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def noted(path: Any, *words: Any, **options: Any) -> Any:
        if trace not in recordings.active:
            return function(path, *words, **options)
        if options.get("dir_fd") is not None or name == "statvfs":
            trace.is_whole = False
        links = options.get("follow_symlinks", True)
        trace.use({"stat": "stat" if links else "lstat", "access": "stat"}.get(name, name), path)
        return function(path, *words, **options)

    return noted


def _noting_clock(trace: Trace, clock: Callable[[], float]) -> Callable[[], float]:
    def noted() -> float:
        asking = sys._getframe(1).f_globals.get("__name__", "")
        trace.is_whole &= trace not in recordings.active or not asking.startswith("kit.")
        return clock()

    return noted


def _source(module: Any) -> str | None:
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.startswith("/") else None
