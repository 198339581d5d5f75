"""Options of the steps that start ranks: srun's, and torchrun's."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from kit.schema.schema_base import Memory, Model, SbatchWord, Text
from kit.schema.wrong_value_messages import Invalid, shown

_FORM = re.compile(r"--([a-z][a-z-]*)(=\S+)?")
# srun's option without its dashes -> the key of the job that sets it.
_KEYS = {
    **{
        name: f"step.{name.replace('-', '_')}"
        for name in ("mpi", "cpu-bind", "gpu-bind", "gpus-per-task", "mem-per-gpu", "label")
    },
    **dict.fromkeys(("nodes", "nodelist"), "resources.nodes"),
    **dict.fromkeys(("ntasks", "ntasks-per-node"), "resources.ranks_per_node"),
    "cpus-per-task": "resources.cpus_per_node",
    "mem": "resources.memory",
    "exclude": "slurm.exclude",
}
_OWN = (
    "job-name",
    "export",
    "kill-on-bad-exit",
    "no-kill",
    "overlap",
    "output",
    "error",
    "open-mode",
    "input",
    "pty",
    "multi-prog",
)


def further(option: str) -> str:
    """An option such as `--hint=nomultithread`, if neither a key of the job nor the kit sets it; Invalid otherwise."""
    match = _FORM.fullmatch(option)
    if not match:
        raise Invalid(
            f"{shown(option)} is not written as --option or --option=value, without blanks",
            write="--hint=nomultithread",
        )
    name = match[1]
    for own, key in _KEYS.items():
        if own.startswith(name):
            raise Invalid(f"--{name} has a key of the job: {key}", hint=f"set {key}, and remove the option")
    if name.startswith("container") or any(own.startswith(name) for own in _OWN):
        raise Invalid(f"--{name} is set by the kit", hint="remove the line")
    return option


class Step(Model):
    """srun's options for the steps that start ranks. A cluster can set them for all its jobs in [defaults.step]."""

    mpi: SbatchWord = Field(
        default="none",
        description="srun --mpi, such as 'pmix', for programs whose ranks connect by MPI.",
        examples=["pmix"],
    )
    cpu_bind: SbatchWord | None = Field(
        default=None, description="srun --cpu-bind, such as 'cores'.", examples=["cores"]
    )
    gpu_bind: SbatchWord | None = Field(
        default=None,
        description="srun --gpu-bind, such as 'none' or 'closest'. Default: every rank sees all GPUs of the job on its "
        "node.",
        examples=["closest"],
    )
    gpus_per_task: int | None = Field(
        default=None, ge=1, description="srun --gpus-per-task: each task sees only this many GPUs."
    )
    mem_per_gpu: Memory | None = Field(default=None, description="srun --mem-per-gpu.")
    label: bool = Field(
        default=False, description="srun --label: each line of a task's output begins with the number of the task."
    )
    extra: tuple[Annotated[str, AfterValidator(further)], ...] = Field(
        default=(), description="Further srun options, each as one string, such as '--hint=nomultithread'."
    )

    def options(self) -> list[str]:
        """The options as words for srun, without --mpi."""
        valued = {
            "cpu-bind": self.cpu_bind,
            "gpu-bind": self.gpu_bind,
            "gpus-per-task": self.gpus_per_task,
            "mem-per-gpu": self.mem_per_gpu,
        }
        words = [f"--{name}={value}" for name, value in valued.items() if value is not None]
        return [*words, *(["--label"] if self.label else []), *self.extra]


class Torchrun(Model):
    """torchrun's own options, for start shapes that use torchrun."""

    max_restarts: int = Field(
        default=0,
        ge=0,
        description="Maximum number of restarts of the ranks by torchrun itself, after any exit code other than 0. [retry] "
        "restarts them only after failures that a restart can help.",
    )
    local_ranks_filter: tuple[int, ...] = Field(
        default=(), description="Local ranks whose output `tee` also shows in the task's log; default: all."
    )
    tee: SbatchWord | None = Field(
        default=None,
        description="torchrun --tee, such as '3': torchrun writes the ranks' output to files, and shows it in the task's log.",
        examples=["3"],
    )
    redirects: SbatchWord | None = Field(
        default=None,
        description="torchrun --redirects, such as '3': torchrun writes the ranks' output to files.",
        examples=["3"],
    )
    log_dir: Text | None = Field(
        default=None,
        description="torchrun --log-dir: the folder of these files, as a path that the ranks see; default: logs/torchrun in the "
        "run folder.",
    )

    def options(self, *, log_dir: str | None = None) -> list[str]:
        """The options as words for torchrun, without --max-restarts. log_dir: the default of the key."""
        words = (
            [f"--local-ranks-filter={','.join(map(str, self.local_ranks_filter))}"] if self.local_ranks_filter else []
        )
        words += [f"--tee={self.tee}"] if self.tee else []
        words += [f"--redirects={self.redirects}"] if self.redirects else []
        folder = self.log_dir or (log_dir if self.tee or self.redirects else None)
        return [*words, *([f"--log-dir={folder}"] if folder else [])]


class Lines(Model):
    """Shell commands that a job runs outside its ranks. All lines of a table run in one shell, after those of `setup`."""

    lines: tuple[Text, ...] = Field(default=(), description="Shell lines, such as 'python prepare.py'.")
    container: bool = Field(
        default=True, description="true: the lines run in the job's container. false: they run on the node itself."
    )
    timeout_s: int = Field(default=0, ge=0, description="Seconds after which the lines are killed; 0: no limit.")


class Once(Lines):
    """Shell lines that run once per job, on the first node, before any rank. If a line fails, the job ends with the exit code of
    that line.
    """


class PerNode(Lines):
    """Shell lines that run on each node of the job, spares too, before any rank. They run again when the job is requeued, because
    it may get other nodes. If a line fails on one node, the job ends with its exit code.
    """

    lines: tuple[Text, ...] = Field(default=(), description="Shell lines, such as 'cp -r /shared/data /local'.")


class AfterRun(Lines):
    """Shell lines that run once, on the first node, when the run has ended, also after a failure. KIT_EXIT_CODE is the run's exit
    code, which they do not change. They do not run when the job goes back to the queue, or when Slurm itself ends it.
    """

    lines: tuple[Text, ...] = Field(default=(), description="Shell lines, such as 'python upload.py $KIT_EXIT_CODE'.")
    timeout_s: int = Field(default=600, ge=1, description="Seconds after which the lines are killed.")
