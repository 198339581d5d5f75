"""Runs git in a folder that another may have made: nothing that the repository's own configuration names is executed.

git reads `.git/config` of a copied or unpacked project, and the configuration of a bare repository that is committed in a clone.
Both may name programs: an fsmonitor, hooks, filters, a program that fetches missing objects or checks signatures (git-config(1)).
git's safe.directory only checks the owner of a repository, and the owner of a clone is the user.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kit import shell
from kit.errors import ToolError

# Options on the command line win over every file of configuration. safe.bareRepository: git 2.38; older ones ignore it.
_NO_PROGRAMS = (
    "--no-pager",
    *("-c", "safe.bareRepository=explicit"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "log.showSignature=false"),
    *("-c", "protocol.ext.allow=never"),
)
# Wins over protocol.NAME.allow of every file: a clone without all of its objects would fetch them, by a program of its choice.
_NO_TRANSPORT = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
_MOST_S = 120.0


def run(
    folder: Path | str,
    *words: str,
    env: Mapping[str, str] | None = None,
    given: str | None = None,
    check: bool = True,
    filters: bool = False,
) -> shell.Completed:
    """Run a git command in a folder. It never writes to the repository's index on its own.

    env: more variables. given: its standard input. filters: the command may read or write contents of files, so the filters that
    the repository defines are turned off; those of the user's own configuration run.
    Raises ToolError as `shell.run` does, and for a bare repository inside of a checkout.
    """
    _refuse_bare(Path(folder))
    off = _without_own_filters(folder) if filters else ()
    argv = ["git", "-C", str(folder), *_NO_PROGRAMS, *off, *words]
    return shell.run(
        argv, check=check, timeout=_MOST_S, errors="surrogateescape", env=environment(env or {}), input=given
    )


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of every git command, with more variables."""
    return {**os.environ, **_NO_TRANSPORT, **more}


def _refuse_bare(folder: Path) -> None:
    """ToolError if git would find a bare repository before it finds the folder of a `.git` (gitrepository-layout(5))."""
    for above in (folder, *folder.parents):
        if (above / ".git").exists():
            return
        if (above / "HEAD").exists() and (above / "objects").is_dir() and (above / "refs").is_dir():
            raise ToolError(f"{above} is a bare git repository, and its configuration may name programs")


def _without_own_filters(folder: Path | str) -> list[str]:
    """Options that turn off each filter that the repository's own configuration defines."""
    asked = ["--show-scope", "-z", "--name-only", "--get-regexp", r"^filter\..*\.(clean|smudge|process)$"]
    done = shell.run(
        ["git", "-C", str(folder), *_NO_PROGRAMS, "config", *asked],
        check=False,
        timeout=_MOST_S,
        errors="surrogateescape",
        env=environment({}),
    )
    if done.returncode not in {0, 1}:  # 1: there is none
        raise shell.failed(done)
    words = done.stdout.split("\0")
    off = list[str]()
    for scope, key in zip(words[::2], words[1::2], strict=False):
        if scope in {"system", "global", "command"}:
            continue
        if "=" in key:
            raise ToolError(f"{key.rpartition('.')[0]}: the name of a filter with '=' cannot be turned off")
        name = key.rpartition(".")[0]
        off += ["-c", f"{key}=", "-c", f"{name}.required=false"]
    return off
