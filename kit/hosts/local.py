"""This machine as a cluster's host: Slurm's commands run here, and its run folders are on disks that this machine has."""

from __future__ import annotations

import contextlib
import getpass
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kit import data_folders, shell
from kit.errors import ConfigError, LockError
from kit.files import atomic_write, untrusted_files
from kit.hosts.host import EndedRun, Inputs, JobToEnd, NewArrays, NewRun, UserFacts
from kit.record import cache_files, find_runs, known_files, unmade_points
from kit.schema.run_paths import RunPaths
from kit.slurm import client
from kit.slurm.client import JobId, QueuedJob

if TYPE_CHECKING:
    from kit.hosts.avoided_nodes import Avoided
    from kit.record.manifest import Manifest

# Of a text that a step writes.
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LocalHost:
    """The host of a cluster that is reached without ssh.

    project: for its file; by default that of the working folder. runs: its folder of runs, if it is known without its file.
    """

    name: str
    project: Path | None = None
    runs: Path | None = None
    shares_files = True
    look_s = 0.2

    def env(self, inherit: Sequence[str] = ()) -> dict[str, str]:
        """The environment for Slurm's commands. An embedded cluster has its own slurm.conf."""
        conf = known_files.embedded_conf(self.name)
        return client.environment({"SLURM_CONF": str(conf)} if conf else {}, inherit=inherit)

    def is_up(self) -> bool:
        """Whether Slurm can be asked. Only an embedded cluster can be down; any other is assumed to be up."""
        try:
            known = known_files.cluster(self._file())
        except ConfigError:
            return known_files.embedded_conf(self.name) is not None
        return not known.embedded or known_files.embedded_conf(self.name) is not None

    def refresh(self) -> None:
        """Do nothing: the files are here."""

    def refresh_if_old(self) -> bool:
        """Return False: what is here is never old."""
        return False

    def settle(self) -> None:
        """Do nothing: each run has a note of its submit, which kit/hosts/open_submissions.py reads."""

    def queue(self) -> Mapping[JobId, QueuedJob] | None:
        """The user's jobs. An embedded cluster that is not up has none."""
        return client.queue(env=self.env()) if self.is_up() else {}

    def cancel(self, jobs: Sequence[JobToEnd]) -> None:
        """End these jobs with at most two calls of Slurm, besides those for chains: first those that end at once.

        So no waiting job starts on the nodes of a job that ends.
        """
        env = self.env()
        for job in jobs:
            client.cancel_each([link for link in job.links if link != job.job_id], env=env)
        gently = [job.job_id for job in jobs if job.how == "gently"]
        at_once = [job.job_id for job in jobs if job.how != "gently"]
        if at_once:
            client.cancel(*at_once, env=env)
        if gently:
            client.cancel(*gently, env=env, gently=True)
        for job in jobs:
            _record_cancel(job)

    def halves(self) -> Path:
        """A folder in the user's cache."""
        return cache_files.halves()

    def user_facts(self) -> UserFacts:
        """The facts of this process's user."""
        from kit.hosts import avoided_nodes

        runs = self._runs()
        return UserFacts(
            user=getpass.getuser(),
            uid=None,
            home=str(Path.home()),
            data=str(data_folders.user_data()),
            store=str(data_folders.image_store()),
            runs=runs,
            avoid=avoided_nodes.obeyed(avoided_nodes.read_avoided(runs)),
        )

    def path_here(self, run_dir: Path) -> Path:
        """The same path."""
        return run_dir

    def require_inputs(self, inputs: Inputs) -> None:
        """LockError if an image is missing in its store, or does not match its lock. Snapshots are stored at the submit."""
        from kit.images import check_against_lock

        for image in inputs.images:
            try:
                check_against_lock.check(image.lock, image.store, full=False)
            except LockError as error:
                if inputs.rebuild is None:
                    raise
                raise LockError(error.message, hint=inputs.rebuild(image.lock, image.store)) from None

    def submit(self, run: NewRun) -> Manifest:
        """Make the run folder, and submit it with a note of the submit on disk."""
        from kit.hosts import local_submit

        return local_submit.submit(run)

    def submit_again(self, run: EndedRun) -> Manifest:
        """Submit the run's scripts again, with a note of the submit on disk."""
        from kit.hosts import local_submit

        return local_submit.submit_again(run)

    def submit_arrays(self, sweep: NewArrays) -> Mapping[int, int]:
        """Write the files, and submit each array with a note of its submit on disk."""
        from kit.hosts import local_submit

        return local_submit.submit_arrays(sweep)

    def require_images_of(self, run_dir: Path, record: Manifest) -> None:
        """LockError if the image that the run's record names is missing, truncated or another one."""
        if not record.image.startswith("/"):
            return
        from kit.images import check_against_lock
        from kit.images.squash import sqshfile

        path = Path(record.image)
        hint = f"run 'kit build-image {record.image_name} --store {shlex.quote(str(path.parent.parent))}'"
        sqshfile.check(path, hint=hint)
        sha256 = record.image_digest.removeprefix("sha256:")
        check_against_lock.require_digest(path, sha256, what=f"image {record.image_name}", hint=hint)

    def open_shell(self, run: NewRun, argv: Sequence[str], code: Path | None) -> int:
        """Make the run folder, and run the command with this terminal."""
        from kit.hosts import local_submit
        from kit.record import secret

        local_submit.make_folder(run)
        try:
            return shell.call(list(argv), env=_with_terminal(run.env))
        finally:
            secret.remove(run.run_dir)

    def on_terminal(self, argv: Sequence[str]) -> int:
        """Run the command with this terminal."""
        return shell.call(list(argv), env=_with_terminal(self.env()))

    def piped(self, argv: Sequence[str]) -> list[str]:
        """The same argv."""
        return list(argv)

    def piped_env(self) -> Mapping[str, str]:
        """The environment for Slurm's commands."""
        return self.env()

    def gather_texts(
        self, run_dir: Path, step: Callable[[Path, Path], list[str]], *, timeout_s: float
    ) -> dict[str, bytes]:
        """Run a step that writes `*.txt` files into a folder of the run, and read them."""
        folder = Path(tempfile.mkdtemp(prefix="stacks-", dir=RunPaths(run_dir).state))
        try:
            shell.run(step(run_dir, folder), env=self.env(), timeout=timeout_s)
            return {
                path.relative_to(folder).as_posix(): untrusted_files.read_bytes(path, most=_MOST_BYTES)
                for path in sorted(folder.glob("**/*.txt"))
            }
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def fetch(self, run_dir: Path, *, accounting_too: bool = True) -> None:
        """Do nothing: the files are here."""

    def fetch_whole(self, run_dir: Path) -> None:
        """Do nothing: the files are here."""

    def fetch_sweep(self, folder: Path) -> None:
        """Do nothing: the files are here."""

    def path_there(self, run_dir: Path) -> Path:
        """The same path."""
        return run_dir

    def avoided(self) -> list[Avoided]:
        """The nodes that are recorded next to the runs."""
        from kit.hosts import avoided_nodes

        return avoided_nodes.read_avoided(self._runs())

    def avoid(self, node: str, reason: str) -> None:
        """Record a node next to the runs."""
        from kit.hosts import avoided_nodes

        avoided_nodes.add(self._runs(), node, reason)

    def forget(self, node: str) -> None:
        """Remove the record of a node. RunError if there is none."""
        from kit.hosts import avoided_nodes

        avoided_nodes.forget(self._runs(), node)

    def _runs(self) -> Path:
        if self.runs is not None:
            return self.runs
        project = self.project or data_folders.project()
        return find_runs.filled(known_files.cluster(self._file()).runs, project)

    def _file(self) -> Path:
        return data_folders.find("clusters", self.name, project_dir=self.project or data_folders.project()).path


def _with_terminal(env: Mapping[str, str]) -> dict[str, str]:
    return {**env, "TERM": os.environ.get("TERM", "dumb")}


def _record_cancel(job: JobToEnd) -> None:
    """Record who cancelled the job, for `kit why`. One that has not started will not remove its secrets itself."""
    if unmade_points.is_unmade(job.run_dir):
        unmade_points.mark_cancelled(job.run_dir)
        return
    paths = RunPaths(job.run_dir)
    # It waits, in the queue or for a node's prolog.
    if job.how == "waiting" or (job.how == "now" and not job.begun):
        from kit.record import secret

        secret.remove(job.run_dir)
    if job.how == "waiting":
        paths.cancelled.touch()
    with contextlib.suppress(OSError):
        atomic_write.write(paths.cancelled_by, f"{getpass.getuser()}\n", durable=False)
