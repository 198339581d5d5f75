"""Tables for things around the ranks: checks before them, monitors beside them, restarts after them, secrets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from kit.schema.schema_base import EnvName, Model
from kit.schema.wrong_value_messages import Form, Invalid, shown

# Exit codes of a rank whose end is not the program's fault: 128 + SIGABRT (a collective that timed out), SIGBUS, SIGKILL (out of
# memory, or a lost node) and SIGSEGV. A Python traceback gives 1 and is never retried.
RETRYABLE = (134, 135, 137, 139)
# Modules of the kit that report for the rank that imports them.
_OF_ONE_RANK = ("kit_rank", "kit_callbacks", "kit_keep", "kit_recorder")


_MetricGroups = Annotated[
    str,
    Form(
        pattern=r"[pucvmetP]+",
        what="a list of dmon's metric groups",
        how="letters of p u c v m e t P, as 'nvidia-smi dmon -h' explains them",
        example="pumt",
    ),
]
_DmonOptions = Annotated[
    str,
    Form(pattern=r"[DT]*", what="a list of dmon's options", how="D adds the date, T the time", example="DT"),
]


class Monitor(Model):
    """The GPU monitor (one `nvidia-smi` on each node), and time stamps in the batch log."""

    enabled: bool = Field(default=True, description="Run the monitor. It also collects the reports of the ranks.")
    select: _MetricGroups = Field(default="pumt", description="Metric groups of `nvidia-smi dmon` (-s).")
    options: _DmonOptions = Field(
        default="DT", description="Output options of `nvidia-smi dmon` (-o). D adds the date, T the time."
    )
    delay: int = Field(default=15, ge=1, description="Seconds between two lines of dmon, and of the query.")
    query: tuple[str, ...] = Field(
        default=(),
        description="Fields that `nvidia-smi --query-gpu` also writes into a CSV file, such as ['utilization.gpu', "
        "'memory.used'].",
    )
    heartbeat: int = Field(default=120, ge=0, description="Seconds between time stamps in the batch log; 0: none.")

    @field_validator("query")
    @classmethod
    def _fields(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            if not value.replace(".", "").replace("_", "").isalnum():
                problem = f"{shown(value)} is not a field of nvidia-smi; 'nvidia-smi --help-query-gpu' lists them"
                raise Invalid(problem, write=("utilization.gpu", "memory.used"))
        return values


class Watch(Model):
    """The reaction to stalled ranks. It uses the monitor's data, so it has no effect with monitor.enabled = false.

    A job with this table is also watched where its program reports nothing.
    """

    stall: Literal["auto", False] | Annotated[float, Field(ge=10)] = Field(
        default="auto",
        description="auto: a rank is stalled after three times its usual step, and at least 10 s, without a report. A "
        "number: after this many seconds, in every case. false: the kit does not watch the ranks.",
    )
    on_stall: Literal["report", "restart", "end"] = Field(
        default="end",
        description="report: name the rank and gather evidence. end: also end the ranks after `patience`, with exit code "
        "76. restart: also end the ranks after `patience`, and start them again as [retry] allows.",
    )
    patience: int = Field(
        default=600, ge=0, description="Seconds without any progress between the report and the restart or the end."
    )

    @property
    def limit(self) -> str:
        """The value for the batch script: auto, seconds, or empty."""
        return "" if self.stall is False else str(self.stall).removesuffix(".0")


class Preflight(Model):
    """Checks of every node before ranks start. The values for free space, /dev/shm and open files are minimums."""

    enabled: bool = Field(
        default=True,
        description="Run these checks. If false, the kit still checks a container's image and cache folder.",
    )
    free_disk_gb: float = Field(
        default=1.0, ge=0, description="Free space in GB, both for the cache folder and for the run folder."
    )
    shm_gb: float = Field(
        default=0.0, ge=0, description="Size of /dev/shm, in GB. DataLoader workers share tensors there."
    )
    nofile: int = Field(
        default=1024,
        ge=0,
        description="Open files and sockets that a process must be able to have (ulimit -Hn). Many ranks of the kit's programs "
        "need more; then their number is checked.",
    )
    memlock: Literal["any", "unlimited"] = Field(
        default="any", description="unlimited: ulimit -l must be unlimited, so that RDMA can pin memory. any: no check."
    )
    clock_skew_s: float = Field(
        default=5.0,
        gt=0,
        description="Maximum difference, in seconds, between a node's clock and the clock of the run folder's file "
        "system.",
    )
    verify_image: bool = Field(
        default=False,
        description="true: compute the image's sha256 at every start. false: compute it once on each node for each file.",
    )
    container: bool = Field(default=True, description="Start the container on every node and look for its Python.")
    all_reduce_s: int = Field(
        default=0,
        ge=0,
        description="Time limit, in seconds, for one all-reduce over all ranks before the program starts. 0: no "
        "all-reduce.",
    )
    timeout_s: int = Field(default=60, ge=1, description="Time limit, in seconds, for all checks together.")
    unpack_s: int = Field(
        default=1800,
        ge=0,
        description="Additional seconds for the container's first start, if Pyxis has to unpack the image.",
    )
    on_failure: Literal["fail", "exclude"] = Field(
        default="fail",
        description="fail: end the job. exclude: put the job back into the queue without the failed nodes, and let `kit "
        "submit` avoid these nodes for a day.",
    )


class Retry(Model):
    """The reaction to a dead rank, a lost node, or the signal before the time limit."""

    in_allocation: int = Field(
        default=0, ge=0, description="Maximum number of restarts of the ranks in the same allocation."
    )
    requeue: int = Field(
        default=0,
        ge=0,
        description="Maximum number of times that the job goes back to the queue. Slurm's own requeues (a lost node, "
        "preemption) count, too, unless slurm.requeue is true.",
    )
    exit_codes: tuple[int, ...] = Field(
        default=RETRYABLE, description="Exit codes of the first failed rank after which the kit starts the ranks again."
    )
    no_progress: int = Field(
        default=3,
        ge=0,
        description="The run ends with exit code 77 after this many starts in a row without a step beyond the furthest "
        "one. 0: no limit.",
    )
    spares: int = Field(
        default=0,
        ge=0,
        description="Additional nodes that the job asks for. If a node is lost, a spare takes its place.",
    )
    warm: tuple[str, ...] = Field(
        default=(),
        description="Modules that one process on each node imports once. At each start, the ranks are forked from this "
        "process.",
    )
    keep: bool = Field(
        default=False,
        description="Only with `warm`. When a rank dies, the others live on and call their training function again "
        "(kit_keep).",
    )

    @field_validator("warm")
    @classmethod
    def _modules(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            if not all(part.isidentifier() for part in value.split(".")):
                raise Invalid(f"{shown(value)} is no module's name", write=("torch", "torch.distributed"))
            if value.partition(".")[0] in _OF_ONE_RANK:
                raise Invalid(f"{value} belongs to one rank, and cannot be imported for several", hint="leave it out")
        return values

    @field_validator("exit_codes")
    @classmethod
    def _never_a_traceback(cls, values: tuple[int, ...]) -> tuple[int, ...]:
        for value in values:
            if not 2 <= value <= 255:
                raise Invalid(
                    f"{value} cannot be retried: 0 is success, 1 is a Python traceback, and codes end at 255",
                    write=RETRYABLE,
                )
        return values


class Secrets(Model):
    """Variables whose values are never written to a script, a manifest, Slurm's records or a log."""

    env: tuple[EnvName, ...] = Field(default=(), description="Variables to take from your environment at submit.")
    file: str | None = Field(
        default=None,
        description="File with more variables. The path is relative to the job file, and the kit reads the file at submit. "
        "A .toml has lines NAME = 'value'; any other file has lines NAME=VALUE, as in a .env.",
    )
