"""Tables for things around the ranks: checks before them, monitors beside them, restarts after them, secrets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from kit.spec.schema_base import EnvName, Model
from kit.spec.wrong_value_messages import Form, Invalid, shown

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

    enabled: bool = Field(default=True, description="Run the monitor.")
    select: _MetricGroups = Field(default="pumt", description="dmon -s: metric groups.")
    options: _DmonOptions = Field(default="DT", description="dmon -o: D date, T time.")
    delay: int = Field(default=15, ge=1, description="Seconds between lines, of dmon and of the query.")
    query: tuple[str, ...] = Field(
        default=(),
        description="Also `nvidia-smi --query-gpu` to a CSV file: such as ['utilization.gpu', 'memory.used'].",
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
    """The reaction to ranks that stand still. It uses the data of the monitor's step, so it needs [monitor]."""

    stall: Literal["auto", False] | Annotated[float, Field(ge=10)] = Field(
        default="auto",
        description="auto: a rank stands still after three times its usual step, at least 10 s. "
        "A number: seconds, whatever it does. false: nothing is watched.",
    )
    on_stall: Literal["report", "restart", "end"] = Field(
        default="end",
        description="report: name the rank and gather evidence. restart, end: and later end the ranks; restart goes by [retry].",
    )
    patience: int = Field(
        default=600, ge=0, description="Seconds without any progress between the report and the restart or the end."
    )

    @property
    def limit(self) -> str:
        """The value for the batch script: auto, seconds, or empty."""
        return "" if self.stall is False else str(self.stall).removesuffix(".0")


class Preflight(Model):
    """Checks of every node before ranks start. Each number is the least that a node must have."""

    enabled: bool = Field(default=True, description="Check the nodes.")
    free_disk_gb: float = Field(default=1.0, ge=0, description="Free space where caches and the run folder are, in GB.")
    shm_gb: float = Field(
        default=0.0, ge=0, description="Size of /dev/shm, in GB; DataLoader workers share tensors there."
    )
    nofile: int = Field(default=1024, ge=0, description="Open files (ulimit -n).")
    memlock: Literal["any", "unlimited"] = Field(
        default="any", description="unlimited: RDMA needs to pin memory (ulimit -l)."
    )
    clock_skew_s: float = Field(default=5.0, gt=0, description="Most seconds by which nodes' clocks may differ.")
    verify_image: bool = Field(
        default=False,
        description="Compute the image's sha256 anew at every start; else once on each node for each file.",
    )
    container: bool = Field(default=True, description="Start the container on every node and look for its Python.")
    all_reduce_s: int = Field(
        default=0, ge=0, description="Seconds for one all-reduce over all ranks; 0: none is made."
    )
    timeout_s: int = Field(default=60, ge=1, description="Seconds for all checks together.")
    unpack_s: int = Field(
        default=1800,
        ge=0,
        description="Seconds more where Pyxis has to unpack the image for the container's first start.",
    )
    on_failure: Literal["fail", "exclude"] = Field(
        default="fail",
        description="exclude: put the job back in the queue without the failed nodes, and avoid them for a day.",
    )


class Retry(Model):
    """The reaction to a dead rank, a lead signal, or a lost node."""

    in_allocation: int = Field(default=0, ge=0, description="Restarts of the ranks inside the allocation.")
    requeue: int = Field(
        default=0,
        ge=0,
        description="Times that the job goes back to the queue, those by Slurm itself (a lost node, preemption) among them.",
    )
    exit_codes: tuple[int, ...] = Field(
        default=RETRYABLE, description="Codes of the first failed rank that are retried."
    )
    no_progress: int = Field(
        default=3,
        ge=0,
        description="Starts in a row without a step beyond the furthest, after which the run ends with 77; 0: no limit.",
    )
    spares: int = Field(
        default=0, ge=0, description="Nodes asked for beyond those used; one takes a lost node's place."
    )
    warm: tuple[str, ...] = Field(
        default=(),
        description="Modules that one process of each node imports once; each start of the ranks is forked from it.",
    )
    keep: bool = Field(
        default=False,
        description="With `warm`: when a rank dies, the others live on and call their training function again (kit_keep).",
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

    env: tuple[EnvName, ...] = Field(default=(), description="Taken from the submitter's environment.")
    file: str | None = Field(
        default=None,
        description="Relative to the job file; read at submit. NAME = 'value' in a .toml, else NAME=VALUE as in a .env.",
    )
