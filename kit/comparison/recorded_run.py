"""Reads the records of a run for a comparison, once. Missing or damaged parts are described in words, never guessed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit import config
from kit.comparison import images
from kit.comparison.metric_divergence import start_facts
from kit.comparison.text_diffs import ComparedFiles, of_contents, of_tree
from kit.errors import KitError, RunError
from kit.files import untrusted_files
from kit.images import image_lock
from kit.images.squash import installed_packages, sqshfile
from kit.record import metrics
from kit.record.manifest import Manifest
from kit.record.unmade_points import POINTS
from kit.schema.comparison import ComparedRun
from kit.schema.run_paths import RunPaths
from kit.slurm import short_forms
from kit.snapshots.store import FOLDER, Store

if TYPE_CHECKING:
    from kit.health.answer import Answer
    from kit.hosts.status import Status

# The kit's own files in a run folder; all other files are the run's output.
_SCRIPTS = (
    "*.sh",
    "layout.txt",
    "*/worker.sh",
    "*/program.sh",
    *(f"{name}/**/*" for name in ("configs", "bin", "lib", "code")),
)
_UNNAMED = "no container"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One run. unknown: descriptions of what is not known.

    job: its resolved keys; None if they cannot be read. cluster, launcher: their files at submit; None for a run of an older kit.
    code: from its snapshot; None if that is missing. scripts: with the run's own name replaced.
    """

    run: ComparedRun
    manifest: Manifest
    job: Mapping[str, Any] | None
    cluster: Mapping[str, Any] | None
    launcher: Mapping[str, Any] | None
    records: list[dict[str, Any]]
    code: ComparedFiles | None
    image: str
    image_held: images.ImageContent | None
    scripts: ComparedFiles
    nodes: tuple[str, ...]
    unknown: tuple[str, ...] = field(default=())


def read_run(status: Status, answer: Answer) -> Recorded:
    """Read a run's folder. RunError if its manifest cannot be read, since then nothing can be compared."""
    manifest, paths, unknown = status.manifest, RunPaths(status.run_dir), list[str]()
    tables = [_table(path, manifest, unknown) for path in (paths.job, paths.cluster, paths.launcher)]
    reported = metrics.records(status.run_dir)
    steps = [step for one in reported if isinstance(step := one.get("step"), int) and not isinstance(step, bool)]
    if not manifest.set_by:
        unknown.append("which layer set its keys is not recorded")
    if not status.nodes:
        unknown.append("its nodes are not recorded")
    run = ComparedRun(
        run=status.run_dir.name,
        run_dir=str(status.run_dir),
        job_id=status.job_id,
        state=status.state,
        exit_code=status.exit_code,
        verdict=answer.verdict,
        rule=answer.rule,
        why=answer.line,
        submitted_at=manifest.submitted_at.isoformat(timespec="seconds"),
        step=max(steps, default=None),
    )
    return Recorded(
        run=run,
        manifest=manifest,
        job=tables[0],
        cluster=tables[1],
        launcher=tables[2],
        records=reported,
        code=_code(status.run_dir, manifest, unknown),
        image=_image_name(manifest),
        image_held=_image(manifest, paths, unknown),
        scripts=_scripts(status.run_dir, manifest),
        nodes=short_forms.expand_nodes(status.nodes),
        unknown=tuple(unknown),
    )


def tree_of(run_dir: Path, tree: str) -> Store:
    """The store that holds a run's snapshot. RunError if there is none that this user may read."""
    above = run_dir.parent.parent.parent if run_dir.parent.name == POINTS else run_dir.parent
    closed = False
    for root in sorted(above.glob(f"{FOLDER}-*")):
        try:
            if Store(root).holds(tree):
                return Store(root)
        except PermissionError:
            closed = True
    reason = "is another user's, or pruned" if closed else "is not there any more: it was pruned"
    raise RunError(f"its snapshot {tree[:12]} {reason}")


def _table(path: Path, manifest: Manifest, unknown: list[str]) -> Mapping[str, Any] | None:
    try:
        return config.load_toml(path)
    except KitError as error:
        if path.exists():
            unknown.append(f"its {path.name} cannot be read: {error.message}")
        else:
            unknown.append(
                f"its {path.name} is not recorded" if path.name not in manifest.records else f"its {path.name} is gone"
            )
        return None


def _code(run_dir: Path, manifest: Manifest, unknown: list[str]) -> ComparedFiles | None:
    if manifest.workspace is None or manifest.workspace.tree is None:
        dirty = " with changes" if manifest.git and manifest.git.dirty else ""
        known = f": its commit was {manifest.git.commit[:12]}{dirty}" if manifest.git else ""
        unknown.append(f"its code is not recorded, since it ran in the live folder{known}")
        return None
    tree = manifest.workspace.tree
    try:
        store = tree_of(run_dir, tree)
        return of_tree(store.read_listing(tree), lambda path: untrusted_files.read_bytes(store.files_of(tree) / path))
    except (RunError, OSError) as error:
        unknown.append(
            error.message if isinstance(error, RunError) else f"its snapshot cannot be read: {error.strerror}"
        )
        return None


def _image_name(made: Manifest) -> str:
    if not _contained(made):
        return _UNNAMED
    return f"{made.image_name or made.image} {made.image_digest}".strip()


def _contained(made: Manifest) -> bool:
    return made.runtime != "bare" and bool(made.image or made.image_name)


def _image(manifest: Manifest, paths: RunPaths, unknown: list[str]) -> images.ImageContent | None:
    """The image's content: from the lock in the run folder, else from the image file itself, which its digest identifies."""
    if not _contained(manifest):
        return None
    own = paths.locks / f"{manifest.image_name}.lock"
    try:
        if own.is_file():
            return images.of_lock(image_lock.read_lock(own))
        image = Path(manifest.image)
        if image.is_absolute() and image.is_file():
            return images.ImageContent(packages=installed_packages.packages(image), config=sqshfile.config(image))
    except KitError as error:
        unknown.append(f"its image cannot be read: {error.message}")
        return None
    unknown.append(
        f"what is in its image {manifest.image_digest[:19] or manifest.image} is not recorded, and the file is gone"
    )
    return None


def _scripts(run_dir: Path, made: Manifest) -> ComparedFiles:
    tree = made.workspace.tree if made.workspace else None
    own = {str(run_dir): "RUN_DIR", made.run_id: "RUN_ID", **({tree: "TREE"} if tree else {})}
    contents = {}
    for path in dict.fromkeys(path for pattern in _SCRIPTS for path in run_dir.glob(pattern)):
        if "__pycache__" in path.parts or not path.is_file():
            continue
        try:
            content = untrusted_files.read_bytes(path)
        except OSError:
            continue
        for text, word in own.items():
            content = content.replace(text.encode(), word.encode())
        contents[path.relative_to(run_dir).as_posix()] = content
    return of_contents(contents)


def facts(one: Recorded) -> Iterator[tuple[str, str]]:
    """Versions other than the kit's, prepared data, and the program's facts from its last start."""
    yield from ((name, value) for name, value in one.manifest.versions.items() if name != "kit")
    yield from ((f"data {name}", value) for name, value in one.manifest.data.items())
    yield from start_facts(one.records).items()
