"""`[resources]`, `[slurm]` and `[container]` of a job."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from kit.schema import sbatch_options
from kit.schema.schema_base import EnvName, Memory, Model, RuntimeName, SbatchWord, Text, TimeLimit
from kit.schema.slurm_filename_pattern import LogPattern
from kit.schema.wrong_value_messages import Form, Invalid

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
# A name of gres.conf, perhaps with a type.
GresName = Annotated[
    str,
    Form(
        pattern=r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_.-]+)?",
        what="a name of gres.conf",
        how="letters, digits and _ . -, and perhaps a type after :",
        example="nvme",
    ),
]
GpuType = Annotated[
    str,
    Form(
        pattern=r"[A-Za-z0-9_][A-Za-z0-9_.-]*",
        what="a type of GPU",
        how="its name in gres.conf: letters, digits and _ . -",
        example="h100",
        nearest=lambda text: text.replace(" ", "").lower(),
    ),
]
# rank.sh outlives these signals, and reports how the program ended.
RankSignal = Annotated[
    str,
    Form(
        pattern=r"(SIG)?(TERM|USR1|USR2|INT|HUP)(@[0-9]+)?",
        what="a signal for the ranks",
        how="TERM, USR1, USR2, INT or HUP, and perhaps @ and the lead in seconds",
        example="TERM",
        nearest=sbatch_options.signal_of,
    ),
]
# Slurm waits this long after its own TERM, unless the site sets another KillWait.
_GRACE_S = 30


class Resources(Model):
    """The resources that the job asks for. Each number is per node, unless its text says otherwise."""

    nodes: int = Field(default=1, ge=1, description="Number of nodes.")
    gpus_per_node: int | None = Field(
        default=None,
        ge=0,
        description="GPUs on each node. Default: all GPUs of a node, or max_gpus_per_node of the QOS row if that is less.",
    )
    gpu_type: GpuType | None = Field(
        default=None,
        description="Type of the GPUs, as gres.conf names it, where nodes have several. Default: the type of the "
        "cluster's node.gres, or any.",
        examples=["h100"],
    )
    gres: dict[GresName, Annotated[int, Field(ge=0)] | Memory] = Field(
        default_factory=dict,
        description="Other generic resources on each node, such as { nvme = 1 } (sbatch --gres). They are asked for together with "
        "the GPUs.",
        examples=[{"nvme": 1}],
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

    @field_validator("gres")
    @classmethod
    def _without_gpus(cls, gres: dict[str, int | str]) -> dict[str, int | str]:
        for name, count in gres.items():
            if name.partition(":")[0] == "gpu":
                kind = name.partition(":")[2]
                hint = f"gpus_per_node = {count}" + (f' and gpu_type = "{kind}"' if kind else "")
                raise Invalid("GPUs have a key of their own, gpus_per_node", key=(name,), hint=hint)
        return gres


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
        "logs/batch.log in the run folder. The output of the ranks is not in this file: it is in logs/ of the run folder, and "
        "`kit logs -f` shows it.",
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
        description="Seconds before the time limit at which the ranks get their signal; 0: never. Default: 120, "
        "or a quarter of the time limit if that limit is not longer than 120 s.",
    )
    signal: RankSignal | None = Field(
        default=None,
        description="The signal that the ranks get at the lead, such as 'TERM', or with the lead itself: 'USR2@600'. "
        "Default: USR1 for a program that has a handler for it, TERM for any other.",
        examples=["USR2@600"],
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
    def lead_signals(self) -> str:
        """Names of the signals at the lead, the preferred one first, separated by commas."""
        return self.signal.partition("@")[0].removeprefix("SIG") if self.signal else "USR1,TERM"

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
