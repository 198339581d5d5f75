"""Reads Slurm's accounting, which keeps jobs that slurmctld has forgotten. One `sacct` asks for all jobs."""

from __future__ import annotations

import pwd
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from kit import shell
from kit.errors import ToolError
from kit.slurm import run_local_or_ssh
from kit.slurm.client import JobId

# sacct(1): --duplicates shows every start of a requeued job, --noconvert gives plain bytes.
_FIELDS = ("JobID", "State", "ExitCode", "ElapsedRaw", "NodeList", "MaxRSS", "TotalCPU", "Submit")
# The form of the columns that are read as words, numbers or times.
_FORMS = {
    "State": r"[A-Z_]+.*",
    "ExitCode": r"(\d{1,9}(:\d{1,9})?)?",
    "ElapsedRaw": r"\d{0,18}",
    "TotalCPU": r"(\d{1,9}-)?[\d:]*(\.\d+)?",
    "Submit": r"\d{0,18}|[A-Za-z]+",
}
_TIMEOUT_S = 20.0
_DISABLED = "accounting storage is disabled"
# Linux limits an argument list to 2 MiB, and slurmdbd answers a request of this size within a second.
_MOST_JOBS = 5000
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, kw_only=True)
class Accounted:
    """One job in accounting, over all its starts.

    exit_code: as in a shell: 128 plus the signal's number for a job that a signal ended. It and `state` are from the last start.
    starts: the node list of each start, oldest first. max_rss: bytes of the largest task; None if nothing was sampled. cpu_s,
    elapsed_s: seconds, summed over all starts. cancelled_by: a user, by name if this machine knows it.
    """

    job_id: JobId
    state: str
    exit_code: int
    submitted_at: datetime
    starts: tuple[str, ...]
    elapsed_s: int
    cpu_s: float
    max_rss: int | None
    cancelled_by: str = ""


def history(
    job_ids: Sequence[JobId], *, env: Mapping[str, str], say: Callable[[str], None] = lambda _: None
) -> dict[JobId, Accounted]:
    """The jobs that accounting knows, by id.

    Empty for a cluster without accounting. If accounting does not answer, `say` is told why.
    """
    if not job_ids:
        return {}
    try:
        there = run_local_or_ssh.with_variable(env, "SLURM_TIME_FORMAT", "%s")
        done = run_local_or_ssh.run(question(job_ids), env=there, timeout=_TIMEOUT_S, check=False)
    except ToolError as error:
        say(f"accounting does not answer: {error.message}")
        return {}
    if done.returncode != 0:
        # A cluster without accounting needs no message.
        if _DISABLED not in done.stderr:
            say(f"accounting does not answer: {shell.failed(done).message}")
        return {}
    return {job_id: found for job_id, found in parse(done.stdout).items() if job_id in set(job_ids)}


def marked(comment: str, *, since: float, env: Mapping[str, str]) -> list[int]:
    """The user's jobs whose sbatch had this text in its options; none if accounting does not answer or is older than 21.08.

    since: seconds since the epoch.
    """
    began = datetime.fromtimestamp(since - 60, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--starttime={began}", "--format=JobID,SubmitLine"]
    try:
        done = run_local_or_ssh.run(
            argv, env=run_local_or_ssh.with_variable(env, "TZ", "UTC"), timeout=_TIMEOUT_S, check=False
        )
    except ToolError:
        return []
    rows = (re.match(r"([1-9]\d{0,17})[^|]*\|(.*)", line, re.ASCII) for line in done.stdout.split("\n"))
    return sorted({int(row[1]) for row in rows if row and comment in row[2]})


def question(job_ids: Sequence[JobId]) -> tuple[str, ...]:
    """The argv that asks for jobs. With SLURM_TIME_FORMAT=%s, times are seconds since the epoch."""
    wanted = ",".join(map(str, job_ids[-_MOST_JOBS:]))
    options = ("--noheader", "--parsable2", "--duplicates", "--noconvert", f"--jobs={wanted}")
    return ("sacct", *options, f"--format={','.join(_FIELDS)}")


def parse(text: str) -> dict[JobId, Accounted]:
    """Parse sacct's lines: for each start a line of the job, then lines of its steps (`12.batch`, `12.0`)."""
    rows: dict[JobId, list[tuple[bool, dict[str, str]]]] = {}
    for line in text.split("\n"):
        fields = line.split("|")
        row = dict(zip(_FIELDS, fields, strict=False))
        number, dot, _ = row["JobID"].partition(".")
        # A site may print lines of its own.
        if len(fields) == len(_FIELDS) and _is_row(row) and re.fullmatch(r"\d{1,18}(_\d{1,18})?", number, re.ASCII):
            job_id: JobId = number if "_" in number else int(number)
            rows.setdefault(job_id, []).append((bool(dot), row))
    found = {}
    for job_id, mine in rows.items():
        starts = [row for is_step, row in mine if not is_step]
        if starts and starts[0]["Submit"].isdigit():
            found[job_id] = _accounted(job_id, starts, [row for is_step, row in mine if is_step])
    return found


def _is_row(row: Mapping[str, str]) -> bool:
    """Whether the columns that are read as words, numbers or times have their form."""
    return all(re.fullmatch(form, row[name], re.ASCII) for name, form in _FORMS.items())


def _accounted(job_id: JobId, starts: list[dict[str, str]], steps: list[dict[str, str]]) -> Accounted:
    last = starts[-1]
    code, _, signal = last["ExitCode"].partition(":")
    sampled = [size for row in steps if (size := _bytes(row["MaxRSS"])) is not None]
    return Accounted(
        job_id=job_id,
        # The state may be `CANCELLED by 1000`.
        state=last["State"].split()[0],
        exit_code=128 + int(signal) if int(signal or 0) else int(code or 0),
        submitted_at=datetime.fromtimestamp(int(starts[0]["Submit"]), UTC),
        starts=tuple(row["NodeList"] for row in starts if row["NodeList"] != "None assigned"),
        elapsed_s=sum(int(row["ElapsedRaw"] or 0) for row in starts),
        cpu_s=sum(seconds(row["TotalCPU"]) for row in starts),
        max_rss=max(sampled, default=None),
        cancelled_by=_user(last["State"]),
    )


def _user(state: str) -> str:
    """The user's name or number in `CANCELLED by 1000`."""
    match = re.search(r" by (\d+)$", state)
    if not match:
        return ""
    try:
        return pwd.getpwuid(int(match[1])).pw_name
    except (KeyError, OverflowError):
        return match[1]


def seconds(text: str) -> float:
    """Convert sacct's `[DD-[HH:]]MM:SS.mmm` to seconds."""
    days, _, clock = text.rpartition("-")
    total = 0.0
    for part in clock.split(":"):
        total = total * 60 + float(part or 0)
    return int(days or 0) * 86400 + total


def _bytes(text: str) -> int | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text)
    return int(float(found[1]) * _UNITS[found[2]]) if found else None
