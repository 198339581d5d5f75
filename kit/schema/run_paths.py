"""Every file name of a run folder, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The paths of the run folder and of the job's folder inside a container.
CONTAINER_RUN = "/kit/run"
CONTAINER_WORKSPACE = "/workspace"
CONTAINER_CACHE = "/kit/cache"


def is_launchers(job: Mapping[str, Any]) -> bool:
    """Whether a job's program is one of the launcher's own: its default, or one named by its path in the run folder.

    job: the keys of a job file, or of a recorded job.
    """
    if job.get("module") is not None or job.get("command") is not None:
        return False
    script = job.get("script")
    return script is None or script.startswith(f"{CONTAINER_RUN}/code/")


@dataclass(frozen=True)
class RunPaths:
    """File names under one run folder; `root` may be a host path or the container's view of it."""

    root: Path

    @property
    def job(self) -> Path:
        """The resolved job, with every default filled in."""
        return self.root / "job.toml"

    @property
    def cluster(self) -> Path:
        """The cluster's file as it was at submit."""
        return self.root / "cluster.toml"

    @property
    def launcher(self) -> Path:
        """The launcher's file as it was at submit."""
        return self.root / "launcher.toml"

    @property
    def locks(self) -> Path:
        """The lock of each image, as it was at submit: NAME.lock."""
        return self.root / "locks"

    @property
    def manifest(self) -> Path:
        """The record of the run: image digest, git commit, cluster, versions, argv, job id."""
        return self.root / "manifest.json"

    @property
    def batch(self) -> Path:
        """The sbatch script."""
        return self.root / "batch.sh"

    @property
    def script(self) -> Path:
        """The user's own batch script, which batch.sh starts; only in a run of one."""
        return self.root / "script"

    @property
    def worker(self) -> Path:
        """The script that each Slurm task runs."""
        return self.root / "worker.sh"

    @property
    def bin(self) -> Path:
        """The programs that nodes run."""
        return self.root / "bin"

    @property
    def code(self) -> Path:
        """A copy of the launcher's program, as it was at submit."""
        return self.root / "code"

    @property
    def workspace(self) -> Path:
        """The run's own copy of the job's folder as it was at submit, and the programs' output in it."""
        return self.root / "workspace"

    @property
    def patch(self) -> Path:
        """The difference between the workspace and its commit; missing if there is none."""
        return self.root / "workspace.patch"

    @property
    def logs(self) -> Path:
        """batch.log, task.log (output of the launchers; task-<n>.log until the end), rank-<n>.log (output of the programs)."""
        return self.root / "logs"

    @property
    def batch_log(self) -> Path:
        """Output of the batch script, over all restarts."""
        return self.logs / "batch.log"

    def rank_log(self, rank: int) -> Path:
        """Output of one rank, over all restarts."""
        return self.logs / f"rank-{rank}.log"

    @property
    def monitor(self) -> Path:
        """slurm-<job>.<host>.gutil files."""
        return self.root / "monitor"

    @property
    def checkpoints(self) -> Path:
        """The program's checkpoints."""
        return self.root / "checkpoints"

    @property
    def state(self) -> Path:
        """The batch script's records during the run."""
        return self.root / "state"

    @property
    def events(self) -> Path:
        """One JSON line for each start, signal and end of the batch script."""
        return self.state / "events.jsonl"

    @property
    def submission(self) -> Path:
        """What is being submitted, with the mark in the job's comment; removed once the job's number is in the manifest."""
        return self.state / "submission.json"

    @property
    def cancelled(self) -> Path:
        """Written by `kit cancel` for a waiting job: Slurm forgets some of these at once, and no batch script will record the
        cancel.
        """
        return self.state / "cancelled"

    @property
    def closed(self) -> Path:
        """The time, in seconds since 1970, when all steps of the job had gone; the `end` event comes before that."""
        return self.state / "closed"

    @property
    def cancelled_by(self) -> Path:
        """The name of the user whose `kit cancel` ended the run."""
        return self.state / "cancelled-by"

    @property
    def notices(self) -> Path:
        """A file for each event whose notice was sent: state/notices/EVENT-JOB."""
        return self.state / "notices"

    @property
    def metrics(self) -> Path:
        """One JSON line for each report of the program."""
        return self.root / "metrics.jsonl"
