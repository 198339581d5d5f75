"""Writes the difference between a workspace and its commit, in the form that `git apply` reads."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from kit import shell
from kit.errors import ToolError
from kit.snapshots.scan import Scan

_MOST_S = 120.0


def against_commit(done: Scan) -> str:
    """The difference of tracked and added files; empty if there is none, or if there is no commit or no git.

    Nothing in the repository is written: added files are registered in a copy of git's index, without storing their contents as
    objects.
    """
    if not done.by_git:
        return ""
    try:
        places = ("--path-format=absolute", "--git-path", "index", "--git-path", "objects")
        git_index, objects = map(Path, _git(done.folder, "rev-parse", *places).split("\n")[:2])
        with tempfile.TemporaryDirectory(prefix="kit-index-") as folder:
            copy = Path(folder, "index")
            if git_index.exists():
                shutil.copyfile(git_index, copy)
            env = {**os.environ, "GIT_INDEX_FILE": str(copy), "GIT_OPTIONAL_LOCKS": "0"}
            env |= {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects)}
            if done.added:
                names = "\0".join(done.added)
                add = ("add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
                _git(done.folder, "--literal-pathspecs", *add, env=env, given=names)
            options = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--relative", "HEAD", "--", ".")
            return _git(done.folder, "diff", *options, env=env)
    except (ToolError, OSError):
        return ""


def _git(folder: Path, *words: str, env: dict[str, str] | None = None, given: str | None = None) -> str:
    done = shell.run(
        ["git", "-C", str(folder), *words], env=env, input=given, timeout=_MOST_S, errors="surrogateescape"
    )
    # A binary patch ends with an empty line, and `shell.run` removes it.
    return f"{done.stdout}\n\n" if "GIT binary patch" in done.stdout else f"{done.stdout}\n" if done.stdout else ""
