"""Reads the recorded inputs of a run, to repeat it: job, code, images and checkpoints, each checked against the record."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit import config, data_folders
from kit.config import Sources
from kit.errors import RunError
from kit.files import untrusted_files
from kit.planning.plan import Plan, PlanFile
from kit.planning.plan_inputs import Snapshot
from kit.record import checkpoint_steps
from kit.record.manifest import Manifest, read_manifest
from kit.record.unmade_points import POINTS
from kit.schema.run_paths import RunPaths
from kit.schema.set_by import USERS, LayerKind, SetBy
from kit.snapshots.store import Store
from kit.snapshots.tree_listing import Listing
from kit.submission import workspace

if TYPE_CHECKING:
    from kit.config import Resolved, Table
    from kit.schema.image import ImageLock

# A key that the kit derives again from the others, with the same result.
_DERIVED = "slurm.lead"


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """A run to repeat. code: its snapshot, with the store that has it; None if the new run uses the job's folder as it is now.

    from_step: the checkpoint at which the new run begins. node_order: the nodes in the order of the ranks; empty for Slurm's own
    order.
    """

    run_dir: Path
    manifest: Manifest
    job: Table
    code: tuple[Listing, Store] | None
    from_step: int | None = None
    node_order: tuple[str, ...] = ()

    @property
    def paths(self) -> RunPaths:
        """The files of its folder."""
        return RunPaths(self.run_dir)

    def sources(self, *, cluster: str | None, overrides: list[str]) -> Sources:
        """Layers of a new job from the recorded one: on its own cluster all keys, elsewhere only those that the user set.

        RunError for another cluster, QOS or launcher if the manifest does not record which layer set each key.
        """
        job_file = Path(self.manifest.job_file)
        folder = job_file.parent
        at_home = self.manifest.imported is None and folder.is_dir()
        project = data_folders.project(folder if at_home else None)
        sources = config.job_of(
            {}, job_file, cluster=cluster or self.manifest.cluster, overrides=overrides, project=project
        )
        dropped = self._dropped(sources)
        layer = (self._with_template(self._kept(dropped)), config.shown(self.paths.job))
        if not dropped:
            # Each key already has its value. So the cluster's present defaults do not apply to the job.
            sources = replace(sources, place=sources.place.model_copy(update={"defaults": {}, "default_qos": None}))
        return replace(sources, files=(layer,), kept_launcher=self._launcher())

    def resolve(self, sources: Sources) -> Resolved:
        """Resolve the job from its sources. Each key keeps the name of the layer that had set it."""
        resolved = sources.resolve()
        theirs = {key for one in self.manifest.set_by if one.kind in USERS for key in one.keys}
        asked = config.merge(_only(self.job, theirs), sources.set_here)
        job, was = resolved.job, self.job.get("slurm", {}).get("template")
        if job.slurm.template == self._template() is not None:
            # The new run's record has the template's name, as this run's has, and not its path in the store.
            job = job.model_copy(update={"slurm": job.slurm.model_copy(update={"template": was})})
        return replace(
            resolved,
            job=job,
            cluster=config.load_model(sources.cluster.path, type(sources.place)),
            set_by=self._set_by(resolved.set_by),
            asked=asked.get("resources", {}),
            asked_slurm=asked.get("slurm", {}),
        )

    def _dropped(self, sources: Sources) -> set[LayerKind]:
        """Layers whose keys now come from elsewhere."""
        dropped: set[LayerKind] = set()
        if sources.cluster.name != self.manifest.cluster:
            dropped |= {"cluster", "qos"}
        dropped |= {"qos"} if "qos" in sources.set_here else set()
        dropped |= {"launcher"} if "launcher" in sources.set_here else set()
        if dropped and not self.manifest.set_by:
            raise RunError(
                f"run {self.run_dir.name}: an older kit made it and did not record which file set each key of its job, so its "
                "cluster, QOS and launcher cannot be changed",
                hint=f"kit submit {shlex.quote(self.manifest.job_file)}",
            )
        return dropped

    def _kept(self, dropped: set[LayerKind]) -> Table:
        if not dropped:
            lead = self.manifest.layer_of(_DERIVED)
            return self.job if lead or not self.manifest.set_by else _without(self.job, _DERIVED)
        keys = {key for one in self.manifest.set_by if one.kind not in dropped for key in one.keys}
        # The seed was drawn. The image may be a default of the cluster, but it belongs to the run.
        keys |= {"seed"} if "launcher" in dropped else {"seed", "image"}
        return _only(self.job, keys)

    def _template(self) -> str | None:
        """The path of the run's batch template in the snapshot; None if it has none."""
        name = self.job.get("slurm", {}).get("template")
        if self.code is None or name is None or name not in self.code[0].by_path:
            return None
        return str(self.code[1].files_of(self.code[0].hash) / name)

    def _with_template(self, job: Table) -> Table:
        place = self._template()
        if place is None or "template" not in job.get("slurm", {}):
            return job
        return {**job, "slurm": {**job["slurm"], "template": place}}

    def _set_by(self, now: tuple[SetBy, ...]) -> tuple[SetBy, ...]:
        """The layers of a job made from this one: its keys belong to the layers that had set them here."""
        order = dict.fromkeys((one.kind, one.name) for one in (*self.manifest.set_by, *now))
        by_layer: dict[tuple[LayerKind, str], list[str]] = {layer: [] for layer in order}
        for one in now:
            for key in one.keys:
                was = self.manifest.layer_of(key) if one.kind == "file" else one
                if was:
                    by_layer[was.kind, was.name].append(key)
        return tuple(
            SetBy(kind=kind, name=name, keys=tuple(sorted(keys))) for (kind, name), keys in by_layer.items() if keys
        )

    def _launcher(self) -> data_folders.Entry | None:
        """Its launcher as it was; None for a run of a kit that did not keep it."""
        # If the run has its own copy of the programs, look next to them first, since they are found relative to its folder.
        places = (self.paths.code / "launcher.toml", self.paths.launcher)
        path = next((p for p in places if p.is_file()), None)
        if path is None:
            return None
        return data_folders.Entry(name=self.manifest.launcher, path=path, root=self.run_dir)

    def lock(self, name: str | None) -> ImageLock | None:
        """The recorded lock of one of its images; None for an image that the run did not use."""
        path = self.paths.locks / f"{name}.lock"
        if name is None or not path.is_file():
            return None
        from kit.images import image_lock

        return image_lock.read_lock(path)

    def rebuild(self, lock: ImageLock, store: Path) -> str:
        """The commands that restore one of its images, or that fail if they would make another image."""
        from kit.images.check_against_lock import made_by

        made = f"{made_by(lock.name, lock.source)} --locked --store {shlex.quote(str(store))}"
        kept = self.paths.locks / f"{lock.name}.lock"
        if not kept.is_file():
            return made
        return f"cp {shlex.quote(str(kept))} containers/{lock.name}/image.lock && {made}"

    def snapshot(self, runs_dir: Path, *, uid: str | None = None) -> Snapshot | None:
        """The snapshot of its code, in the form for a plan with this `runs_dir`. uid: as in `workspace.store_of`."""
        if self.code is None:
            return None
        tree, _ = self.code
        return Snapshot(tree=tree.hash, folder=workspace.store_of(runs_dir, uid=uid).tree(tree.hash))

    @property
    def folder(self) -> Path | None:
        """The folder of its code as submitted; None if the new run uses the job's folder."""
        if self.code is None:
            return None
        tree, store = self.code
        return store.files_of(tree.hash)

    def keep(self, runs_dir: Path) -> None:
        """Store its code in the snapshots next to the new run. Existing files are not copied."""
        if self.code is not None:
            tree, store = self.code
            workspace.store_of(runs_dir).put_folder(tree, store.files_of(tree.hash))

    def patch(self) -> str:
        """The difference between its code and its commit."""
        recorded = self.manifest.workspace
        if self.code is None or recorded is None or not recorded.patch:
            return ""
        try:
            return untrusted_files.read_bytes(self.paths.patch).decode(errors="surrogateescape")
        except OSError:
            return ""

    def told(self, record: Manifest) -> Manifest:
        """The new run's manifest, with the name of this run and the source of its code added."""
        same = {} if self.code is None else {"git": self.manifest.git, "workspace": self.manifest.workspace}
        return record.model_copy(update={"rerun_of": self.manifest.run_id, "from_step": self.from_step, **same})

    def amended(self, plan: Plan) -> Plan:
        """A plan with this run's launcher programs instead of today's, its first checkpoint, and the order of its nodes."""
        copies, extra_files = plan.copies, list[PlanFile]()
        if copies and plan.decisions.resolved.launcher_dir == self.paths.code:
            copies = ((self.paths.code, "code"),)
        if self.from_step is not None:
            found = checkpoint_steps.find(self.run_dir, self.from_step)
            copies += tuple((path, str(path.relative_to(self.run_dir))) for path in found.folders)
            extra_files = [PlanFile(name=name, text=text) for name, text in found.pointers.items()]
        if self.node_order:
            extra_files.append(PlanFile(name="node-order", text="".join(f"{node}\n" for node in self.node_order)))
        return replace(plan, copies=copies, files=(*plan.files, *extra_files))


def read_inputs(run_dir: Path, *, live: bool = False, from_step: int | None = None) -> Earlier:
    """Read a run's recorded inputs. RunError, with the exact reason, if something that a repetition needs is missing.

    live: the repetition uses the job's folder as it is now.
    """
    paths, manifest = RunPaths(run_dir), read_manifest(RunPaths(run_dir).manifest)
    if manifest.interactive:
        raise RunError(f"run {run_dir.name} was a shell: it had no program", hint="kit shell")
    for name, digest in manifest.records.items():
        _require_same(run_dir / name, digest)
    if from_step is not None:
        checkpoint_steps.require(run_dir, from_step)
    if live and not Path(manifest.job_file).parent.is_dir():
        raise RunError(f"run {run_dir.name}: its job's folder {Path(manifest.job_file).parent} is not there any more")
    return Earlier(
        run_dir=run_dir,
        manifest=manifest,
        job=config.load_toml(paths.job),
        code=None if live else code_of(run_dir, manifest),
        from_step=from_step,
    )


def _require_same(path: Path, digest: str) -> None:
    try:
        found = hashlib.sha256(untrusted_files.read_bytes(path)).hexdigest()
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}: the run cannot be repeated without it") from None
    if found != digest:
        problem = f"{path}: it was changed since the submit, so it no longer records what ran"
        raise RunError(problem, hint="put it back; --set changes a key for a rerun")


def code_of(run_dir: Path, manifest: Manifest) -> tuple[Listing, Store]:
    """The snapshot of a run, with every file checked, and its store. RunError, with the reason, if there is none."""
    live = f"kit rerun {run_dir.name} --live takes the job's folder as it is now"
    tree = manifest.workspace.tree if manifest.workspace else None
    if tree is None:
        problem = "it worked in the job's folder itself (snapshot = false), and no record has the files that were there"
        raise RunError(f"run {run_dir.name}: {problem}", hint=live)
    runs_dir = run_dir.parent.parent.parent if run_dir.parent.name == POINTS else run_dir.parent
    store = workspace.store_of(runs_dir)
    if not store.holds(tree):
        problem = (
            f"its snapshot {tree[:12]} is not in {store.root} any more: it was pruned, removed, or is another user's"
        )
        raise RunError(f"run {run_dir.name}: {problem}", hint=live)
    listing = store.read_listing(tree)
    if damaged := store.damaged(listing):
        problem = f"its snapshot {tree[:12]} is damaged: {', '.join(damaged[:5])}"
        hint = f"a submit of the same files restores it; {live}"
        raise RunError(f"run {run_dir.name}: {problem}", hint=hint)
    return listing, store


def _only(table: Mapping[str, Any], keys: set[str], above: str = "") -> Table:
    """The parts of a table with these dotted keys."""
    parts: Table = {}
    for key, value in table.items():
        if f"{above}{key}" in keys:
            parts[key] = value
        elif isinstance(value, Mapping) and (inner := _only(value, keys, f"{above}{key}.")):
            parts[key] = inner
    return parts


def _without(table: Table, key: str) -> Table:
    first, _, rest = key.partition(".")
    if not rest:
        return {name: value for name, value in table.items() if name != first}
    inner = table.get(first)
    return {**table, first: _without(inner, rest)} if isinstance(inner, dict) else table
