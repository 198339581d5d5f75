"""Slurm's own commands: submit, query all jobs at once, cancel. Every call is an argv; this module sets the environment."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kit.errors import JobRefusedError, SlurmError, TimedOutError, ToolError, UnconfirmedError
from kit.slurm import run_local_or_ssh, tolerant_reader
from kit.slurm.tolerant_reader import MARK, is_number

# The variables that a job may inherit from the submitter. All others are left out: SLURM_* and SBATCH_* of an allocation that the
# user is in (docs/internals/learnt.md#slurm), PYXIS_* and SLURM_SPANK_* that would move the batch script into a container, and
# secrets that slurmctld would keep in the job's environment file.
_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "SLURM_CONF", "DEBUG")

# Variables that no pattern takes along.
_KEPT_BACK = re.compile(r"KEY|TOKEN|SECRET|PASSW|^(SLURM|SBATCH|SALLOC|SRUN|PYXIS|KIT)_")

# squeue(1): the states in which a job still holds nodes or waits for them.
ACTIVE = frozenset(
    {"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING",
     "SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)  # fmt: skip

_TIMEOUT_S = 60.0
# For optional requests: without a slurm.conf, Slurm's commands search for one for a minute.
_SHORT_S = 5.0
# Job numbers of one request: far below Linux's limit of an argument, 128 KiB.
_MOST_NUMBERS = 2000

# The queue's columns. A pending task of an array has no own number yet; %F and %K, the array's and the task's number, always
# identify it. The reason comes last: a site may write any text into it.
QUEUE_FORMAT = f"--format={MARK}%F|%K|%T|%N|%M|%r"

# A job's number, or for a task of an array the array's number and the task's: '123_4'.
JobId = int | str

# The output of `sbatch --test-only` for a job that Slurm would accept. SLURM_TIME_FORMAT sets the form of the time.
_TO_START = r"Job \d+ to start at (\d+) using \d+ processors on (?:nodes )?(\S+)(?: in partition (\S+))?"
# Its output for a job with more nodes than the cluster has.
_NO_NODES = "Requested node configuration is not available"
# Messages of Slurm's commands when there is no connection to a controller, or none is configured: then it got nothing.
NO_CONTROLLER = ("Unable to contact slurm controller (connect failure)", "Could not establish a configuration source")
# Words in sbatch's message when the request was sent and its answer did not come (slurm_errno.c).
_LOST_ANSWER = re.compile(
    r"(?i)timed out|unable to contact|communication|connection|zero bytes|send/recv|receive|shutdown failure|transport"
)
_IN_SERVICE = frozenset({"idle", "allocated", "mixed", "completing", "planned", "reserved"})
# sbatch repeats this, and does not end, while the controller holds as many jobs as MaxJobCount of slurm.conf allows. It counts each
# task of an array, and each job that ended less than MinJobAge seconds ago.
_NO_ROOM = "Slurm temporarily unable to accept job"
_FULL = "Slurm holds as many jobs as it can (MaxJobCount in 'scontrol show config'): submit fewer points, or later"
_WHERE = "run this where Slurm's commands are: a login node, or after 'make setup' in a clone of slurm-kit"


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """One line of squeue. elapsed: squeue's own text. reason: why the job waits, or how it ended."""

    job_id: JobId
    state: str
    reason: str
    nodes: str
    elapsed: str


@dataclass(frozen=True, kw_only=True)
class ExpectedStart:
    """Slurm's estimate of a start. time: seconds since the epoch. nodes: in Slurm's short form. partition: None before 20.11."""

    time: float
    nodes: str
    partition: str | None


def environment(extra: Mapping[str, str], *, inherit: Sequence[str] = ()) -> dict[str, str]:
    """The environment of Slurm's commands, which the job inherits: the allowed variables, those in `inherit`, then `extra`.

    extra: such as SLURM_CONF of an embedded cluster.
    """
    return {**{name: os.environ[name] for name in _INHERITED if name in os.environ}, **inherited(inherit), **extra}


def inherited(names: Sequence[str]) -> dict[str, str]:
    """The variables of this process with one of the names, or with a name of a pattern such as `NCCL_*`."""
    return {name: value for name, value in os.environ.items() if inherits(names, name)}


def inherits(names: Sequence[str], name: str) -> bool:
    """Whether names and patterns include a variable. A pattern includes no secret, and none that Slurm's commands would read."""
    if name in names:
        return True
    patterns = [one[:-1] for one in names if one.endswith("*")]
    return bool(patterns) and name.startswith(tuple(patterns)) and not _KEPT_BACK.search(name)


def submit(argv: Sequence[str], *, env: Mapping[str, str]) -> int:
    """Run an `sbatch --parsable` argv and return the job id. SlurmError with sbatch's own message if there is no job.

    UnconfirmedError if the answer does not tell whether there is one: `kit.hosts.submission` then looks for it.
    """
    try:
        done = run_local_or_ssh.run(argv, env=env, timeout=_TIMEOUT_S, check=False)
    except TimedOutError as error:
        raise UnconfirmedError(error.message, hint=_FULL if _NO_ROOM in error.message else "") from None
    except ToolError as error:
        raise SlurmError(error.message, hint=error.hint or _WHERE) from None
    numbers = numbers_in(done.stdout)
    if done.returncode != 0:
        if _LOST_ANSWER.search(done.stderr) and not any(words in done.stderr for words in NO_CONTROLLER):
            raise UnconfirmedError(f"sbatch: {_last_line(done.stderr)}")
        raise refused(done.stderr)
    if len(numbers) == 1:
        return numbers[0]
    if not numbers:
        raise UnconfirmedError(f"sbatch answered without a job id: {done.stdout!r}")
    raise UnconfirmedError(f"sbatch answered with several job ids: {', '.join(map(str, numbers))}")


def marked(comment: str, script: str, *, env: Mapping[str, str]) -> list[int]:
    """The user's jobs that Slurm still knows and that have this text in their comment, or this batch script; an array counts once.

    SlurmError if Slurm does not answer.
    """
    user = f"--user={run_local_or_ssh.uid(env)}"
    argv = ["squeue", "--noheader", "--states=all", user, f"--format={MARK}%F|%o|%k"]
    try:
        text = tolerant_reader.ask(argv, env=env, timeout=_TIMEOUT_S)
    except ToolError as error:
        raise SlurmError(f"squeue could not be asked: {error.message}") from None
    # A path may contain a `|`, too.
    found = (
        int(number)
        for number, rest in tolerant_reader.rows(text, 2)
        if is_number(number) and (comment in rest or rest.startswith(f"{script}|"))
    )
    return sorted(set(found))


def numbers_in(text: str) -> list[int]:
    """The job numbers in the output of `sbatch --parsable`: lines of the form `4711` or `4711;cluster`, each number once."""
    found = (re.fullmatch(r"\s*([1-9]\d{0,17})(?:;\S+)?\s*", line) for line in text.split("\n"))
    return list(dict.fromkeys(int(one[1]) for one in found if one))


def queue(*, env: Mapping[str, str], job_ids: Sequence[JobId] = ()) -> dict[JobId, QueuedJob]:
    """The user's jobs that Slurm still knows, by id, from one squeue call. A task of an array counts as a job."""
    wanted = set(job_ids)
    user = f"--user={run_local_or_ssh.uid(env)}"
    try:
        text = tolerant_reader.ask(
            ["squeue", "--noheader", "--array", "--states=all", user, QUEUE_FORMAT], env=env, timeout=_TIMEOUT_S
        )
    except ToolError as error:
        raise SlurmError(
            f"squeue could not be asked: {error.message}",
            hint="is slurmctld up? 'kit cluster status' for the embedded one",
        ) from None
    jobs = jobs_in(text)
    return {job_id: job for job_id, job in jobs.items() if job_id in wanted} if wanted else jobs


def foreign(
    job_ids: Sequence[JobId], uids: Sequence[int], *, env: Mapping[str, str]
) -> tuple[dict[JobId, QueuedJob], bool]:
    """The jobs of other users with these numbers and owners, and whether Slurm shows this user all of them.

    A site may hide them: slurm.conf(5), PrivateData. squeue(1) ends with an error if it knows none of the numbers.
    """
    queued_jobs: dict[JobId, QueuedJob] = {}
    users = f"--user={','.join(map(str, uids))}"
    for first in range(0, len(job_ids), _MOST_NUMBERS):
        jobs = f"--jobs={','.join(map(str, job_ids[first : first + _MOST_NUMBERS]))}"
        argv = ["squeue", "--noheader", "--array", "--states=all", users, jobs, QUEUE_FORMAT]
        try:
            done = run_local_or_ssh.run(argv, env=env, timeout=_TIMEOUT_S, check=False)
        except ToolError:
            return queued_jobs, False
        if done.returncode and "Invalid job id" not in done.stderr:
            return queued_jobs, False
        queued_jobs |= jobs_in(done.stdout)
    return queued_jobs, all(job in queued_jobs for job in job_ids) or _shows_all_jobs(env)


def _shows_all_jobs(env: Mapping[str, str]) -> bool:
    """Whether the controller shows this user other users' jobs. root sees them always."""
    if run_local_or_ssh.uid(env) == "0":
        return True
    try:
        text = run_local_or_ssh.run(["scontrol", "show", "config"], env=env, timeout=_SHORT_S).stdout
    except ToolError:
        return False
    hidden = re.search(r"^PrivateData\s*=\s*(.*)$", text, re.MULTILINE)
    return hidden is not None and not {"jobs", "all"} & set(re.split(r"[,\s]+", hidden[1].lower()))


def jobs_in(text: str) -> dict[JobId, QueuedJob]:
    """The jobs in squeue's output with QUEUE_FORMAT. Lines that are not of this form are skipped."""
    jobs: dict[JobId, QueuedJob] = {}
    for number, task, state, nodes, elapsed, reason in tolerant_reader.rows(text, 6):
        if is_number(number) and re.fullmatch(r"[A-Z_]+", state):
            job_id: JobId = f"{number}_{task}" if is_number(task) else int(number)
            jobs[job_id] = QueuedJob(job_id=job_id, state=state, reason=reason, nodes=nodes, elapsed=elapsed)
    return jobs


def expected_start(job_id: JobId, *, env: Mapping[str, str]) -> str:
    """Slurm's estimate of a waiting job's start, in local time: '2026-11-22T14:05:00'. Empty if Slurm gives none."""
    argv = ["squeue", "--noheader", "--start", f"--jobs={job_id}", f"--format={MARK}%S"]
    try:
        text = run_local_or_ssh.run(argv, env=env, timeout=_TIMEOUT_S, check=False).stdout
    except ToolError:
        return ""
    said = next((row[0].strip() for row in tolerant_reader.rows(text, 1)), "")
    return said if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", said) else ""


def knows(job_id: JobId, *, env: Mapping[str, str]) -> bool:
    """Whether the controller knows a job of any user. It forgets a job some minutes after its end (MinJobAge).

    If the controller does not answer, the result is True: the next command reports the failure.
    """
    done = run_local_or_ssh.run(["scontrol", "show", "job", str(job_id)], env=env, timeout=_TIMEOUT_S, check=False)
    return "Invalid job id" not in done.stderr


def scripts(*, env: Mapping[str, str]) -> dict[str, int]:
    """The batch scripts of the user's jobs that Slurm still knows: path as given to sbatch -> job id, or the array's id.

    SlurmError if Slurm does not answer.
    """
    argv = ["squeue", "--noheader", "--states=all", f"--user={run_local_or_ssh.uid(env)}", f"--format={MARK}%F|%o"]
    try:
        text = tolerant_reader.ask(argv, env=env, timeout=_TIMEOUT_S)
    except ToolError as error:
        raise SlurmError(f"squeue could not be asked: {error.message}") from None
    return {command: int(number) for number, command in tolerant_reader.rows(text, 2) if is_number(number) and command}


def nodes_in_service(*, env: Mapping[str, str], partition: str | None = None) -> tuple[str, ...]:
    """The nodes that run jobs or can run them, sorted. partition: None for the default one. SlurmError if Slurm does not answer."""
    chosen = [f"--partition={partition}"] if partition else []
    try:
        said = tolerant_reader.ask(
            ["sinfo", "--noheader", "--Node", f"--format={MARK}%N|%T|%P", *chosen], env=env, timeout=_TIMEOUT_S
        )
    except ToolError as error:
        raise SlurmError(f"Slurm does not say which nodes there are: {error.message}", hint=_WHERE) from None
    rows = list(tolerant_reader.rows(said, 3))
    default = {row[2] for row in rows if row[2].endswith("*")}
    wanted = [row for row in rows if partition or not default or row[2] in default]
    return tuple(
        sorted({node for node, state, _ in wanted if state.rstrip("*~#!%$@^-") in _IN_SERVICE and "*" not in state})
    )


def cancel(*job_ids: JobId, env: Mapping[str, str], gently: bool = False) -> None:
    """Run scancel. SlurmError if it fails, for example for an id that is no job.

    gently: send TERM only to the batch scripts. Slurm's own TERM goes to every process of a job, including a DataLoader's
    workers, and a worker that dies takes its rank down before it has saved.
    """
    options = ["--batch", "--signal=TERM"] if gently else []
    numbers = [str(job_id) for job_id in job_ids]
    done = run_local_or_ssh.run(["scancel", *options, *numbers], env=env, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise SlurmError(f"scancel {' '.join(numbers)}: {done.stderr or 'refused'}")


def cancel_each(job_ids: Sequence[JobId], *, env: Mapping[str, str]) -> None:
    """Cancel some jobs with a scancel for each, the last first, so that no later link of a chain starts as an earlier one ends.

    A job that Slurm does not know is passed over.
    """
    for job_id in reversed(job_ids):
        with contextlib.suppress(SlurmError):
            cancel(job_id, env=env)


def test_only(script: str, *, env: Mapping[str, str], options: Sequence[str] = ()) -> ExpectedStart | None:
    """Ask Slurm whether it would accept a batch script, without submitting it. SlurmError with Slurm's own message if not.

    Returns Slurm's estimate of start and nodes; None if it gives none. Here Slurm does not count nodes that are down or drained,
    but sbatch accepts a job that waits for them. So while there are such nodes, too few nodes are no reason to refuse.
    """
    argv, seconds = ["sbatch", "--test-only", *options], run_local_or_ssh.with_variable(env, "SLURM_TIME_FORMAT", "%s")
    try:
        done = run_local_or_ssh.run(argv, input=script, env=seconds, timeout=_TIMEOUT_S, check=False)
    except ToolError as error:
        raise SlurmError(error.message, hint=error.hint or _WHERE) from None
    if done.returncode != 0 and not (_NO_NODES in done.stderr and _some_nodes_are_out(env)):
        raise refused(done.stderr)
    found = re.search(_TO_START, done.stderr)
    return ExpectedStart(time=float(found[1]), nodes=found[2], partition=found[3]) if found else None


def _some_nodes_are_out(env: Mapping[str, str]) -> bool:
    """Whether a node is down, drained, or does not answer."""
    states = run_local_or_ssh.run(
        ["sinfo", "--noheader", "--Node", f"--format={MARK}%T"], env=env, timeout=_TIMEOUT_S, check=False
    )
    return any(state not in _IN_SERVICE for (state,) in tolerant_reader.rows(states.stdout, 1))


def max_array_size(*, env: Mapping[str, str]) -> int | None:
    """The controller's MaxArraySize: the largest task number is one less. None if the controller cannot be asked."""
    try:
        text = run_local_or_ssh.run(["scontrol", "show", "config"], env=env, timeout=_SHORT_S).stdout
    except ToolError:
        return None
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def version(*, env: Mapping[str, str]) -> str:
    """Slurm's version, such as '22.05.8'; empty if its commands are missing."""
    try:
        said = run_local_or_ssh.run(["sbatch", "--version"], env=env, timeout=_TIMEOUT_S).stdout
    except ToolError:
        return ""
    found = re.search(r"(?m)^slurm(?:-wlm)? (\d\S*)", said)
    return found[1] if found else said


def has_pyxis(*, env: Mapping[str, str]) -> bool:
    """Whether srun knows --container-image: the plugin adds its options to srun's help."""
    try:
        return (
            "--container-image"
            in run_local_or_ssh.run(["srun", "--help"], env=env, timeout=_TIMEOUT_S, check=False).stdout
        )
    except ToolError:
        return False


def _last_line(said: str) -> str:
    return [line for line in said.splitlines() if line.strip()][-1].strip().removeprefix("sbatch: ")


def refused(said: str) -> SlurmError:
    """The error of a submission that sbatch refused, from its stderr; also where no controller could be reached."""
    if any(words in said for words in NO_CONTROLLER):
        return SlurmError(f"Slurm's controller cannot be reached: {said.splitlines()[-1]}", hint=_WHERE)
    lines = "\n".join(f"  {line}" for line in said.splitlines()[-5:])
    return JobRefusedError(
        f"sbatch refused the job:\n{lines}", hint="nothing was submitted; 'kit render' shows the header it was given"
    )
