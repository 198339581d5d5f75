"""The workspace of a run: the job's folder, read for the plan, and kept beside the runs when the job is submitted."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit import data_folders, untrusted_files
from kit.config import Resolved
from kit.errors import Fault
from kit.planning.plan import Plan
from kit.planning.plan_inputs import Snapshot
from kit.runs import find_runs, index
from kit.runs.manifest import Workspace
from kit.snapshots import patch as patching
from kit.snapshots import scan as scanning
from kit.snapshots.scan import Scan
from kit.snapshots.store import FOLDER, Store
from kit.spec.run_paths import RunPaths

_TREE = re.compile(rb"^readonly KIT_TREE=([0-9a-f]{64})$", re.MULTILINE)


def store_of(runs_dir: Path, *, uid: str | None = None) -> Store:
    """This user's snapshots of the runs in a folder, which several users may share. uid: the user's number on another machine."""
    return Store(runs_dir / f"{FOLDER}-{os.geteuid() if uid is None else uid}")


def read(resolved: Resolved, runs_dir: Path) -> Scan | None:
    """The job's folder as it is now; None where the job runs in the folder itself. Nothing is written.

    ConfigError, as `scan` has it, for what a run cannot take with it.
    """
    if not resolved.job.snapshot:
        return None
    folder = resolved.job_dir
    return scanning.scan(
        folder,
        index=store_of(runs_dir).index(folder),
        without=[*_not_code(resolved, runs_dir)],
        rules=[*_logs(resolved)],
        asked_by=resolved.job_file,
    )


@dataclass(frozen=True)
class Left:
    """What of a job's folder is not part of its workspace. paths: relative to it. rules: as .gitignore has them."""

    paths: tuple[str, ...]
    rules: tuple[str, ...]


def left(resolved: Resolved, runs_dir: Path) -> Left:
    """Files that `read` leaves out in addition to those of git and .kitignore."""
    folder = resolved.job_dir
    inside = (path for path in _not_code(resolved, runs_dir) if path.is_relative_to(folder) and path != folder)
    return Left(tuple(str(path.relative_to(folder)) for path in inside), tuple(_logs(resolved)))


def snapshot(done: Scan | None, runs_dir: Path, *, uid: str | None = None) -> Snapshot | None:
    """What a plan has to know of it. uid: as `store_of` has it."""
    return Snapshot(tree=done.tree.hash, folder=store_of(runs_dir, uid=uid).tree(done.tree.hash)) if done else None


def keep(done: Scan | None, plan: Plan) -> None:
    """Keep what was read among the snapshots; nothing is copied that is there already. RunError as `Store.put` has it."""
    if done is not None:
        store_of(plan.decisions.site.runs_dir).put(done)


def used(runs_dir: Path) -> set[str]:
    """The hashes of all snapshots that a run in this folder refers to, by its manifest or, without one, by its batch script."""
    found = set()
    for path, facts in index.runs(runs_dir):
        if facts.tree:
            found.add(facts.tree)
        if facts.problem:
            with contextlib.suppress(OSError):
                found |= {one.decode() for one in _TREE.findall(untrusted_files.read_bytes(RunPaths(path).batch))}
    return found


def fill(plan: Plan, run_dir: Path) -> None:
    """The copy in the run folder, where a batch script of the user's own would not make it."""
    made = plan.decisions
    target = RunPaths(run_dir).workspace
    if made.site.snapshot is None or made.resolved.template is None or target.exists():
        return
    shutil.copytree(made.site.snapshot.folder / "files", target, symlinks=True)
    (RunPaths(run_dir).state / "tree").write_text(f"{made.site.snapshot.tree}\n", encoding="utf-8")
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o200)
    target.chmod(0o700)


def patch(done: Scan | None) -> str:
    """How it differs from its commit; empty where it does not, or has none."""
    return patching.against_commit(done) if done else ""


def record(done: Scan | None, resolved: Resolved, *, patch: bool) -> Workspace:
    """What the manifest says of it."""
    if done is None:
        return Workspace(folder=str(resolved.job_dir))
    return Workspace(
        folder=str(done.folder), tree=done.tree.hash, files=len(done.tree.entries), bytes=done.total, patch=patch
    )


def warnings(done: Scan | None, resolved: Resolved) -> Iterator[Fault]:
    """What the run will not find as it is in the job's folder."""
    if done is None:
        return
    file = resolved.job_file
    for path in done.passed:
        problem = f"{path} is not a file: a run takes no FIFO, socket or device with it"
        yield Fault(file=file, key="snapshot", problem=problem)
    for link in done.outward:
        problem = f"{link} leads out of the job's folder: the run sees what is there when it runs, if that is mounted"
        yield Fault(file=file, key="snapshot", problem=problem)
    for key, word in _words(resolved):
        path = _left_out(done, word)
        if path:
            problem = f"{path} is in {done.folder} and not in the snapshot: {_why(done)}"
            hint = f'mounts = [{{ source = "{path}", target = "/workspace/{path}" }}]'
            yield Fault(file=file, key=key, problem=problem, hint=hint)


def left_out(done: Scan | None, path: str) -> str:
    """Why a file of the job's folder is not there for the run; empty when it is."""
    found = _left_out(done, path) if done else ""
    return _why(done) if done and found else ""


def _why(done: Scan) -> str:
    return "git, or .kitignore, ignores it" if done.by_git else ".kitignore names it"


def _left_out(done: Scan, word: str) -> str:
    """The relative path that a word names, if it is in the folder, not in the tree, and not mounted there."""
    path = word.partition("=")[2] if word.startswith("-") else word
    path = str(Path(path.removeprefix("/workspace/")))
    if path in {"", "."} or path.startswith(("/", "..", "-")) or len(path) > 4096 or "\0" in path:
        return ""
    if path in done.tree.by_path or path in done.tree.folders or path in done.without:
        return ""
    if any(path.startswith(f"{one}/") for one in done.without):
        return ""
    try:
        return path if (done.folder / path).exists() else ""
    except OSError:
        return ""


def _words(resolved: Resolved) -> Iterator[tuple[str, str]]:
    job = resolved.job
    yield from ((f"args[{n}]", word) for n, word in enumerate(job.args))
    yield from ((f"env.{name}", value) for name, value in job.env.items())
    for name, role in job.roles.items():
        yield from ((f"roles.{name}.args[{n}]", word) for n, word in enumerate(role.args))


def _not_code(resolved: Resolved, runs_dir: Path) -> Iterator[Path]:
    """What may lie in a job's folder and is never part of it: runs, images, what is mounted, secrets."""
    yield runs_dir
    yield from find_runs.folders(resolved.project)
    yield find_runs.store_of(resolved.cluster, resolved.project)
    yield data_folders.user_data()
    known = {"{job}": str(resolved.job_dir), "{project}": str(resolved.project)}
    for mount in resolved.mounts:
        source = mount.source
        for word, value in known.items():
            source = source.replace(word, value)
        if (path := resolved.job_dir / source) != resolved.job_dir:
            yield path
    if resolved.job.secrets.file:
        yield resolved.job_dir / Path(resolved.job.secrets.file).expanduser()


def _logs(resolved: Resolved) -> Iterator[str]:
    """Rules for the logs that batch scripts write into the job's folder: else each run would make another workspace."""
    for pattern in (resolved.job.slurm.output, resolved.job.slurm.error):
        if pattern and not pattern.startswith(("/", "~", "{")):
            yield "/" + re.sub(r"%\d*[A-Za-z]", "*", pattern.replace("{user}", "*"))
