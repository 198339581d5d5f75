"""Names sources of mounts that this machine lacks, before the job waits in the queue."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from kit.errors import Fault
from kit.planning.plan import Plan


def warnings(made: Plan) -> Iterator[Fault]:
    """A fault for each. It is a warning, because a node's own disk is not mounted where jobs are submitted."""
    decided = made.decisions
    own = {"tmpfs", decided.paths.cache}
    for mount in decided.paths.mounts if decided.runtime.containerized else ():
        if mount.source in own or Path(mount.source).is_relative_to(made.run_dir) or _is_there(mount.source):
            continue
        problem = f"{mount.source} is not on this machine; on a node without it, the preflight fails and no rank starts"
        hint = f"srun ls -d {shlex.quote(mount.source)}"
        yield Fault(file=decided.resolved.job_file, key="mounts", problem=problem, hint=hint)


def _is_there(source: str) -> bool:
    try:
        os.lstat(source)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # A folder that this user may not enter, or a file system that does not answer.
        return True
    return True
