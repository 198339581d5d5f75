"""Job: what to run. `job.toml`, completed by the launcher's and the cluster's `[defaults]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from kit.spec import sbatch_options
from kit.spec.alternative_sizes import JobSize
from kit.spec.chain import Chain
from kit.spec.checkpoint_and_tracking import Checkpoint, MegatronArguments, Metrics, Profile
from kit.spec.diloco import DiLoCo
from kit.spec.image_choice import ImageChoice, image_of
from kit.spec.mount import Mount
from kit.spec.notify import Notify
from kit.spec.preflight_monitor_retry import Monitor, Preflight, Retry, Secrets, Watch
from kit.spec.rl_and_sft import Rl, Sft
from kit.spec.roles import Role, RoleName
from kit.spec.run_paths import is_launchers
from kit.spec.schema_base import (
    ContainerPath,
    EnvName,
    Memory,
    Model,
    Name,
    RuntimeName,
    SbatchWord,
    Text,
    TimeLimit,
    interfaces,
)
from kit.spec.slurm_filename_pattern import LogPattern
from kit.spec.stages import Stage
from kit.spec.step_torchrun_once import Once, Step, Torchrun
from kit.spec.sweep import Sweep
from kit.spec.wrong_value_messages import Form, Invalid

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
Capability = Annotated[
    str,
    Form(
        pattern=r"CAP_[A-Z][A-Z_]*",
        what="a capability of Linux",
        how="CAP_ and a name of capabilities(7), in capital letters",
        example="CAP_SYS_PTRACE",
        nearest=lambda text: f"CAP_{text.strip().upper().removeprefix('CAP_').replace('-', '_')}",
    ),
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
# MAX_ARG_STRLEN of Linux: execve(2) refuses one string of 32 pages or more, including its NUL.
_MAX_STRING = 131_072
# Slurm waits this long after its own TERM, unless the site sets another KillWait.
_GRACE_S = 30


def _short(value: str) -> str:
    if len(value.encode()) >= _MAX_STRING - 256:
        raise Invalid(
            f"the text is longer than Linux passes to a program in one argument or variable ({_MAX_STRING} bytes); put it into a "
            "file and pass its path",
            write="/kit/run/code/long.txt",
        )
    return value


Arg = Annotated[Text, AfterValidator(_short)]


class Resources(Model):
    """The requested part of the cluster. Each number is per node unless stated otherwise."""

    nodes: int = Field(default=1, ge=1, description="Number of nodes.")
    gpus_per_node: int | None = Field(
        default=None, ge=0, description="GPUs on each node; default: all that the cluster's nodes have."
    )
    ranks_per_node: int | None = Field(
        default=None, ge=1, description="Ranks on each node; default: one per GPU, or 1 without GPUs."
    )
    cpus_per_node: int | None = Field(
        default=None, ge=1, description="CPUs on each node; default: in proportion to the GPUs."
    )
    memory: Memory | None = Field(default=None, description="Memory per node (sbatch --mem); '0' is all of it.")
    time: TimeLimit | None = Field(default=None, description="Wall-clock limit (sbatch --time).")
    segment: int | None = Field(
        default=None,
        ge=1,
        description="Nodes that come together in one block of the topology (sbatch --segment, Slurm 23.11).",
    )
    switches: SbatchWord | None = Field(
        default=None, description="Most leaf switches, and how long to wait for them: '1@01:00:00' (sbatch --switches)."
    )


class SlurmOptions(Model):
    """Options that go unchanged into the sbatch header."""

    account: SbatchWord | None = Field(
        default=None, description="Account that the job is charged to (sbatch --account)."
    )
    partition: SbatchWord | None = Field(default=None, description="Slurm's partition (sbatch --partition).")
    qos: SbatchWord | None = Field(default=None, description="Slurm's QOS; default: that of the row (sbatch --qos).")
    constraint: SbatchWord | None = Field(
        default=None, description="Features that nodes must have (sbatch --constraint)."
    )
    exclude: SbatchWord | None = Field(
        default=None, description="Nodes to leave out, as a node list (sbatch --exclude)."
    )
    nodelist: SbatchWord | None = Field(default=None, description="Nodes to use, as a node list (sbatch --nodelist).")
    reservation: SbatchWord | None = Field(default=None, description="Slurm's reservation (sbatch --reservation).")
    licenses: SbatchWord | None = Field(default=None, description="Licenses that the job needs (sbatch --licenses).")
    mail_user: SbatchWord | None = Field(default=None, description="Address of Slurm's own mail (sbatch --mail-user).")
    mail_type: SbatchWord | None = Field(default=None, description="Events to mail: 'END,FAIL' (sbatch --mail-type).")
    output: LogPattern | None = Field(
        default=None,
        description="File of the batch script's output, with Slurm's patterns, such as 'logs/%x-%j.out'; relative to the job "
        "file, and may hold {run} {project} {job} {user} {home} {data}. Default: batch.log in the run folder.",
    )
    error: LogPattern | None = Field(
        default=None, description="The same for its errors, which otherwise go to the same file."
    )
    exclusive: bool = Field(default=False, description="Share the nodes with no other job (sbatch --exclusive).")
    requeue: bool = Field(
        default=False,
        description="Let Slurm start the job again after a node failure or preemption, as often as it happens.",
    )
    lead: int = Field(
        default=120,
        ge=0,
        description="Seconds before the time limit at which the batch script gets USR1; 0: never. By default 120, or a quarter "
        "of a limit that is not longer than that.",
    )
    grace: int | None = Field(
        default=None,
        ge=1,
        description="Seconds that programs get to save after `kit cancel`, before they are killed. Default: the lead, or 30.",
    )
    template: Text | None = Field(
        default=None, description="A batch script of your own, a Jinja template, relative to the job file."
    )
    extra: tuple[Annotated[str, AfterValidator(sbatch_options.further)], ...] = Field(
        default=(), description="Further sbatch options, each as one string, such as '--nice=100'."
    )

    @property
    def time_to_save(self) -> int:
        """Seconds between a cancel and the end of the programs."""
        return self.grace or self.lead or _GRACE_S


class ContainerOptions(Model):
    """How programs run in the container."""

    runtime: RuntimeName = Field(default="auto", description="auto: pyxis where the cluster has it, else bubblewrap.")
    writable: bool = Field(default=False, description="A writable root; what is written to it is lost at the end.")
    remap_root: bool = Field(default=True, description="Appear as root inside.")
    mount_home: bool = Field(
        default=False, description="Mount the home folder; its ~/.local would win over the image's packages."
    )
    entrypoint: bool = Field(default=False, description="Run the image's ENTRYPOINT before the worker (pyxis, enroot).")
    env: tuple[EnvName, ...] = Field(
        default=(), description="Host variables that win over the image's (--container-env)."
    )
    capabilities: tuple[Capability, ...] = Field(
        default=(),
        description="What root may do in the container, such as CAP_SYS_PTRACE; nothing by default (bubblewrap, as root).",
    )


class Job(Model):
    """One job file."""

    # sbatch's name -> the kit's key.
    OTHER_NAMES: ClassVar[Mapping[str, str]] = sbatch_options.SAME_VALUE

    extends: str | tuple[str, ...] | None = Field(
        default=None, description="Job files that this one builds on, relative to it; its own keys win over theirs."
    )
    name: Name = Field(description="Slurm's job name, and the start of the run's id.")
    launcher: Name = Field(description="How ranks start: a folder of launchers/.", examples=["ddp"])
    image: Annotated[str, AfterValidator(image_of)] | ImageChoice | None = Field(
        default=None,
        description="A folder of containers/, or a reference with its digest; or a table that also says `stage`.",
    )
    script: Arg | None = Field(
        default=None, description="Program, relative to the job file; default: the launcher's own."
    )
    module: SbatchWord | None = Field(
        default=None,
        description="Program as a module: 'package.main' is started by python -m. Instead of `script`.",
    )
    command: tuple[Text, ...] | None = Field(
        default=None,
        min_length=1,
        examples=[["./simulate", "--steps", "100"]],
        description="Any program instead of a Python one; {run} is the run folder and {workspace} the job's folder.",
    )
    args: tuple[Arg, ...] = Field(default=(), description="Arguments of the program, passed through byte for byte.")
    shape: Shape | None = Field(
        default=None,
        description="torchrun: one task per node; srun: one task per rank; replicas: one torchrun per replica group; "
        "roles: as [roles] says.",
    )
    rendezvous: Literal["static", "c10d"] | None = Field(
        default=None,
        description="How torchrun's nodes meet: by Slurm's node ranks (static, the default), or by torch's own store, in any order "
        "(c10d, the default with torchrun.max_restarts).",
    )
    rank_args: dict[RankOption, RankVariable] = Field(
        default_factory=dict,
        description="Options of the job's program that get a variable of the rank, such as { --local_rank = 'LOCAL_RANK' }.",
    )
    python: Arg = Field(default="python3", description="Interpreter inside the container.")
    env: dict[EnvName, Arg] = Field(default_factory=dict, description="Environment of every rank.")
    inherit: tuple[EnvName, ...] = Field(
        default=(), description="Variables of the submitter that reach the ranks; nothing else of the host does."
    )
    mounts: tuple[Name | Mount, ...] = Field(
        default=(), description="Logical names of the cluster's mount set, or tables of their own."
    )
    mount_set: Name | None = Field(default=None, description="A file of mounts/; default: the cluster's.")
    workdir: ContainerPath | None = Field(
        default=None, description="Working folder in the container; default: /workspace."
    )
    qos: Name | None = Field(default=None, description="A row of the cluster's QOS table.")
    seed: int | None = Field(
        default=None, ge=0, lt=2**32, description="Seed of all ranks; default: drawn at submit and recorded."
    )
    snapshot: bool = Field(
        default=True,
        description="Run from a copy of the job's folder as it is at submit; false: from the folder itself, as it is then.",
    )
    setup: tuple[Text, ...] = Field(
        default=(), description="Shell lines before the program, such as 'module load cuda'."
    )
    debug: bool = Field(default=False, description="Trace the scripts and make NCCL and torch talk.")
    resources: Resources = Field(default_factory=Resources)
    slurm: SlurmOptions = Field(default_factory=SlurmOptions)
    container: ContainerOptions = Field(default_factory=ContainerOptions)
    monitor: Monitor = Field(default_factory=Monitor)
    watch: Watch = Field(default_factory=Watch)
    preflight: Preflight = Field(default_factory=Preflight)
    retry: Retry = Field(default_factory=Retry)
    step: Step = Field(default_factory=Step, description="srun's options of the steps that start ranks.")
    torchrun: Torchrun = Field(default_factory=Torchrun, description="torchrun's own options.")
    once: Once = Field(default_factory=Once, description="Lines that run once per job, before any rank.")
    secrets: Secrets = Field(default_factory=Secrets)
    notify: Notify = Field(default_factory=Notify, description="Who is told of the run, and when.")
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    profile: Profile = Field(default_factory=Profile)
    metrics: Metrics = Field(default_factory=Metrics)
    deepspeed: dict[str, Any] | None = Field(
        default=None, description="DeepSpeed's configuration; becomes ds_config.json."
    )
    diloco: DiLoCo | None = Field(default=None, description="Replica groups, and how they average.")
    megatron: MegatronArguments | None = Field(default=None, description="Megatron's options; become arguments.")
    roles: dict[RoleName, Role] = Field(
        default_factory=dict, description="Several programs, each on its own nodes of the one allocation."
    )
    rl: Rl | None = Field(default=None, description="Reinforcement learning; becomes roles and their options.")
    sft: Sft | None = Field(default=None, description="Supervised fine-tuning; becomes a role and its options.")
    chain: Chain | None = Field(default=None, description="Several jobs after each other: longer than a time limit.")
    stages: dict[Name, Stage] = Field(default_factory=dict, description="Jobs of this file that follow each other.")
    when: tuple[JobSize, ...] = Field(default=(), description="Other sizes at which it may run, for 'kit when'.")
    sweep: Sweep | None = Field(default=None, description="Many points of this job: 'kit sweep' submits them.")

    @property
    def image_name(self) -> str | None:
        """The image's name or reference, from either form of the key."""
        return self.image.name if isinstance(self.image, ImageChoice) else self.image

    @property
    def is_launchers(self) -> bool:
        """Whether the job starts one of its launcher's own programs."""
        return is_launchers({"script": self.script, "module": self.module, "command": self.command})

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
