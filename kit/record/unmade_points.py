"""Points of sweeps whose run folders are not made yet. `kit sweep` writes one template for all points that differ only in plain
values, and a line for each point. The point's task makes the folder when it starts (templates/sweep/make_point.sh).

Every reader of points finds them here: listings take their facts from the template, and a command that names one point makes its
folder first.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kit import data_folders, shell
from kit.errors import ToolError
from kit.files import atomic_write, untrusted_files
from kit.schema.run_paths import RunPaths
from kit.slurm.client import JobId
from kit.ssh import run_folder_mirror as mirrors

# A point without a template: `kit sweep` has made its folder.
MADE = "-"
# In this folder a sweep keeps the run folders of its points.
POINTS = "points"
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Unmade:
    """A point without a run folder.

    run_dir: the future folder. array: the folder of its array. template: a run folder with tokens.
    """

    run_dir: str
    array: str
    task: int
    job_id: int | None
    template: str

    @property
    def slurm_id(self) -> JobId | None:
        """The job's number in Slurm's commands; None before it is submitted."""
        return None if self.job_id is None else f"{self.job_id}_{self.task}"


class ArrayPaths:
    """File names in the folder of an array whose points have a template."""

    def __init__(self, array: Path | str) -> None:
        self.root = str(array)

    @property
    def points(self) -> str:
        """A line for each task: the point's number, its template, its words."""
        return f"{self.root}/points"

    @property
    def job(self) -> str:
        """The array's job number, after it is submitted."""
        return f"{self.root}/job"

    @property
    def logs(self) -> str:
        """The folder of the tasks' output. A point's batch.log is the same file."""
        return f"{self.root}/logs"


def with_template(sweep: str) -> Iterator[Unmade]:
    """The points of a sweep that have a template. The folders of some may be made by now."""
    if not os.path.isdir(f"{sweep}/templates"):  # noqa: PTH112 - as in index.py
        return
    before = f"{sweep}/{POINTS}/{os.path.basename(sweep)}."  # noqa: PTH119
    for array in _arrays(sweep):
        job = _job(array)
        for task, (index, template) in enumerate(lines(array)):
            if template != MADE:
                yield Unmade(f"{before}{index}", array, task, job, f"{sweep}/templates/{template}/run")


def is_unmade(run_dir: Path) -> bool:
    """Whether this is the path of a point's run folder that does not exist yet."""
    return run_dir.parent.name == POINTS and not run_dir.exists()


def find(run_dir: Path) -> Unmade | None:
    """The point with this run folder, if the folder is not made; None for every other folder."""
    if not is_unmade(run_dir):
        return None
    sweep = str(run_dir.parent.parent)
    index = run_dir.name.removeprefix(f"{run_dir.parent.parent.name}.")
    for array in _arrays(sweep):
        task, template = _by_index(array).get(index, (0, MADE))
        if template != MADE:
            return Unmade(str(run_dir), array, task, _job(array), f"{sweep}/templates/{template}/run")
    return None


def described_in(run_dir: Path) -> Path:
    """The folder with the files that describe a run: its own, or the template of a point without a folder."""
    one = find(run_dir)
    return run_dir if one is None else Path(one.template)


def make(run_dir: Path) -> None:
    """Make the folder of a point that is submitted. Does nothing for other folders, and for points of other users' sweeps.

    If it cannot be made, as on a full disk, or is not, as from another user's files, prints the reason to stderr; the point
    remains as it is.
    """
    point = find(run_dir)
    if point is None or point.job_id is None or mirrors.holding(run_dir):
        return
    if refused := _not_own(point):
        if refused != str(run_dir.parent.parent):
            print(
                f"kit: {run_dir.name}: its run folder is not made: {refused} is missing, a link, or not yours",
                file=sys.stderr,
            )
        return
    # The kit's own script, not the sweep's copy: programs in folders of runs are data here.
    script = data_folders.packaged() / "templates/sweep/make_point.sh"
    try:
        shell.run(["bash", str(script), point.array, str(point.task), str(point.job_id)], timeout=_TIMEOUT_S)
    except ToolError as error:
        print(f"kit: {run_dir.name}: its run folder cannot be made: {error.message}", file=sys.stderr)


def cancelled(run_dir: Path) -> Path:
    """The file that marks a run as cancelled before its start. For a point without a folder it is in the sweep's folder; the
    point's own folder gets it when it is made.
    """
    if is_unmade(run_dir):
        return run_dir.parent.parent / "cancelled" / run_dir.name
    return RunPaths(run_dir).cancelled


def mark_cancelled(run_dir: Path) -> None:
    """Record for a point without a folder that the user has cancelled it."""
    mark = cancelled(run_dir)
    with contextlib.suppress(OSError):
        mark.parent.mkdir(exist_ok=True)
        atomic_write.write(mark, f"{getpass.getuser()}\n", durable=False)


def lines(array: str) -> tuple[tuple[str, str], ...]:
    """The number and the template of each task's point; empty for an array without templates, or one that cannot be read."""
    return _listed(array)[0]


def _by_index(array: str) -> Mapping[str, tuple[int, str]]:
    """The same lines by the point's number: its task and its template."""
    return _listed(array)[1]


def _listed(array: str) -> tuple[tuple[tuple[str, str], ...], Mapping[str, tuple[int, str]]]:
    path = ArrayPaths(array).points
    try:
        return _read(path, os.stat(path).st_mtime_ns)  # noqa: PTH116
    except OSError:
        return (), {}


@lru_cache(maxsize=1024)
def _read(path: str, changed: int) -> tuple[tuple[tuple[str, str], ...], Mapping[str, tuple[int, str]]]:
    """Read the lines of a file. changed: its time; a file with another time is read again."""
    del changed
    text = untrusted_files.read_text(Path(path))
    words = [line.split(" ", 2)[:2] for line in text.splitlines()]
    # Both are parts of paths.
    if not all(len(pair) == 2 and pair[0].isdecimal() and (pair[1] == MADE or pair[1].isdecimal()) for pair in words):
        return (), {}
    in_order = tuple((index, template) for index, template in words)
    return in_order, {index: (task, template) for task, (index, template) in enumerate(in_order)}


def _arrays(sweep: str) -> list[str]:
    try:
        # Not links: another user's could lead to an array of this user.
        inside = os.scandir(f"{sweep}/arrays")
        return sorted(one.path for one in inside if one.name.isdecimal() and one.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _job(array: str) -> int | None:
    try:
        text = untrusted_files.read_text(Path(ArrayPaths(array).job)).strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and len(text) < 19 else None


def _not_own(point: Unmade) -> str:
    """The first of the folders and files from which a point's folder is made that is a link, missing, or not this user's; empty
    for none.

    Each is looked at: in another user's sweep, a link can lead to an array of this user.
    """
    sweep = os.path.dirname(os.path.dirname(point.run_dir))  # noqa: PTH120
    template = os.path.dirname(point.template)  # noqa: PTH120
    folders = (
        sweep, f"{sweep}/{POINTS}", f"{sweep}/arrays", point.array, f"{sweep}/templates", template, point.template,
    )  # fmt: skip
    array = ArrayPaths(point.array)
    files = (array.points, array.job, f"{template}/tokens", f"{template}/files")
    wanted = (*((path, stat.S_IFDIR) for path in folders), *((path, stat.S_IFREG) for path in files))
    return next((path for path, kind in wanted if not _is_own(path, kind)), "")


def _is_own(path: str, kind: int) -> bool:
    try:
        seen = os.lstat(path)
    except OSError:
        return False
    return seen.st_uid == os.geteuid() and stat.S_IFMT(seen.st_mode) == kind
