"""Nodes that failed a preflight, or that a user named. They are recorded for a day next to the runs, and every submit avoids them.

`kit nodes` shows them. Where several users share the folder of runs, a submit avoids only nodes that its own user or root has
recorded: a record has a name that goes into the batch script, and everybody who may write the folder may make one.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kit.errors import RunError
from kit.files import atomic_write, own_folders
from kit.planning.batch_file import AVOID_DIR

MEMORY_S = 24 * 3600
# The form of slurm.conf's NodeName. It excludes paths, options, blanks and newlines.
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_REASON_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Avoided:
    """An avoided node. since: the time of the record. reason: the message of its preflight, or the user who named it.

    recorded_by: another user, whose record is shown but not obeyed; empty for the reader's own records and for those of root.
    """

    node: str
    since: datetime
    reason: str
    recorded_by: str = ""


def read_avoided(runs_dir: Path) -> list[Avoided]:
    """Nodes that were recorded within the last day, sorted. Files that no record looks like are passed over."""
    try:
        with own_folders.entered(runs_dir / AVOID_DIR) as folder:
            found = [_read(path) for path in sorted(folder.iterdir()) if NODE.fullmatch(path.name)]
    except OSError:
        return []
    return [one for one in found if one and time.time() - one.since.timestamp() <= MEMORY_S]


def obeyed(avoided: Iterable[Avoided]) -> tuple[str, ...]:
    """The nodes that a submit of the reader avoids."""
    return tuple(sorted(one.node for one in avoided if not one.recorded_by))


def user_who_recorded(uid: int, reader: int) -> str:
    """The name of another user, whose records the reader does not obey; empty for the reader and for root."""
    if uid in {0, reader}:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _read(path: Path) -> Avoided | None:
    """One record; None for a link, a FIFO or anything else that is not a regular file, and for a file that cannot be read.

    A link is not followed: its target could belong to the reader.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode):
            return None
        reason = os.read(handle, _REASON_BYTES).decode("utf-8", errors="replace").strip()
    finally:
        os.close(handle)
    return Avoided(
        node=path.name,
        since=datetime.fromtimestamp(seen.st_mtime, UTC),
        reason=reason,
        recorded_by=user_who_recorded(seen.st_uid, os.geteuid()),
    )


def add(runs_dir: Path, node: str, reason: str) -> None:
    """Make new jobs avoid `node` for a day. The reader's own records that are older than a day are removed."""
    with _entered(runs_dir) as folder:
        for path in folder.iterdir():
            with contextlib.suppress(OSError):
                seen = path.lstat()
                if seen.st_uid == os.geteuid() and time.time() - seen.st_mtime > MEMORY_S:
                    path.unlink()
        atomic_write.write(folder / node, f"{reason}\n")


def forget(runs_dir: Path, node: str) -> None:
    """Let jobs run on `node` again; RunError when it is not avoided."""
    require_known(node, read_avoided(runs_dir))
    with _entered(runs_dir) as folder:
        (folder / node).unlink(missing_ok=True)


@contextlib.contextmanager
def _entered(runs_dir: Path) -> Iterator[Path]:
    """The folder of records, made if it is missing. RunError for a link: the reader's own old files could be where it leads."""
    folder = runs_dir / AVOID_DIR
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    with contextlib.ExitStack() as held:
        try:
            place = held.enter_context(own_folders.entered(folder))
        except OSError as error:
            problem = f"{folder}: not a folder of records, but a link or a file: {error.strerror}"
            raise RunError(problem, hint=f"rm {shlex.quote(str(folder))}") from None
        yield place


def require_known(node: str, avoided: Iterable[Avoided]) -> None:
    """RunError for a node that is not avoided."""
    known = {one.node for one in avoided}
    if node not in known:
        raise RunError(f"{node}: not among the avoided nodes: {', '.join(sorted(known)) or 'there are none'}")
