"""Slurm's own commands: submit, one batched query, cancel. Every call is an argv; the environment is what this module says."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kit import shell
from kit.errors import SlurmError, ToolError

# What a job may inherit from the submitter. Everything else stays behind: SLURM_* and SBATCH_* of an allocation that the user is
# in (field-notes 25), PYXIS_* and SLURM_SPANK_* that would move the batch script into a container, and secrets that slurmctld
# would keep in the job's environment file.
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "SLURM_CONF", "DEBUG")

# squeue(1): the states in which a job still holds or awaits nodes.
ACTIVE = frozenset(
    {"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING",
     "SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)  # fmt: skip

_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """One line of squeue. elapsed: squeue's own text. reason: why it waits, or how it ended."""

    job_id: int
    state: str
    reason: str
    nodes: str
    elapsed: str


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of Slurm's commands, and so of the job: the allow-list, then `extra` (SLURM_CONF of an embedded cluster)."""
    return {**{name: os.environ[name] for name in _INHERITED if name in os.environ}, **extra}


def submit(argv: Sequence[str], *, env: Mapping[str, str]) -> int:
    """Run an `sbatch --parsable` argv and return the job id. SlurmError with sbatch's own words when it refuses."""
    try:
        done = shell.run(argv, env=env, timeout=_TIMEOUT_S, check=False)
    except ToolError as error:
        raise SlurmError(
            error.message, hint="this is to be run where Slurm's commands are: a login node, or after 'make setup'"
        ) from None
    if done.returncode != 0:
        said = "\n".join(f"  {line}" for line in done.stderr.splitlines()[-5:])
        raise SlurmError(
            f"sbatch refused the job:\n{said}", hint="nothing was submitted; 'kit render' shows the header it was given"
        )
    found = re.match(r"(\d+)", done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "")
    if not found:
        raise SlurmError(f"sbatch answered without a job id: {done.stdout!r}")
    return int(found[1])


def queue(*, env: Mapping[str, str], job_ids: Sequence[int] = ()) -> dict[int, QueuedJob]:
    """The user's jobs that Slurm remembers, by id, in one squeue call whatever their number."""
    wanted = set(job_ids)
    argv = ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}", "--format=%A|%T|%r|%N|%M"]
    try:
        text = shell.run(argv, env=env, timeout=_TIMEOUT_S).stdout
    except ToolError as error:
        raise SlurmError(
            f"squeue could not be asked: {error.message}",
            hint="is slurmctld up? 'kit cluster status' for the embedded one",
        ) from None
    jobs: dict[int, QueuedJob] = {}
    for line in text.splitlines():
        job_id, state, reason, nodes, elapsed = line.split("|")
        if not wanted or int(job_id) in wanted:
            jobs[int(job_id)] = QueuedJob(job_id=int(job_id), state=state, reason=reason, nodes=nodes, elapsed=elapsed)
    return jobs


def cancel(job_id: int, *, env: Mapping[str, str]) -> None:
    """scancel; SlurmError when Slurm does not know the job."""
    done = shell.run(["scancel", str(job_id)], env=env, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise SlurmError(f"scancel {job_id}: {done.stderr or 'refused'}")


def version(*, env: Mapping[str, str]) -> str:
    """Slurm's version, such as '22.05.8'; empty where its commands are missing."""
    try:
        return (
            shell.run(["sbatch", "--version"], env=env, timeout=_TIMEOUT_S)
            .stdout.removeprefix("slurm-wlm ")
            .removeprefix("slurm ")
        )
    except ToolError:
        return ""


def has_pyxis(*, env: Mapping[str, str]) -> bool:
    """Whether srun knows --container-image: the plugin adds its options to srun's help."""
    try:
        return "--container-image" in shell.run(["srun", "--help"], env=env, timeout=_TIMEOUT_S, check=False).stdout
    except ToolError:
        return False
