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
    """The resources that the job asks for. Each number is per node, unless its text says otherwise."""

    nodes: int = Field(default=1, ge=1, description="Number of nodes.")
    gpus_per_node: int | None = Field(
        default=None,
        ge=0,
        description="GPUs on each node. Default: all GPUs of a node, or max_gpus_per_node of the QOS row if that is less.",
    )
    ranks_per_node: int | None = Field(
        default=None, ge=1, description="Ranks on each node; default: one per GPU, or 1 without GPUs."
    )
    cpus_per_node: int | None = Field(
        default=None,
        ge=1,
        description="CPUs on each node. Default: all. A job that uses only some of the node's GPUs gets CPUs in "
        "proportion.",
    )
    memory: Memory | None = Field(
        default=None, description="Memory per node (sbatch --mem); '0': all memory of the node."
    )
    time: TimeLimit | None = Field(default=None, description="Wall-clock limit (sbatch --time).")
    segment: int | None = Field(
        default=None,
        ge=1,
        description="Slurm takes nodes in groups of this size, each group from one block of the topology (sbatch "
        "--segment, Slurm 23.11).",
    )
    switches: SbatchWord | None = Field(
        default=None,
        description="Maximum number of leaf switches, and the longest wait for nodes on so few: '1@01:00:00' (sbatch "
        "--switches).",
        examples=["1@01:00:00"],
    )


class SlurmOptions(Model):
    """Options of sbatch, and settings of the batch script."""

    account: SbatchWord | None = Field(
        default=None, description="Account that the job is charged to (sbatch --account).", examples=["ml-team"]
    )
    partition: SbatchWord | None = Field(default=None, description="Slurm's partition (sbatch --partition).")
    qos: SbatchWord | None = Field(
        default=None,
        description="Slurm's QOS; default: the QOS of the job's row in the QOS table (sbatch --qos).",
        examples=["high"],
    )
    constraint: SbatchWord | None = Field(
        default=None, description="Features that nodes must have (sbatch --constraint).", examples=["h100"]
    )
    exclude: SbatchWord | None = Field(
        default=None, description="Nodes to leave out, as a node list (sbatch --exclude).", examples=["node[07,12]"]
    )
    nodelist: SbatchWord | None = Field(
        default=None, description="Nodes to use, as a node list (sbatch --nodelist).", examples=["node[01-04]"]
    )
    reservation: SbatchWord | None = Field(
        default=None, description="Slurm's reservation (sbatch --reservation).", examples=["training"]
    )
    licenses: SbatchWord | None = Field(
        default=None, description="Licenses that the job needs (sbatch --licenses).", examples=["matlab:1"]
    )
    mail_user: SbatchWord | None = Field(
        default=None, description="Address for Slurm's own mail (sbatch --mail-user).", examples=["ada@example.org"]
    )
    mail_type: SbatchWord | None = Field(
        default=None,
        description="Events that Slurm reports by mail: 'END,FAIL' (sbatch --mail-type).",
        examples=["END,FAIL"],
    )
    output: LogPattern | None = Field(
        default=None,
        description="File for the batch script's output, such as 'logs/%x-%j.out'. The path may contain Slurm's patterns "
        "and {run} {project} {job} {user} {home} {data}. A relative path starts at the job file's folder. Default: "
        "logs/batch.log in the run folder.",
    )
    error: LogPattern | None = Field(
        default=None,
        description="File for the batch script's standard error, written like `output`. Default: the file of the output.",
    )
    exclusive: bool = Field(default=False, description="Share the nodes with no other job (sbatch --exclusive).")
    requeue: bool = Field(
        default=False,
        description="Let Slurm requeue the job after a node failure or a preemption, as often as that happens.",
    )
    lead: int = Field(
        default=120,
        ge=0,
        description="Seconds before the time limit at which Slurm sends USR1 to the batch script; 0: never. Default: 120, "
        "or a quarter of the time limit if that limit is not longer than 120 s.",
    )
    grace: int | None = Field(
        default=None,
        ge=1,
        description="Seconds that programs get to save after `kit cancel`, before they are killed. Default: `lead`, or 30 "
        "if `lead` is 0.",
    )
    template: Text | None = Field(
        default=None, description="Your own batch script as a Jinja template. The path is relative to the job file."
    )
    extra: tuple[Annotated[str, AfterValidator(sbatch_options.further)], ...] = Field(
        default=(), description="Further sbatch options, each as one string, such as '--nice=100'."
    )

    @property
    def time_to_save(self) -> int:
        """Seconds between a cancel and the end of the programs."""
        return self.grace or self.lead or _GRACE_S


class ContainerOptions(Model):
    """Options for the job's container."""

    runtime: RuntimeName = Field(
        default="auto",
        description="auto: the cluster's container.runtime. If that is auto, too: pyxis if the cluster's Slurm has it, "
        "else bubblewrap.",
    )
    writable: bool = Field(
        default=False, description="Make the container's root writable. Files written there are lost at the end."
    )
    remap_root: bool = Field(default=True, description="The user appears as root inside the container.")
    mount_home: bool = Field(
        default=False,
        description="Mount the home folder. Python does not import packages from its ~/.local, because the kit sets "
        "PYTHONNOUSERSITE=1.",
    )
    entrypoint: bool = Field(
        default=False,
        description="Run the image's ENTRYPOINT before the kit's worker script (only with pyxis and enroot).",
    )
    env: tuple[EnvName, ...] = Field(
        default=(), description="Variables whose value on the host wins over the image's value (--container-env)."
    )
    capabilities: tuple[Capability, ...] = Field(
        default=(),
        description="Capabilities of root in the container, such as CAP_SYS_PTRACE; default: none. They work only with "
        "bubblewrap, for jobs of root.",
    )


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
    python: Arg = Field(default="python3", description="Python interpreter in the container.")
    env: dict[EnvName, Arg] = Field(default_factory=dict, description="Environment variables of every rank.")
    inherit: tuple[EnvName, ...] = Field(
        default=(),
        description="Variables of your environment that the ranks get. They get no other variable of your environment.",
    )
    mounts: tuple[Name | Mount, ...] = Field(
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
