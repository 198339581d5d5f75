"""The run of a state: the good run, changed by the first changes of the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from kit.bisection import changes, commits, intermediate_images
from kit.bisection.changes import KINDS, Change, Kind
from kit.bisection.commits import Workspaces
from kit.errors import RunError
from kit.files import untrusted_files
from kit.record.manifest import Git, Workspace
from kit.schema.image import ImageLock
from kit.schema.run_paths import is_launchers
from kit.schema.set_by import SetBy
from kit.snapshots.store import Store
from kit.snapshots.tree_listing import Listing
from kit.submission import prepare_run, workspace
from kit.submission.prepare_run import Prepared
from kit.submission.recorded_inputs import Earlier

_TREE, _PROGRAMS = "tree:", "programs"


@dataclass(frozen=True, kw_only=True)
class _Mixed(Earlier):
    """An earlier run to repeat, with the images of another run. built: replaces the job's own image."""

    images: Earlier
    built: ImageLock | None = None

    def lock(self, name: str | None) -> ImageLock | None:
        if self.built is not None and self.built.name == name:
            return self.built
        return self.images.lock(name)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two runs, with the nodes that they ran on."""

    good: Earlier
    bad: Earlier
    good_nodes: tuple[str, ...]
    bad_nodes: tuple[str, ...]

    def changes(self, over: Sequence[Kind] = KINDS) -> tuple[list[Change], list[str]]:
        """The changes in order, and descriptions of differences that cannot be tried. over: the wanted kinds."""
        by_kind: dict[Kind, list[Change]] = {
            "code": [*self._code(), *self._programs()],
            "image": intermediate_images.changes(self.good, self.bad),
            "nodes": changes.of_nodes(self.good_nodes, self.bad_nodes),
        }
        by_kind["keys"] = changes.of_keys(
            self.good.job, self.bad.job, self._set_by, fixed={"image"} if by_kind["image"] else ()
        )
        wanted = [one for kind in KINDS if kind in over for one in by_kind[kind]]
        others = [
            f"the {kind} ({len(by_kind[kind])} changes): --over {kind}"
            for kind in KINDS
            if kind not in over and by_kind[kind]
        ]
        return wanted, [*others, *self._not_tried()]

    def prepare_state(self, made: Sequence[Change], every: Sequence[Change], *, run_id: str, folder: Path) -> Prepared:
        """Plan the state with the changes `made` of `every` change, and build its image. folder: a folder for the image's files.

        ConfigError, ImageError and RunError if the state cannot be planned.
        """
        names = {kind: [change.name for change in made if change.kind == kind] for kind in KINDS}
        all_keys = len(names["keys"]) == sum(change.kind == "keys" for change in every)
        table = changes.job_with(
            self.good.job,
            self.bad.job,
            [*names["keys"], *(["image"] if intermediate_images.is_whole(names["image"]) else [])],
            every=all_keys,
            without=changes.derived(self.good.job, self.bad.job, self._set_by),
        )
        if any(change.kind == "nodes" for change in every):
            nodes = changes.nodes_with(self.good_nodes, names["nodes"])
            table = {**table, "slurm": {**table.get("slurm", {}), "nodelist": ",".join(nodes)}}
            table["slurm"].pop("exclude", None)
        tree, store, git = self._workspace_of([name for name in names["code"] if name != _PROGRAMS])
        was = self.good.manifest
        base = self.bad if _PROGRAMS in names["code"] else self.good
        recorded = Workspace(folder=str(self._folder), tree=tree.hash, files=len(tree.entries))
        mixed = _Mixed(
            run_dir=base.run_dir,
            manifest=was.model_copy(update={"workspace": recorded, "git": git}),
            job=table,
            code=(tree, store),
            images=self.bad if intermediate_images.is_whole(names["image"]) else self.good,
        )
        planned = _planned(mixed, run_id)
        if not names["image"] or intermediate_images.is_whole(names["image"]):
            return planned
        images_in = Path(planned.plan.decisions.paths.store)
        built = intermediate_images.built(self.good, self.bad, names["image"], folder=folder, store=images_in)
        return _planned(replace(mixed, built=built), run_id)

    @property
    def _set_by(self) -> tuple[Sequence[SetBy], Sequence[SetBy]]:
        return self.good.manifest.set_by, self.bad.manifest.set_by

    @property
    def _folder(self) -> Path:
        return Path(self.good.manifest.job_file).parent

    def _trees(self) -> tuple[Listing, Store, Listing, Store]:
        if self.good.code is None or self.bad.code is None:
            raise RunError("a run without a snapshot cannot be bisected")
        return *self.good.code, *self.bad.code

    @cached_property
    def _workspaces(self) -> Workspaces:
        """The workspaces at commits of the job's folder, with the untracked files that both runs had."""
        good, store, bad, _ = self._trees()
        sources = self.good.sources(cluster=None, overrides=[])
        left = workspace.left(self.good.resolve(sources), store.root.parent)
        plain = Workspaces(folder=self._folder, store=store, left=left)
        tracked: set[str] = set()
        for one in (self.good, self.bad):
            if one.manifest.git is not None:
                tracked |= plain.at(one.manifest.git.commit, bare=True).by_path.keys()
        extra = tuple(
            entry for path, entry in good.by_path.items() if path not in tracked and bad.by_path.get(path) == entry
        )
        return replace(plain, extra=extra, source=store.files_of(good.hash))

    def _code(self) -> list[Change]:
        """The commits between the runs, and their uncommitted changes before and after; otherwise the whole code as one change."""
        good, _, bad, _ = self._trees()
        if good.hash == bad.hash:
            return []
        whole = Change(kind="code", name=f"{_TREE}{bad.hash}", text="the code, which is one change")
        git = self.good.manifest.git, self.bad.manifest.git
        if git[0] is None or git[1] is None or self.good.manifest.job_file != self.bad.manifest.job_file:
            return [whole]
        history = commits.between(self._folder, git[0].commit, git[1].commit)
        if not history:
            return [whole]
        try:
            made = self._workspaces
            ends = [made.at(end.commit).hash for end in git if end is not None]
        except RunError:
            return [whole]
        before, after = [], []
        if ends[0] != good.hash:
            text = f"undoing the good run's changes that are not in its commit {git[0].commit[:10]}"
            before = [Change(kind="code", name=f"{git[0].commit}", text=text)]
        if ends[1] != bad.hash:
            text = f"the bad run's changes that are not in its commit {git[1].commit[:10]}"
            after = [Change(kind="code", name=f"{_TREE}{bad.hash}", text=text)]
        return [*before, *(Change(kind="code", name=commit.name, text=commit.text) for commit in history), *after]

    def _workspace_of(self, names: Sequence[str]) -> tuple[Listing, Store, Git | None]:
        """The code of a state, stored as a snapshot: the state after the last of these changes."""
        good, store, _, bad_store = self._trees()
        if not names:
            return good, store, self.good.manifest.git
        last = names[-1]
        if last.startswith(_TREE):
            return bad_store.read_listing(last.removeprefix(_TREE)), bad_store, self.bad.manifest.git
        tree = self._workspaces.at(last)
        branch = self.good.manifest.git.branch if self.good.manifest.git else ""
        return tree, store, Git(commit=last, branch=branch, dirty=False)

    def _programs(self) -> list[Change]:
        """A change for the launcher's own programs, if the job runs them and they differ."""
        if not is_launchers(self.good.job) or _contents(self.good) == _contents(self.bad):
            return []
        return [Change(kind="code", name=_PROGRAMS, text="the launcher's programs")]

    def _not_tried(self) -> list[str]:
        good, bad = self.good.manifest, self.bad.manifest
        differences = []
        if good.versions.get("kit") != bad.versions.get("kit"):
            differences.append(
                f"the kit ({good.versions.get('kit')} -> {bad.versions.get('kit')}): every state is run by this one"
            )
        if good.data != bad.data:
            differences.append("the prepared data: every state reads what is there now")
        if len(self.good_nodes) != len(self.bad_nodes):
            differences.append(f"the nodes ({len(self.good_nodes)} -> {len(self.bad_nodes)} of them): Slurm chooses")
        if not good.set_by or not bad.set_by:
            differences.append(
                "which keys follow from others: an older kit did not record who set each, so that all that differ are tried"
            )
        return differences


def _planned(mixed: _Mixed, run_id: str) -> Prepared:
    sources = mixed.sources(cluster=None, overrides=[])
    containers = mixed.job.get("container", {}).get("runtime") != "bare"
    return prepare_run.prepare_resolved(
        mixed.resolve(sources), sources.job_file, containers=containers, earlier=mixed, run_id=run_id
    )


def _contents(one: Earlier) -> dict[str, bytes]:
    code = one.paths.code
    return {
        str(path.relative_to(code)): untrusted_files.read_bytes(path)
        for path in sorted(code.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
