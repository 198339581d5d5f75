"""Writes the difference between a workspace and its commit, in the form that `git apply` reads."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from kit import git
from kit.errors import ToolError
from kit.snapshots.scan import Scan


def against_commit(done: Scan) -> str:
    """The difference of tracked and added files; empty if there is none, or if there is no commit.

    Nothing in the repository is written: added files are registered in a copy of git's index, without storing their contents as
    objects.
    """
    try:
        places = ("--path-format=absolute", "--git-path", "index", "--git-path", "objects")
        git_index, objects = map(Path, _git(done.folder, "rev-parse", *places).split("\n")[:2])
        with tempfile.TemporaryDirectory(prefix="kit-index-") as folder:
            copy = Path(folder, "index")
            if git_index.exists():
                # With its time: git compares the contents of files that are not older than the index, whose size and time may be
                # those of the commit although they were written after it.
                shutil.copy2(git_index, copy)
            env = {"GIT_INDEX_FILE": str(copy)}
            env |= {"GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(objects)}
            if done.added:
                names = "\0".join(done.added)
                add = ("add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul")
                _git(done.folder, "--literal-pathspecs", *add, env=env, given=names)
            # In a submodule git would ask another git, with the filters of that repository.
            apart = ("--ignore-submodules=dirty", "--submodule=short", "--no-ext-diff", "--no-textconv")
            options = ("--binary", "--no-color", "--relative", "HEAD", "--", ".")
            return _git(done.folder, "diff", *apart, *options, env=env)
    except (ToolError, OSError):
        return ""


def _git(folder: Path, *words: str, env: dict[str, str] | None = None, given: str | None = None) -> str:
    done = git.run(folder, *words, env=env, given=given, filters=True)
    # A binary patch ends with an empty line, and `shell.run` removes it.
    return f"{done.stdout}\n\n" if "GIT binary patch" in done.stdout else f"{done.stdout}\n" if done.stdout else ""
