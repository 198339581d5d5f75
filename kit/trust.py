"""Trust in the ssh configurations of a project: one that executes programs is used after its owner has seen it, by its content.

ssh executes the programs that its configuration names (ProxyCommand, Match exec, and more of ssh_config(5)), so a clone that brings
one would run as its owner at the first `kit runs`. ssh gets a copy of the bytes that were checked, from a folder of the user's own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pwd
import re
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from kit import data_folders
from kit.errors import ToolError
from kit.files import untrusted_files

# No ssh configuration is larger; of a program that it names, the digest is made of this much at most.
_MOST_BYTES, _MOST_PROGRAM_BYTES = 1 << 20, 64 << 20
# Keywords that execute, write, include and forward nothing: ssh_config(5).
_HARMLESS = frozenset(
    {
        *(
            "host",
            "hostname",
            "hostkeyalias",
            "port",
            "user",
            "identityfile",
            "identitiesonly",
            "batchmode",
            "addressfamily",
        ),
        *(
            "serveraliveinterval",
            "serveralivecountmax",
            "connecttimeout",
            "connectionattempts",
            "tcpkeepalive",
            "compression",
        ),
    }
)
# A line of such a keyword, without quotes and without characters that a shell would read.
_LINE = re.compile(r"[ \t]*([A-Za-z0-9]+)(?:[ \t]*=[ \t]*|[ \t]+)[A-Za-z0-9_.:@%/~*?!,+ \t-]*\r?")
_WORD = re.compile(r"[^\s\"';&|()<>=`$]+")


@dataclass(frozen=True, kw_only=True)
class SshConfiguration:
    """An ssh configuration that a project brings.

    lines: those that may execute or write something. programs: the project's files that these lines name. digest: of the content
    and of the programs.
    """

    path: Path
    content: bytes
    lines: tuple[str, ...]
    programs: tuple[Path, ...]
    digest: str

    def is_trusted(self) -> bool:
        """Whether it executes nothing, or the user has trusted this content."""
        return not self.lines or (_folder("state") / self.digest).is_file()

    def trust(self) -> None:
        """Trust this content from now on, in each project."""
        _write(_folder("state") / self.digest, os.fsencode(self.path) + b"\n")

    def distrust(self) -> None:
        """Forget that this content was trusted."""
        (_folder("state") / self.digest).unlink(missing_ok=True)


def ssh_configuration(named: str, *, cluster: str) -> Path:
    """The file to give to `ssh -F` for `config` of a cluster's [ssh] table: the file itself, or the copy of one that is trusted.

    ToolError if the project brings the file, it executes something, and the user has not trusted it.
    """
    configuration = brought(named)
    if configuration is None:
        return Path(named).expanduser()
    if not configuration.is_trusted():
        said = "; ".join(line.strip() for line in configuration.lines[:3])
        problem = (
            f"cluster {cluster}: {configuration.path} comes with the project, and ssh would obey its lines: {said}"
        )
        raise ToolError(problem, hint="kit trust")
    copy = _folder("cache") / configuration.digest
    if not copy.is_file() or untrusted_files.read_bytes(copy) != configuration.content:
        _write(copy, configuration.content)
    return copy


def brought(named: str) -> SshConfiguration | None:
    """The ssh configuration of this name, if a checkout or another user may have brought it; None if it is the user's own.

    ToolError if it cannot be read.
    """
    project = data_folders.project()
    path = Path(named).expanduser()
    if path.is_absolute() and _is_own(path, project):
        return None
    path = (project / path).resolve()
    try:
        content = untrusted_files.read_bytes(path, most=_MOST_BYTES)
    except OSError as error:
        raise ToolError(
            f"{path}: cannot be read: {error.strerror}", hint="set 'config' in the [ssh] table to a readable file"
        ) from None
    lines = tuple(line for line in content.decode(errors="replace").split("\n") if not _is_harmless(line))
    _check_includes(path, lines, project)
    programs = tuple(_programs(lines, project))
    named_digests = [[str(one.relative_to(project)), _digest(one)] for one in programs]
    what = json.dumps([hashlib.sha256(content).hexdigest(), named_digests])
    digest = hashlib.sha256(what.encode(errors="surrogateescape")).hexdigest()
    return SshConfiguration(path=path, content=content, lines=lines, programs=programs, digest=digest)


def _is_harmless(line: str) -> bool:
    plain = line.strip(" \t\r")
    if not plain or plain.startswith("#"):
        return True
    found = _LINE.fullmatch(line)
    return found is not None and found[1].lower() in _HARMLESS


def _check_includes(path: Path, lines: tuple[str, ...], project: Path) -> None:
    """ToolError if the configuration includes files that are not the user's own: their content is in no digest."""
    for line in lines:
        words = line.replace("=", " ").replace('"', " ").split()
        for word in words[1:] if words and words[0].lower() == "include" else ():
            if not _is_own(Path.home() / ".ssh" / Path(word).expanduser(), project):
                problem = f"{path} includes {word}, which is not a file of your own"
                raise ToolError(problem, hint=f"write the lines of {word} into {path}")


def _programs(lines: tuple[str, ...], project: Path) -> Iterator[Path]:
    """The regular files of the project that words of these lines name."""
    seen = set[Path]()
    for word in (word for line in lines for word in _WORD.findall(line)):
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            path = (project / Path(word).expanduser()).resolve()
            if path not in seen and path.is_relative_to(project) and path.is_file():
                seen.add(path)
                yield path


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(untrusted_files.read_bytes(path, most=_MOST_PROGRAM_BYTES)).hexdigest()
    except OSError as error:
        raise ToolError(
            f"{path}: cannot be read: {error.strerror}", hint="set 'config' in the [ssh] table to a readable file"
        ) from None


def _is_own(path: Path, project: Path) -> bool:
    """Whether the file is the user's own: in no checkout, and writable by nobody else."""
    try:
        path = path.resolve(strict=True)
        if not _only_own(path.stat()):
            return False
        if any(not _only_own(above.stat(), folder=True) for above in path.parents):
            return False
    except (OSError, RuntimeError):
        return False
    usual = (Path.home() / ".ssh", data_folders.user_config(), Path("/etc/ssh"))
    if any(path.is_relative_to(folder.resolve()) for folder in usual):
        return True
    return not path.is_relative_to(project) and not any(_is_checkout(above) for above in path.parents)


def _is_checkout(folder: Path) -> bool:
    """Whether the folder looks like the top of a project. The root and the kit's own folders may have anything."""
    if folder in {Path("/"), data_folders.user_data().resolve()}:
        return False
    return any((folder / name).exists() for name in (".git", *data_folders.KINDS))


def _only_own(seen: os.stat_result, *, folder: bool = False) -> bool:
    """Whether only root and this user may write it, or replace entries of the folder."""
    if seen.st_uid not in {0, os.geteuid()}:
        return False
    writable = seen.st_mode & stat.S_IWOTH or (seen.st_mode & stat.S_IWGRP and seen.st_gid not in _own_groups())
    return not writable or (folder and bool(seen.st_mode & stat.S_ISVTX))


@functools.cache
def _own_groups() -> frozenset[int]:
    """root's group, and the user's own if it has the user's name: many systems give each user one, with a umask of 002."""
    import grp

    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return frozenset({0})
    alone = group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}
    return frozenset({0, group.gr_gid} if alone else {0})


def _folder(kind: str) -> Path:
    """The folder `trusted` in the user's state folder, or `ssh-config` in the cache folder. ToolError if others may write it."""
    own = platformdirs.user_state_path("kit") / "trusted"
    folder = own if kind == "state" else platformdirs.user_cache_path("kit") / "ssh-config"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = folder.lstat()
    except OSError as error:
        raise ToolError(f"{folder}: cannot hold what is trusted: {error.strerror}") from None
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
        problem = f"{folder}: this folder for what you trust must be yours and have mode 0700"
        raise ToolError(problem, hint=f"rm -r {folder}")
    return folder


def _write(path: Path, content: bytes) -> None:
    """Write a file that only the user can read, all of it at once."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "wb") as sink:
        sink.write(content)
    Path(name).rename(path)
