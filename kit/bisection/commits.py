"""Commits between two snapshots, and the workspace at a commit. The user's repository is never written."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kit import git
from kit.errors import RunError, ToolError
from kit.files import untrusted_files
from kit.snapshots import scan, tree_listing
from kit.snapshots.store import Store
from kit.snapshots.tree_listing import ListedFile, Listing
from kit.submission.workspace import Left


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A commit. name: in a form that git accepts; `SHA^` for a commit to undo. text: for people."""

    name: str
    text: str


def between(folder: Path, good: str, bad: str) -> list[Commit] | None:
    """The commits that change the folder, from one commit to the other along first parents. Commits to undo end with `^`.

    None if neither commit is an ancestor of the other, or if the repository lacks one of them.
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
    return not git.run(folder, "merge-base", "--is-ancestor", above, below, check=False).returncode


def _listed(folder: Path, above: str, below: str) -> list[tuple[str, str]]:
    options = ("--reverse", "--first-parent", "--format=%H %s", f"{above}..{below}", "--", ".")
    lines = _git(folder, "log", *options).splitlines()
    return [(sha, said) for sha, _, said in (line.partition(" ") for line in lines)]


@dataclass(frozen=True, kw_only=True)
class Workspaces:
    """Makes the folder's workspace at a commit and stores it as a snapshot.

    left: the files that the submit excluded. extra: files of both runs that neither commit has; they are added to every workspace.
    source: a folder with these files.
    """

    folder: Path
    store: Store
    left: Left
    extra: tuple[ListedFile, ...] = ()
    source: Path | None = None

    def at(self, commit: str, *, bare: bool = False) -> Listing:
        """The workspace at a commit. bare: without the extra files.

        RunError if git cannot give it; ConfigError as in `scan`.
        """
        with tempfile.TemporaryDirectory(prefix="kit-bisect-") as scratch:
            copy = Path(scratch, "files")
            copy.mkdir()
            try:
                self._export(commit, Path(scratch))
            except ToolError as error:
                said = error.message.strip().splitlines()[-1]
                raise RunError(f"commit {commit[:10]}: git does not give its files: {said}") from None
            scan_result = scan.scan(
                copy,
                index=Path(scratch, "no-index"),
                without=[copy / path for path in self.left.paths],
                rules=self.left.rules,
                asked_by=str(self.folder),
            )
            entries = [self._with_link_target(entry, copy) for entry in scan_result.tree.entries]
            if not bare:
                here = {entry.path for entry in entries}
                for entry in self.extra:
                    if entry.path not in here:
                        self._copy_extra(entry, copy)
                        entries.append(entry)
            tree = tree_listing.make_listing(entries)
            self.store.put_folder(tree, copy)
        return tree

    def _export(self, commit: str, scratch: Path) -> None:
        """Write the files of a commit. This uses its own index, so the user's does not change."""
        env = {"GIT_INDEX_FILE": str(scratch / "index")}
        below = _git(self.folder, "rev-parse", "--show-prefix").strip()
        _git(self.folder, "read-tree", f"{commit}:{below}", env=env)
        top = Path(_git(self.folder, "rev-parse", "--show-toplevel").strip())
        # Run from the top folder: checkout-index puts the prefix before paths from there.
        _git(top, "checkout-index", "--all", "--force", f"--prefix={scratch / 'files'}/", env=env)

    def _with_link_target(self, entry: ListedFile, copy: Path) -> ListedFile:
        """The entry of a link. The target of a link out of the copy is relative to the folder itself."""
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
        target.write_bytes(untrusted_files.read_bytes(self.source / entry.path))


def _git(folder: Path, *words: str, env: dict[str, str] | None = None) -> str:
    return git.run(folder, *words, env=env, filters=True).stdout
