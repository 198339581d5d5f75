"""Finds sweeps next to the runs, and the states of their points."""

from __future__ import annotations

from pathlib import Path

from kit.errors import RunError
from kit.hosts import status
from kit.hosts.host import Queue
from kit.hosts.status import Status
from kit.record import find_runs, foreign_runs, index
from kit.schema.run_paths import RunPaths
from kit.ssh import run_folder_mirror as mirrors
from kit.sweeps import lost_arrays
from kit.sweeps.record import SweepPaths, SweepRecord, read_sweep
from kit.sweeps.search import search_trials

# The state of a point that has no run folder, or was never submitted.
MISSING = "MISSING"


def find_all(folders: list[Path]) -> list[Path]:
    """All sweeps in these folders of runs, oldest first."""
    inside = [p for folder in folders if folder.is_dir() for p in folder.iterdir() if not p.name.startswith(".")]
    return sorted((p for p in inside if SweepPaths(p).record.is_file()), key=_age)


def _age(folder: Path) -> tuple[float, str]:
    """Sort key: the time of submission. A sweep that cannot be read counts as the oldest."""
    try:
        return read_sweep(folder).submitted_at.timestamp(), folder.name
    except RunError:
        return 0.0, folder.name


def find_one(name: str | None, folders: list[Path], *, job_file: Path | None = None) -> Path:
    """A sweep by its folder, id or unique start of an id; without a name the newest, or the newest of `job_file`; one's own
    before others'.

    RunError if there is no such sweep, and for another user's with links in place of folders.
    """
    found = _found(name, folders, job_file)
    foreign_runs.require_own_folders(found)
    return found


def _found(name: str | None, folders: list[Path], job_file: Path | None) -> Path:
    if name is not None and SweepPaths(Path(name)).record.is_file():
        return Path(name).resolve()
    known = find_all(folders)
    if name is None:
        mine = [
            p for p in known if _age(p)[0] and (job_file is None or read_sweep(p).job_file == str(job_file.resolve()))
        ]
        if not mine:
            whose = f" of {job_file}" if job_file else ""
            raise RunError(f"no sweep{whose} yet", hint="'kit sweep' submits one")
        return next((path for path in reversed(mine) if not foreign_runs.is_foreign(path)), mine[-1])
    if found := find_runs.only(name, [p for p in known if p.name.startswith(name)], what="sweeps"):
        return found
    last = ", ".join(p.name for p in known[-3:])
    raise RunError(f"{name}: no such sweep", hint=f"known: {last}" if last else "'kit sweep' submits one")


def named(name: str, folders: list[Path]) -> Path | None:
    """The sweep with exactly this folder or id; None if there is none. RunError as `find_one`."""
    known = [Path(name), *(folder / name for folder in folders)]
    found = next((path.resolve() for path in known if SweepPaths(path).record.is_file()), None)
    if found:
        foreign_runs.require_own_folders(found)
    return found


def active(folder: Path, *, queue: Queue) -> list[Status]:
    """The points that wait or run. Points that are already ending are left out."""
    found = states(folder, read_sweep(folder), queue=queue).values()
    return [one for one in found if one is not None and one.active and one.state != "COMPLETING"]


def states(folder: Path, record: SweepRecord, *, queue: Queue) -> dict[int, Status | None]:
    """The state of each point, by number; None for a point without a run. Slurm is asked once."""
    paths = SweepPaths(folder)
    if mirrors.holding(folder):
        # For a cluster over ssh, this also updates the runs' records.
        answer = queue(record.cluster)
        queue = lambda name: answer  # noqa: E731 - of this cluster alone
    if lost_arrays.has_lost_arrays(record):
        record = lost_arrays.recovered(folder, record)
    # Use the run index: of 10,000 points, only those with changed files are read again.
    there = [(path, one) for path, one in index.runs(paths.points) if not one.problem or _has_manifest(path)]
    found = {one.run_dir.name: one for one in status.of_facts(there, queue=queue)}
    return {p.index: found.get(paths.name(p.index)) for p in record.points}


def _has_manifest(run_dir: Path) -> bool:
    return RunPaths(run_dir).manifest.is_file()


def state_of(one: Status | None) -> str:
    """Slurm's word for a point's state. A point that is SUBMITTED without a job counts as missing."""
    return MISSING if one is None or one.job_id is None else one.state


def to_retry(states_now: dict[int, Status | None]) -> list[int]:
    """The points that ended without success or were never submitted, except those that a search has stopped."""
    return [index for index, one in states_now.items() if not _needs_no_retry(one) and not was_stopped(one)]


def was_stopped(one: Status | None) -> bool:
    """Whether a search has stopped this point early, which is no failure."""
    return one is not None and search_trials.stopped_file(one.run_dir).is_file()


def _needs_no_retry(one: Status | None) -> bool:
    if one is None or one.job_id is None:
        return False
    return one.active or (one.state == "COMPLETED" and not one.exit_code)
