"""Warnings of a submit: about jobs that will run, but perhaps not as intended. Nothing here is an error.

Each names what this machine, its shell or other users may do to the job, or that its nodes cannot run its image.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from kit.config import Resolved
from kit.errors import Fault, SlurmError, ToolError
from kit.files import own_folders
from kit.planning.plan import Plan
from kit.schema.job import Job
from kit.slurm import client, tolerant_reader
from kit.validation import toml

# What people set for a run of NCCL, torch, OpenMP, a tracker or Hugging Face. Secrets have a key of their own.
_MEANT = re.compile(
    r"(NCCL|GLOO|UCX|FI|OMPI|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|OMP|MKL|KMP|WANDB|MLFLOW|HF|TRANSFORMERS|DS|XLA)_\w+"
    # Terraform's names begin with TF_, too.
    r"|TF_(CPP|CONFIG|ENABLE|FORCE|GPU|NUM|XLA)\w*"
    r"|CUDA_(LAUNCH_BLOCKING|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS)|PYTHONHASHSEED|TOKENIZERS_PARALLELISM"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW")
# With more of them, only these are printed.
_NAMED = 8
_ASK_S = 5.0
# Docker's name of an architecture -> that of Linux (uname -m), which is Slurm's. Of others, nothing is known.
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64le", "riscv64": "riscv64"}


def warn_of_variables(resolved: Resolved, environ: Mapping[str, str]) -> Fault | None:
    """A warning with the names, and the line that keeps them; None if there are none. environ: of the submitter."""
    job, cluster = resolved.job, resolved.cluster
    set_here = {*job.env, *cluster.network, *(name for role in job.roles.values() for name in role.env)}
    asked = (*cluster.inherit, *job.inherit)
    names = sorted(
        name
        for name in environ
        if _MEANT.fullmatch(name)
        and not _SECRET.search(name)
        and name not in set_here
        and not client.inherits(asked, name)
    )
    if not names:
        return None
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    problem = f"the ranks do not get these variables of your shell: {', '.join(names[:_NAMED])}{more}"
    hint = f"inherit = {toml([*job.inherit, *_patterns(names)])}, or unset them"
    return Fault(key="inherit", problem=problem, hint=hint, file=resolved.job_file)


def _patterns(names: list[str]) -> list[str]:
    """The names, and one pattern for three or more of a library."""
    libraries = [name.partition("_")[0] for name in names]
    found = (f"{lib}_*" if libraries.count(lib) > 2 else name for lib, name in zip(libraries, names, strict=True))
    return list(dict.fromkeys(found))


def warn_of_others(plan: Plan) -> Iterator[Fault]:
    """A fault if others could replace the run, and one for each image whose owner could change it while it is mounted."""
    runs_dir = plan.run_dir.parent
    for folder in (runs_dir, *runs_dir.parents):
        who = own_folders.replaceable_by(folder) if folder.is_dir() else ""
        if who:
            problem = f"{folder} may be changed by {who}, who can put another run in place of this one"
            yield Fault(
                file=f"clusters/{plan.cluster}.toml", key="paths.runs", problem=problem, hint=f"chmod +t {folder}"
            )
            break
    for pinned in plan.decisions.pins.distinct:
        # A node that runs a copy of its own checks the bytes of that copy.
        if pinned.lock is None or pinned.image != pinned.stored or not Path(pinned.stored).is_file():
            continue
        if (who := own_folders.stranger(Path(pinned.stored))) and not own_folders.is_unchangeable(Path(pinned.stored)):
            problem = f"{pinned.stored} belongs to {who}, who can change it while the run has it mounted"
            hint = f'image = {{ name = "{pinned.lock.name}", stage = "node" }}'
            yield Fault(file=plan.decisions.resolved.job_file, key="image", problem=problem, hint=hint)


def warn_of_mounts(plan: Plan) -> Iterator[Fault]:
    """A fault for each. It is a warning, because a node's own disk is not mounted where jobs are submitted."""
    decided = plan.decisions
    own = {"tmpfs", decided.paths.cache}
    for mount in decided.paths.mounts if decided.runtime.containerized else ():
        if mount.source in own or Path(mount.source).is_relative_to(plan.run_dir) or _is_there(mount.source):
            continue
        problem = f"{mount.source} is not on this machine; on a node without it, the preflight fails and no rank starts"
        hint = f"srun ls -d {shlex.quote(mount.source)}"
        yield Fault(file=decided.resolved.job_file, key="mounts", problem=problem, hint=hint)


def _is_there(source: str) -> bool:
    try:
        os.lstat(source)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # A folder that this user may not enter, or a file system that does not answer.
        return True
    return True


def warn_of_architecture(plan: Plan, *, env: Mapping[str, str]) -> list[Fault]:
    """A warning for each image that no node of the partition can run; none if lock or Slurm do not say it.

    Nothing is refused: a node may have an emulator, of which Slurm does not know.
    """
    wanted = {
        pinned.lock.name: (pinned.lock.platform, _ARCHITECTURES[architecture])
        for pinned in plan.decisions.pins.distinct
        if pinned.lock
        and pinned.lock.platform
        and (architecture := pinned.lock.platform.split("/")[1]) in _ARCHITECTURES
    }
    if not wanted:
        return []
    partition = plan.job.slurm.partition
    held = _architectures_of_nodes(partition, {architecture for _, architecture in wanted.values()}, env=env)
    where = f"partition {partition}" if partition else "the default partition"
    return [
        Fault(
            file=plan.decisions.resolved.job_file,
            key="image",
            problem=f"image {name} is for {platform}, and the nodes of {where} are {', '.join(sorted(held))}",
            hint=f"slurm.partition names a partition with {architecture} nodes, or image one for these",
        )
        for name, (platform, architecture) in wanted.items()
        if held and architecture not in held
    ]


def _architectures_of_nodes(partition: str | None, wanted: Iterable[str], *, env: Mapping[str, str]) -> set[str]:
    """The architectures of the partition's nodes; empty if Slurm does not say them. All nodes are asked for only if the first one
    has another than those wanted.
    """
    try:
        nodes = client.nodes_in_service(partition=partition, env=env)
        first = _architectures(nodes[:1], env=env)
        return first if first.issuperset(wanted) else _architectures(nodes, env=env)
    except (SlurmError, ToolError):
        return set()


def _architectures(nodes: Iterable[str], *, env: Mapping[str, str]) -> set[str]:
    """scontrol(1): a line for each node, with `Arch=` of those that have registered."""
    listed = ",".join(nodes)
    argv = ["scontrol", "show", "node", "--oneliner", listed]
    said = tolerant_reader.ask(argv, env=env, timeout=_ASK_S) if listed else ""
    return set(re.findall(r"(?m)^NodeName=\S+ Arch=(\S+)", said))


def describe_watch(job: Job) -> str | None:
    """One line for a job that is watched; None for any other."""
    if not job.is_watched:
        return None
    if not job.monitor.enabled:
        return "watch: nothing is seen, because monitor.enabled is false"
    try:
        metadata.version("py-spy")
        stacks = "yes"
    except metadata.PackageNotFoundError:
        stacks = "no, the kit was installed without the extra 'stacks'"
    return (
        "watch: steps: as the program reports them, else from its log (kit top, kit why); processes: sampled on each node; "
        f"stacks: {stacks}; collectives: NCCL's, written by torch's flight recorder at a time-out"
    )
