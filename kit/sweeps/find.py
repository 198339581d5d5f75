"""Finds sweeps beside the runs, and the states of their points."""

from __future__ import annotations

from pathlib import Path

from kit.errors import RunError
from kit.remote import run_folder_mirror as mirrors
from kit.runs import find_runs, index, status
from kit.runs.status import Queue, Status
from kit.spec.run_paths import RunPaths
from kit.sweeps import lost_arrays, search_trials
from kit.sweeps.record import SweepPaths, SweepRecord, read

# A point that has no run folder, or one that was never sent.
MISSING = "MISSING"


def find_all(folders: list[Path]) -> list[Path]:
    """All sweeps under these folders of runs, oldest first."""
    inside = [p for folder in folders if folder.is_dir() for p in folder.iterdir() if not p.name.startswith(".")]
    return sorted((p for p in inside if SweepPaths(p).record.is_file()), key=_age)


def _age(folder: Path) -> tuple[float, str]:
    """When it was submitted; one that cannot be read comes before all others, and is the newest of none."""
    try:
        return read(folder).submitted_at.timestamp(), folder.name
    except RunError:
        return 0.0, folder.name


def find_one(name: str | None, folders: list[Path], *, job_file: Path | None = None) -> Path:
    """A sweep by its folder, id or unique start of an id; without a name the newest, of `job_file` where one is given."""
    if name is not None and SweepPaths(Path(name)).record.is_file():
        return Path(name).resolve()
    known = find_all(folders)
    if name is None:
        mine = [p for p in known if _age(p)[0] and (job_file is None or read(p).job_file == str(job_file.resolve()))]
        if not mine:
            whose = f" of {job_file}" if job_file else ""
            raise RunError(f"no sweep{whose} yet", hint="'kit sweep' submits one")
        return mine[-1]
    if found := find_runs.only(name, [p for p in known if p.name.startswith(name)], what="sweeps"):
        return found
    raise RunError(f"{name}: no such sweep", hint=f"known: {', '.join(p.name for p in known[-3:]) or 'none'}")


def named(name: str, folders: list[Path]) -> Path | None:
    """The sweep of exactly this folder or id, where there is one."""
    known = [Path(name), *(folder / name for folder in folders)]
    return next((path.resolve() for path in known if SweepPaths(path).record.is_file()), None)


def active(folder: Path, *, queue: Queue) -> list[Status]:
    """The points that wait or run; those that are ending already are left to end."""
    found = states(folder, read(folder), queue=queue).values()
    return [one for one in found if one is not None and one.active and one.state != "COMPLETING"]


def states(folder: Path, record: SweepRecord, *, queue: Queue) -> dict[int, Status | None]:
    """The state of each point, by number; None for one without a run. Slurm is asked once."""
    paths = SweepPaths(folder)
    if mirrors.holding(folder):
        # With the answer of a cluster over ssh its runs' records come, too.
        answer = queue(record.cluster)
        queue = lambda name: answer  # noqa: E731 - of this cluster alone
    if lost_arrays.arrays(paths, record):
        record = lost_arrays.recovered(folder, record)
    # By the run index: of 10,000 points only those are read anew whose files have changed.
    there = [(path, one) for path, one in index.runs(paths.points) if not one.problem or _has_manifest(path)]
    found = {one.run_dir.name: one for one in status.of_facts(there, queue=queue)}
    return {p.index: found.get(paths.name(p.index)) for p in record.points}


def _has_manifest(run_dir: Path) -> bool:
    return RunPaths(run_dir).manifest.is_file()


def state_of(one: Status | None) -> str:
    """Slurm's word for a point's state; SUBMITTED without a job is as good as missing."""
    return MISSING if one is None or one.job_id is None else one.state


def to_retry(states_now: dict[int, Status | None]) -> list[int]:
    """The points that have ended without success, or were never sent; not those that a search has stopped."""
    return [index for index, one in states_now.items() if not _is_fine(one) and not _was_stopped(one)]


def _was_stopped(one: Status | None) -> bool:
    return one is not None and search_trials.stopped_file(one.run_dir).is_file()


def _is_fine(one: Status | None) -> bool:
    if one is None or one.job_id is None:
        return False
    return one.active or (one.state == "COMPLETED" and not one.exit_code)
