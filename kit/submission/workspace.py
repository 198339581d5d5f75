"""The workspace of a run: the job's folder, scanned for the plan, and stored next to the runs at submit."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit import data_folders
from kit.config import Resolved
from kit.errors import Fault
from kit.files import untrusted_files
from kit.planning.plan import Plan
from kit.planning.plan_inputs import Snapshot
from kit.record import find_runs, index, private_files, reports_folder
from kit.record.manifest import Workspace
from kit.schema.run_paths import RunPaths
from kit.snapshots import patch as patching
from kit.snapshots import scan as scanning
from kit.snapshots.chosen_files import IGNORE_FILE
from kit.snapshots.scan import Scan
from kit.snapshots.store import FOLDER, Store

# With more files, a submit and the first start take long: an NFS server makes some thousand files a second.
MANY_FILES = 20_000
_NAMED = 5
_TREE = re.compile(rb"^readonly KIT_TREE=([0-9a-f]{64})$", re.MULTILINE)


def store_of(runs_dir: Path, *, uid: str | None = None) -> Store:
    """This user's snapshots of the runs in a folder, which several users may share. uid: the user's number on another machine."""
    return Store(runs_dir / f"{FOLDER}-{os.geteuid() if uid is None else uid}")


def scan_workspace(resolved: Resolved, runs_dir: Path) -> Scan | None:
    """The job's folder as it is now; None if the job runs in the folder itself. Nothing is written.

    ConfigError, as in `scan`, for files that a run cannot take.
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
    """Files of a job's folder that do not belong to its workspace. paths: relative to it. rules: in the syntax of .gitignore."""

    paths: tuple[str, ...]
    rules: tuple[str, ...]


def left(resolved: Resolved, runs_dir: Path) -> Left:
    """The files that `read` leaves out in addition to those of git and .kitignore."""
    folder = resolved.job_dir
    inside = (path for path in _not_code(resolved, runs_dir) if path.is_relative_to(folder) and path != folder)
    return Left(tuple(str(path.relative_to(folder)) for path in inside), tuple(_logs(resolved)))


def snapshot(done: Scan | None, runs_dir: Path, *, uid: str | None = None) -> Snapshot | None:
    """The snapshot, as a plan needs it. uid: as in `store_of`."""
    return Snapshot(tree=done.tree.hash, folder=store_of(runs_dir, uid=uid).tree(done.tree.hash)) if done else None


def keep(done: Scan | None, plan: Plan) -> None:
    """Store the scanned files as a snapshot. Existing files are not copied. RunError as in `Store.put`."""
    if done is not None:
        store_of(plan.decisions.site.runs_dir).put(done)


def used(runs_dir: Path) -> set[str]:
    """The hashes of all snapshots that runs in this folder use, from their manifests or, without one, from their batch scripts."""
    trees = set()
    for path, facts in index.runs(runs_dir):
        if facts.tree:
            trees.add(facts.tree)
        if facts.problem:
            with contextlib.suppress(OSError):
                trees |= {one.decode() for one in _TREE.findall(untrusted_files.read_bytes(RunPaths(path).batch))}
    return trees


def patch(done: Scan | None) -> str:
    """The difference from its commit; empty if there is none, or no commit."""
    return patching.against_commit(done) if done and done.by_git else ""


def record(done: Scan | None, resolved: Resolved, *, patch: bool) -> Workspace:
    """The workspace, as the manifest records it."""
    if done is None:
        return Workspace(folder=str(resolved.job_dir))
    return Workspace(
        folder=str(done.folder), tree=done.tree.hash, files=len(done.tree.entries), bytes=done.total, patch=patch
    )


def warnings(done: Scan | None, resolved: Resolved) -> Iterator[Fault]:
    """Warnings about things of the job's folder that the run will not find unchanged, and about keys and logins in it."""
    file = resolved.job_file
    for key, name in private_files.private_values(resolved.job):
        problem = "this value looks like a secret, and whoever may read the run folder can read it"
        yield Fault(file=file, key=key, problem=problem, hint=f'[secrets]\n       env = ["{name}"]')
    if done is None:
        return
    private = [one.path for one in done.tree.entries if private_files.is_private_name(one.path)]
    if private:
        more = f" and {len(private) - _NAMED} more" if len(private) > _NAMED else ""
        problem = f"the run takes files with it that look like keys or logins: {', '.join(private[:_NAMED])}{more}"
        hint = f"echo {shlex.quote('/' + private[0])} >> {shlex.quote(str(done.folder / IGNORE_FILE))}"
        yield Fault(file=file, key="snapshot", problem=problem, hint=hint)
    if len(done.tree.entries) > MANY_FILES:
        problem = f"{done.folder} has {len(done.tree.entries):,} files: each is copied before a rank starts, and stays in the store"
        hint = f"name what is not code in {done.folder / IGNORE_FILE}, and mount data"
        yield Fault(file=file, key="snapshot", problem=problem, hint=hint)
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
    """Why the run will not have a file of the job's folder; empty if it will."""
    found = _left_out(done, path) if done else ""
    return _why(done) if done and found else ""


def _why(done: Scan) -> str:
    return "git, or .kitignore, ignores it" if done.by_git else ".kitignore names it"


def _left_out(done: Scan, word: str) -> str:
    """The relative path that a word names, if it is in the folder, not in the tree, and not mounted at that place."""
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
    """Things that may be in a job's folder and never belong to the workspace: runs, reports, images, mounted folders, secrets."""
    yield runs_dir
    yield from find_runs.folders(resolved.project)
    yield find_runs.store_of(resolved.cluster, resolved.project)
    yield data_folders.user_data()
    yield from reports_folder.inside(resolved.job_dir)
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
    """Rules that exclude logs of batch scripts in the job's folder. Otherwise each run would change the workspace."""
    for pattern in (resolved.job.slurm.output, resolved.job.slurm.error):
        if pattern and not pattern.startswith(("/", "~", "{")):
            yield "/" + re.sub(r"%\d*[A-Za-z]", "*", pattern.replace("{user}", "*"))
