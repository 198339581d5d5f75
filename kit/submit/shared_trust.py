"""Names what other users could change of a job that is about to be submitted, where no check of the kit holds all the time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kit.errors import Fault
from kit.files import own_folders
from kit.planning.plan import Plan


def warnings(made: Plan) -> Iterator[Fault]:
    """A fault if others could replace the run, and one for each image whose owner could change it while it is mounted."""
    runs_dir = made.run_dir.parent
    for folder in (runs_dir, *runs_dir.parents):
        who = own_folders.replaceable_by(folder) if folder.is_dir() else ""
        if who:
            problem = f"{folder} may be changed by {who}, who can put another run in place of this one"
            yield Fault(
                file=f"clusters/{made.cluster}.toml", key="paths.runs", problem=problem, hint=f"chmod +t {folder}"
            )
            break
    for pinned in made.decisions.pins.distinct:
        # A node that runs a copy of its own checks the bytes of that copy.
        if pinned.lock is None or pinned.image != pinned.stored or not Path(pinned.stored).is_file():
            continue
        if who := own_folders.stranger(Path(pinned.stored)):
            problem = f"{pinned.stored} belongs to {who}, who can change it while the run has it mounted"
            hint = f'image = {{ name = "{pinned.lock.name}", stage = "node" }}'
            yield Fault(file=made.decisions.resolved.job_file, key="image", problem=problem, hint=hint)
