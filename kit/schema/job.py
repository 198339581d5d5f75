"""Job: what to run. `job.toml`, completed by the launcher's and the cluster's `[defaults]`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from kit.schema import sbatch_options
from kit.schema.alternative_sizes import JobSize
from kit.schema.chain import Chain
from kit.schema.checkpoint_and_tracking import Checkpoint, MegatronArguments, Metrics, Profile
from kit.schema.diloco import DiLoCo
from kit.schema.image_choice import ImageChoice, image_of
from kit.schema.mount import JobMount, Mount
from kit.schema.notify import Notify
from kit.schema.preflight_monitor_retry import Monitor, Preflight, Retry, Secrets, Watch
from kit.schema.resources_slurm_container import ContainerOptions, Resources, SlurmOptions
from kit.schema.rl_and_sft import Rl, Sft
from kit.schema.roles import Role, RoleName
from kit.schema.run_paths import is_launchers
from kit.schema.schema_base import (
    ContainerPath,
    EnvName,
    EnvPattern,
    Model,
    Name,
    SbatchWord,
    Text,
    interfaces,
)
from kit.schema.stages import Stage
from kit.schema.step_torchrun_once import AfterRun, Lines, Once, PerNode, Step, Torchrun
from kit.schema.sweep import Sweep
from kit.schema.wrong_value_messages import Form, Invalid, shown

# An option for passing a variable's value to a program that does not read its environment.
RankOption = Annotated[
    str,
    Form(
        pattern=r"--?[A-Za-z0-9][A-Za-z0-9_.-]*",
        what="an option of the program",
        how="its name with the dashes, and nothing after it",
        example="--local_rank",
        nearest=lambda text: f"--{text.strip(' -=')}",
    ),
]
RankVariable = Literal[
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "KIT_NNODES",
    "KIT_RANKS_PER_NODE",
    "KIT_SEED",
    "KIT_RUN_DIR",
    "KIT_CHECKPOINT_DIR",
    "KIT_RESTART_COUNT",
]
Shape = Literal["srun", "torchrun", "replicas", "roles"]

# A job cannot set these: the worker script sets them for every rank, or bash itself reads them before the script can act.
_RANK_ENV = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
}
_BASH_ENV = {"BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "POSIXLY_CORRECT", "BASH_XTRACEFD", "PS4"}
# MAX_ARG_STRLEN of Linux: execve(2) refuses one string of more than 32 pages, including its NUL.
MOST_BYTES_OF_A_STRING = 131_072


def _short(value: str) -> str:
    if len(value.encode()) >= MOST_BYTES_OF_A_STRING - 256:
        raise Invalid(
            f"the text is longer than Linux passes to a program in one argument or variable ({MOST_BYTES_OF_A_STRING} bytes); "
            "put it into a file and pass its path",
            write="/kit/run/code/long.txt",
        )
    return value


Arg = Annotated[Text, AfterValidator(_short)]


def _interpreter(value: str) -> str:
    """A program's name or path. A version alone is none: the nodes would look for a program named 3.11."""
    if re.fullmatch(r"[0-9.]*", value):
        raise Invalid(
            f"{shown(value)} is a version, and this key names a program", write=f"python{value}" if value else "python3"
        )
    return value


# Tables of shell lines beside the ranks.
# Tables that only the frameworks of that name read.
FRAMEWORK_TABLES = ("deepspeed", "diloco", "megatron", "rl", "sft")
LINES_TABLES = ("once", "per_node", "after")


class Job(Model):
    """One job file."""

    # sbatch's name -> the kit's key.
    OTHER_NAMES: ClassVar[Mapping[str, str]] = sbatch_options.SAME_VALUE

    extends: str | tuple[str, ...] | None = Field(
        default=None,
        description="Job files on which this one builds. Their paths are relative to this file, and its own keys win over "
        "theirs.",
    )
    name: Name = Field(description="Slurm's job name. The id of the run begins with this name.")
    launcher: Name = Field(
        description="The launcher, which starts the ranks: a folder of launchers/.", examples=["ddp"]
    )
    image: Annotated[str, AfterValidator(image_of)] | ImageChoice | None = Field(
        default=None,
        description="A folder of containers/, or a registry reference with its digest. A table can also set `stage`.",
    )
    script: Arg | None = Field(
        default=None,
        description="A Python program. The path is relative to the job file. Default: the launcher's own program.",
    )
    module: SbatchWord | None = Field(
        default=None,
        description="A Python module instead of a script: 'package.main' is started by python -m.",
        examples=["package.main"],
    )
    command: tuple[Text, ...] | None = Field(
        default=None,
        min_length=1,
        examples=[["./simulate", "--steps", "100"]],
        description="Any program, instead of a Python script or module. {run} is the run folder, and {workspace} is the "
        "job's folder.",
    )
    args: tuple[Arg, ...] = Field(
        default=(), description="Arguments of the program. The kit passes them byte for byte."
    )
    shape: Shape | None = Field(
        default=None,
        description="Start shape. torchrun: one task per node. srun: one task per rank. replicas: one torchrun per replica "
        "group. roles: each role has its own shape. Default: the first one that the launcher lists.",
    )
    rendezvous: Literal["static", "c10d"] | None = Field(
        default=None,
        description="The way in which torchrun's nodes find each other. static: by Slurm's node ranks. c10d: in any order, "
        "at torch's own store. Default: static, or c10d with torchrun.max_restarts.",
    )
    rank_args: dict[RankOption, RankVariable] = Field(
        default_factory=dict,
        description="Options of the job's program. Each gets the value of a variable of the rank, such as { --local_rank = "
        "'LOCAL_RANK' }.",
    )
    python: Annotated[Arg, AfterValidator(_interpreter)] = Field(
        default="python3", description="Python interpreter in the container."
    )
    env: dict[EnvName, Arg] = Field(default_factory=dict, description="Environment variables of every rank.")
    inherit: tuple[EnvPattern, ...] = Field(
        default=(),
        description="Variables of your environment that the ranks get, by name or as 'NCCL_*'. They get no other variable of your "
        "environment. A pattern leaves out secrets: names with KEY, TOKEN, SECRET or PASSWORD.",
        examples=[["NCCL_*"]],
    )
    mounts: tuple[JobMount, ...] = Field(
        default=(), description="Names from the cluster's mount set, or tables with a source and a target."
    )
    mount_set: Name | None = Field(
        default=None, description="Mount set: a file of mounts/; default: the cluster's.", examples=["infiniband"]
    )
    workdir: ContainerPath | None = Field(
        default=None, description="Working folder in the container; default: /workspace, the job's folder."
    )
    qos: Name | None = Field(default=None, description="A row of the cluster's QOS table.", examples=["high"])
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**32,
        description="Seed of all ranks. Default: the kit draws a seed at submit, and records it.",
    )
    snapshot: bool = Field(
        default=True,
        description="true: the job runs in a copy of its folder, made at submit. false: it runs in the folder itself, with "
        "the files that are there at that time.",
    )
    setup: tuple[Text, ...] = Field(
        default=(), description="Shell lines that run before the program, such as 'module load cuda'."
    )
    debug: bool = Field(
        default=False, description="Trace the kit's scripts, and turn on the debug output of NCCL and torch."
    )
    resources: Resources = Field(default_factory=Resources)
    slurm: SlurmOptions = Field(default_factory=SlurmOptions)
    container: ContainerOptions = Field(default_factory=ContainerOptions)
    monitor: Monitor = Field(default_factory=Monitor)
    watch: Watch = Field(default_factory=Watch)
    preflight: Preflight = Field(default_factory=Preflight)
    retry: Retry = Field(default_factory=Retry)
    step: Step = Field(default_factory=Step, description="Options of srun for the steps that start ranks.")
    torchrun: Torchrun = Field(default_factory=Torchrun, description="torchrun's own options.")
    once: Once = Field(default_factory=Once, description="Shell lines that run once per job, before any rank.")
    per_node: PerNode = Field(
        default_factory=PerNode, description="Shell lines that run on each node, before any rank."
    )
    after: AfterRun = Field(default_factory=AfterRun, description="Shell lines that run once, when the run has ended.")
    secrets: Secrets = Field(default_factory=Secrets)
    notify: Notify = Field(default_factory=Notify, description="Notices about the run: their events and receivers.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    profile: Profile = Field(default_factory=Profile)
    metrics: Metrics = Field(default_factory=Metrics)
    deepspeed: dict[str, Any] | None = Field(
        default=None, description="DeepSpeed's configuration. The kit writes it into ds_config.json."
    )
    diloco: DiLoCo | None = Field(default=None, description="Replica groups, and how they average.")
    megatron: MegatronArguments | None = Field(
        default=None, description="Megatron-LM's options. The kit passes them as arguments."
    )
    roles: dict[RoleName, Role] = Field(
        default_factory=dict, description="Several programs in one allocation, each on its own nodes."
    )
    rl: Rl | None = Field(
        default=None, description="Reinforcement learning. The kit makes roles and their options from this table."
    )
    sft: Sft | None = Field(
        default=None, description="Supervised fine-tuning. The kit makes roles and their options from this table."
    )
    chain: Chain | None = Field(
        default=None, description="Several jobs, one after another, for a run that is longer than a time limit."
    )
    stages: dict[Name, Stage] = Field(
        default_factory=dict, description="Several jobs in this file that follow each other."
    )
    when: tuple[JobSize, ...] = Field(default=(), description="Other sizes at which the job may run, for `kit when`.")
    sweep: Sweep | None = Field(default=None, description="Many points of this job. `kit sweep` submits them.")

    @property
    def image_name(self) -> str | None:
        """The image's name or reference, from either form of the key."""
        return self.image.name if isinstance(self.image, ImageChoice) else self.image

    @property
    def lines(self) -> dict[str, Lines]:
        """The tables that have lines beside the ranks, by name."""
        return {name: one for name in LINES_TABLES if (one := getattr(self, name)).lines}

    @property
    def is_launchers(self) -> bool:
        """Whether the job starts one of its launcher's own programs."""
        return is_launchers({"script": self.script, "module": self.module, "command": self.command})

    @property
    def is_watched(self) -> bool:
        """Whether the job has a table [watch] that does not switch the stall watch off. Most jobs have none."""
        return "watch" in self.model_fields_set and self.watch.stall is not False

    @property
    def goes_back(self) -> bool:
        """Whether Slurm may queue the job again."""
        return self.slurm.requeue or self.retry.requeue > 0 or self.preflight.on_failure == "exclude"

    @property
    def requeue_is_capped(self) -> bool:
        """Whether the job's requeues by Slurm itself count as those of `retry.requeue`."""
        return self.goes_back and not self.slurm.requeue

    @property
    def staged(self) -> ImageChoice | None:
        """The image's table if the image must be copied to the nodes."""
        return self.image if isinstance(self.image, ImageChoice) and self.image.stage in ("node", "chain") else None

    @field_validator("extends")
    @classmethod
    def _read_before(cls, value: object) -> None:
        """Refuse the key here: files with it are read, and the key removed, before a job is made."""
        if value is not None:
            raise Invalid("only a job file can build on another: write the key into job.toml", hint="remove the line")

    @field_validator("env")
    @classmethod
    def _not_ours(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if name in _RANK_ENV or name.startswith(("SLURM_", "KIT_")):
                raise Invalid(f"{name} is set by the kit for each rank", key=(name,), hint="remove the line")
            if name in _BASH_ENV:
                problem = (
                    f"{name} is read by bash before the worker script can pass it on; set it in the program itself"
                )
                raise Invalid(problem, key=(name,), hint="remove the line")
        return interfaces(env)

    @model_validator(mode="after")
    def _one_program(self) -> Job:
        named = [key for key in ("script", "module", "command") if getattr(self, key) is not None]
        if len(named) > 1:
            problem = f"a job has a script, a module or a command, and this one has {' and '.join(named)}"
            raise Invalid(problem, key=(named[-1],), hint="remove one of the lines")
        return self

    @model_validator(mode="after")
    def _distinct_targets(self) -> Job:
        seen: set[str] = set()
        for place, mount in enumerate(self.mounts):
            if isinstance(mount, Mount) and mount.target in seen:
                problem = f"two mounts share the target {mount.target}; each target may be used once"
                raise Invalid(problem, key=("mounts", place, "target"), write=f"{mount.target}-2")
            seen |= {mount.target} if isinstance(mount, Mount) else set()
        return self
