"""`kit watch`: checks runs until they have ended, and sends notices of their events."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kit.config import load_model
from kit.errors import KitError, SlurmError
from kit.hosts import status as host_status
from kit.hosts.host import Queue
from kit.hosts.status import Status
from kit.notices.happened import STALE_S
from kit.notices.send_once import Say, tell
from kit.record import find_runs, secret
from kit.schema.job import Job
from kit.schema.notify import Event
from kit.schema.run_paths import RunPaths

# Between two questions to Slurm, which answers all of its users.
LOOK_S = 10.0
# A run whose end neither Slurm nor its own record knows is lost after so long.
_GONE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Told:
    """Events and URLs of one run. urls: variable name -> URL."""

    on: tuple[Event, ...]
    urls: dict[str, str]


@dataclass(kw_only=True)
class Watcher:
    """Checks runs and sends their notices. say: prints a line for each notice, without its URL. queue: asks Slurm for the jobs."""

    say: Say
    queue: Queue
    _told: dict[Path, Told | None] = field(default_factory=dict)
    _gone: dict[Path, float] = field(default_factory=dict)

    def look(self, run_dirs: Sequence[Path]) -> list[Status]:
        """Check the runs once and send their notices. Return the runs that have not ended."""
        try:
            found = host_status.read_statuses(run_dirs, queue=self.queue)
        except SlurmError as error:
            # A controller that restarts is back soon, and the runs continue without it.
            self.say(error.message)
            return host_status.read_statuses(run_dirs, queue=lambda _: {})
        return [one for one in found if not self._over(one)]

    def _over(self, run: Status) -> bool:
        recipients = self._whom(run.run_dir)
        gone = False
        if run.state == "LOST":
            gone = time.monotonic() - self._gone.setdefault(run.run_dir, time.monotonic()) >= _GONE_S
        else:
            self._gone.pop(run.run_dir, None)
        if recipients is not None:
            tell(run, recipients.on, recipients.urls, say=self.say, gone=gone)
        return not run.active and (run.state not in {"LOST", "SUBMITTED"} or gone)

    def _whom(self, run_dir: Path) -> Told | None:
        """The events and URLs of a run, read once. An error is printed once; then the result is None."""
        if run_dir not in self._told:
            try:
                self._told[run_dir] = whom(run_dir)
            except KitError as error:
                self.say(f"{run_dir.name}: {error.message}")
                self._told[run_dir] = None
        return self._told[run_dir]


def whom(run_dir: Path) -> Told | None:
    """The events and URLs of a run; None if its job wants no notices. ConfigError, without the value, for a missing or bad URL."""
    from kit.notices import send

    job = load_model(RunPaths(run_dir).job, Job)
    if not job.notify.on:
        return None
    made = host_status.of_record(run_dir).manifest
    urls = secret.urls(job, job_dir=Path(made.job_file).parent, job_file=made.job_file)
    send.check(urls, file=made.job_file)
    return Told(on=job.notify.on, urls=urls)


def lately(folders: list[Path], queue: Queue) -> list[Path]:
    """The runs that have not ended, or ended within the last hour."""
    found = host_status.of_facts(find_runs.find_all(folders), queue=queue)
    return [one.run_dir for one in found if one.active or time.time() - _changed(one.run_dir) < STALE_S]


def _changed(run_dir: Path) -> float:
    try:
        return RunPaths(run_dir).events.stat().st_mtime
    except OSError:
        return 0.0


def watch(
    watcher: Watcher, wanted: Callable[[], Sequence[Path]], *, stay: bool, once: bool = False, look_s: float = LOOK_S
) -> None:
    """Check the wanted runs until all have ended. With `stay`, check until Ctrl-C, also runs that start later."""
    while True:
        left = watcher.look(wanted())
        if once or not (left or stay):
            return
        time.sleep(look_s)
