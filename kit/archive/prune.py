"""`kit prune-runs`: chooses old runs, and removes their folders. A sweep is chosen whole, or not at all.

A folder gets a hidden name first, so that what a kill leaves is no half of a run, and is removed by the next call.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kit.files import untrusted_files
from kit.hosts import status
from kit.hosts.status import Status
from kit.record import run_facts
from kit.record.run_facts import UNREADABLE
from kit.record.unmade_points import POINTS
from kit.schema.run_paths import RunPaths
from kit.ssh import run_folder_mirror as mirrors

_REMOVED = ".removed-"
# The part of a run's id, and of a sweep's, that is the same in no other (prepare_run.new_run_id).
_OWN_PART = re.compile(rb"\d{8}-\d{6}-[0-9a-f]{4}")
_DAY_S = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Which ended runs to remove: those that fulfil all of it.

    older_than: days since the run's last record. larger_than: bytes on the disk. states: empty for all. keep_last: how many of the
    newest runs of each job stay. referenced: also runs that a kept run names.
    """

    older_than: float = 0.0
    larger_than: float = 0.0
    states: Collection[str] = ()
    keep_last: int = 0
    referenced: bool = False


@dataclass(frozen=True, kw_only=True)
class OldRun:
    """A run, or a sweep with its points, that fulfils the wish.

    states: of the run or the points, the most frequent first. age: days since its last record. size: bytes on the disk. kept: the
    reason why it stays; empty if it is to be removed. named_by: a kept run that names it. records: of its runs, as they were seen.
    """

    folder: Path
    job_name: str
    states: tuple[str, ...]
    age: float
    size: int
    records: tuple[tuple[Path, tuple[int, ...]], ...]
    kept: str = ""
    named_by: str = ""


def choose(runs: Sequence[Status], wish: Wish, *, now: float | None = None) -> list[OldRun]:
    """What fulfils the wish, oldest first. Runs that are not known to have ended, and those of other users, never do."""
    moment = time.time() if now is None else now
    together: dict[Path, list[Status]] = {}
    for run in runs:
        together.setdefault(_folder_of(run.run_dir), []).append(run)
    ended = {folder: those for folder, those in together.items() if all(map(_has_ended, those))}
    last = {folder: max(map(_last_record, those)) for folder, those in ended.items()}
    stay = _newest(ended, last, wish.keep_last)
    wanted = {
        folder: found
        for folder, those in sorted(ended.items(), key=lambda item: last[item[0]])
        if folder not in stay and (found := _found(folder, those, (moment - last[folder]) / _DAY_S, wish))
    }
    if not wish.referenced:
        return _without_named(wanted, together)
    named = _names({*together} - {*wanted}, wanted)
    return [replace(old_run, named_by=named.get(folder, "")) for folder, old_run in wanted.items()]


def remove(old_runs: Iterable[OldRun], *, done: Callable[[OldRun], None]) -> list[str]:
    """Remove what is not kept; `done` is called after each. Returns a sentence for each folder that could not be removed.

    A run that was submitted again since `choose` stays.
    """
    problems = []
    for old_run in old_runs:
        if old_run.kept:
            continue
        if any(_record_of(run_dir) != record for run_dir, record in old_run.records):
            problems.append(f"{old_run.folder} has changed since it was listed")
            continue
        hidden = old_run.folder.with_name(f"{_REMOVED}{old_run.folder.name}")
        try:
            old_run.folder.rename(hidden)
            _remove_tree(hidden)
        except OSError as error:
            problems.append(f"{error.filename or hidden}: {error.strerror}")
            continue
        done(old_run)
    return problems


def finish(folders: Iterable[Path]) -> None:
    """Remove what an earlier call that was killed has left in these folders of runs."""
    for folder in folders:
        for left in folder.glob(f"{_REMOVED}*") if folder.is_dir() else ():
            if left.lstat().st_uid == os.geteuid():
                _remove_tree(left)


def _folder_of(run_dir: Path) -> Path:
    """The folder that is removed: a run's own, or the sweep's of a point."""
    return run_dir.parent.parent if run_dir.parent.name == POINTS else run_dir


def _has_ended(one: Status) -> bool:
    """Whether nothing runs in the folder, and nothing is going to. A cluster over ssh has the run itself; here is only a copy."""
    if one.active or one.state in {status.UNKNOWN, UNREADABLE} or RunPaths(one.run_dir).submission.exists():
        return False
    return not mirrors.holding(one.run_dir)


def _record_of(run_dir: Path) -> tuple[int, ...]:
    """The times of what a submission and a batch script write into a run folder, 0 for what is missing."""
    paths = RunPaths(run_dir)
    times = []
    for path in (paths.submission, paths.manifest, paths.events):
        try:
            times.append(path.lstat().st_mtime_ns)
        except OSError:
            times.append(0)
    return tuple(times)


def _last_record(one: Status) -> float:
    """Seconds since the epoch: the last event of its batch script, or its submission."""
    times = [event.get("epoch", 0) for event in run_facts.events(one.run_dir)[-1:]]
    return max(one.facts.submitted_at, *(float(str(moment)) for moment in times), 0.0)


def _newest(ended: dict[Path, list[Status]], last: dict[Path, float], count: int) -> set[Path]:
    seen: Counter[tuple[Path, str]] = Counter()
    stay = set()
    for folder in sorted(ended, key=lambda one: -last[one]):
        job = folder.parent, ended[folder][0].facts.job_name
        if seen[job] < count:
            stay.add(folder)
        seen[job] += 1
    return stay


def _found(folder: Path, those: Sequence[Status], age: float, wish: Wish) -> OldRun | None:
    states = tuple(state for state, _ in Counter(run.state for run in those).most_common())
    if age < wish.older_than or (wish.states and not {*states} <= {*wish.states}):
        return None
    if folder.lstat().st_uid != os.geteuid():
        return None
    size, mounted = _measure(folder)
    if size < wish.larger_than:
        return None
    kept = f"something is mounted at {mounted}" if mounted else ""
    name = those[0].facts.job_name
    records = tuple((run.run_dir, _record_of(run.run_dir)) for run in those)
    return OldRun(folder=folder, job_name=name, states=states, age=age, size=size, records=records, kept=kept)


def _measure(folder: Path) -> tuple[int, str]:
    """Bytes on the disk, and a folder in it that is another file system's; links are not followed."""
    top = folder.lstat()
    size, mounted = 0, ""
    seen = set()
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            one = os.lstat(f"{path}/{name}")
            if one.st_dev != top.st_dev:
                mounted = mounted or f"{path}/{name}"
            elif stat.S_ISDIR(one.st_mode) or one.st_nlink == 1 or one.st_ino not in seen:
                seen.add(one.st_ino)
                size += one.st_blocks * 512
    return size, mounted


def _without_named(wanted: dict[Path, OldRun], together: dict[Path, list[Status]]) -> list[OldRun]:
    """The same, where a run that a kept one names is kept, too; and so on, for what that one names."""
    kept = {*together} - {*wanted}
    found = dict(wanted)
    while named := _names(kept, {folder: one for folder, one in found.items() if not one.kept}):
        for folder, by in named.items():
            found[folder] = replace(found[folder], kept=f"{by} names it", named_by=by)
        kept = {*named}
    return list(found.values())


def _names(kept: Iterable[Path], wanted: dict[Path, OldRun]) -> dict[Path, str]:
    """Those of `wanted` that a folder of `kept` names in its manifest, job or sweep: a rerun, a resumed or converted checkpoint."""
    own = {match.group(): folder for folder in wanted if (match := _OWN_PART.search(folder.name.encode()))}
    named = {}
    for folder in kept if own else ():
        for text in _texts(folder):
            for part in _OWN_PART.findall(text):
                if part in own and own[part] != folder:
                    named[own[part]] = folder.name
    return named


def _texts(folder: Path) -> Iterable[bytes]:
    paths = RunPaths(folder)
    places = [paths.manifest, paths.job, folder / "sweep.json"]
    places += [RunPaths(point).job for point in (folder / POINTS).glob("*")]
    for place in places:
        try:
            yield untrusted_files.read_bytes(place)
        except OSError:
            continue


def _remove_tree(folder: Path) -> None:
    """Remove a folder, also with folders in it that its owner may not write to: snapshots of code and read-only libraries."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            one = Path(path, name)
            if not one.is_symlink() and one.lstat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
                one.chmod(stat.S_IRWXU)
    shutil.rmtree(folder)
