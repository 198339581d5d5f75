"""Commits between two snapshots, and the workspace as it was at one. Nothing of the user's repository is written."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kit import shell
from kit.errors import RunError, ToolError
from kit.runs.workspace import Left
from kit.snapshots import scan, tree_listing
from kit.snapshots.store import Store
from kit.snapshots.tree_listing import ListedFile, Listing

_MOST_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Commit:
    """name: as git takes it; `SHA^` for a commit that is taken back. text: for people."""

    name: str
    text: str


def between(folder: Path, good: str, bad: str) -> list[Commit] | None:
    """The commits that change the folder, from one to the other along first parents; those that are taken back end with `^`.

    None where neither commit is an ancestor of the other, or the repository has one of them no more.
    """
    try:
        if _is_ancestor(folder, good, bad):
            return [Commit(name=sha, text=f"commit {sha[:10]} ({said})") for sha, said in _listed(folder, good, bad)]
        if _is_ancestor(folder, bad, good):
            found = reversed(_listed(folder, bad, good))
            return [Commit(name=f"{sha}^", text=f"taking back commit {sha[:10]} ({said})") for sha, said in found]
    except ToolError:
        return None
    return None


def _is_ancestor(folder: Path, above: str, below: str) -> bool:
    return not shell.run(
        ["git", "-C", str(folder), "merge-base", "--is-ancestor", above, below], check=False, timeout=_MOST_S
    ).returncode


def _listed(folder: Path, above: str, below: str) -> list[tuple[str, str]]:
    options = ("--reverse", "--first-parent", "--format=%H %s", f"{above}..{below}", "--", ".")
    lines = _git(folder, "log", *options).splitlines()
    return [(sha, said) for sha, _, said in (line.partition(" ") for line in lines)]


@dataclass(frozen=True, kw_only=True)
class Workspaces:
    """Makes the folder's workspace at a commit and keeps it among the snapshots.

    left: what is not part of it, as the submit had it. extra: files of both runs that neither commit has: they are in every
    workspace. source: a folder that holds those.
    """

    folder: Path
    store: Store
    left: Left
    extra: tuple[ListedFile, ...] = ()
    source: Path | None = None

    def at(self, commit: str, *, bare: bool = False) -> Listing:
        """The workspace at a commit. bare: without the extra files.

        RunError where git cannot give it; ConfigError as `scan` has it.
        """
        with tempfile.TemporaryDirectory(prefix="kit-bisect-") as place:
            copy = Path(place, "files")
            copy.mkdir()
            try:
                self._export(commit, Path(place))
            except ToolError as error:
                said = error.message.strip().splitlines()[-1]
                raise RunError(f"commit {commit[:10]}: git does not give its files: {said}") from None
            found = scan.scan(
                copy,
                index=Path(place, "no-index"),
                without=[copy / one for one in self.left.paths],
                rules=self.left.rules,
                asked_by=str(self.folder),
            )
            entries = [self._placed(one, copy) for one in found.tree.entries]
            if not bare:
                here = {one.path for one in entries}
                for one in self.extra:
                    if one.path not in here:
                        self._copy_extra(one, copy)
                        entries.append(one)
            tree = tree_listing.made(entries)
            self.store.put_folder(tree, copy)
        return tree

    def _export(self, commit: str, place: Path) -> None:
        """Write the files of a commit. Its own index: the user's stays as it is."""
        env = {**os.environ, "GIT_INDEX_FILE": str(place / "index"), "GIT_OPTIONAL_LOCKS": "0"}
        below = _git(self.folder, "rev-parse", "--show-prefix").strip()
        _git(self.folder, "read-tree", f"{commit}:{below}", env=env)
        top = Path(_git(self.folder, "rev-parse", "--show-toplevel").strip())
        # From the top: a prefix is put before paths from there.
        _git(top, "checkout-index", "--all", "--force", f"--prefix={place / 'files'}/", env=env)

    def _placed(self, entry: ListedFile, copy: Path) -> ListedFile:
        """A link that leads out of the copy leads there from the folder itself."""
        if entry.kind != "link":
            return entry
        target = os.readlink(copy / entry.path)  # noqa: PTH115 - as it is written
        whole = os.path.normpath(f"{self.folder}/{entry.path}/../{target}")
        leaves = not target.startswith("/") and not f"{whole}/".startswith(f"{self.folder}/")
        return entry._replace(content=whole) if leaves else entry

    def _copy_extra(self, entry: ListedFile, copy: Path) -> None:
        if entry.kind == "link" or self.source is None:
            return
        target = copy / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((self.source / entry.path).read_bytes())


def _git(folder: Path, *words: str, env: dict[str, str] | None = None) -> str:
    return shell.run(["git", "-C", str(folder), *words], env=env, timeout=_MOST_S, errors="surrogateescape").stdout
