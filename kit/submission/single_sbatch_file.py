"""`kit generate`: a complete run in one sbatch file, for a training described by TorchTitan's configuration file.

The plan is the same as for any job. Its files are here-documents in the sbatch file. Each job submitted with it writes them into
its own run folder, where `kit status` and `kit logs` find it.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from kit import config
from kit.allocation import Allocation
from kit.config import Resolved, Sources
from kit.errors import ConfigError, Fault
from kit.files import untrusted_files
from kit.frameworks import diloco, program_releases, titan_file, torchtitan
from kit.frameworks.titan_file import TitanFile
from kit.planning.needed_modules import without_unused
from kit.planning.phases import phases
from kit.planning.plan import Plan, PlanFile, plan
from kit.planning.sbatch_header import explained, header
from kit.record import manifest
from kit.render import render
from kit.submission import prepare_run
from kit.submission.prepare_run import Prepared

LAUNCHER = "torchtitan"
# Slurm's own default. There is no job number yet, so no path of the run folder can contain one.
_OUTPUT = "slurm-%j.out"
_MAIL_TYPE = "BEGIN,END,FAIL"
# The command-line option for the key of a fault.
_OPTIONS = {
    "name": "--job-name",
    "qos": "--qos",
    "resources.nodes": "--nodes",
    "resources.gpus_per_node": "--gpus-per-node",
    "resources.time": "--time",
    "diloco.replicas_per_node": "--num-ft-replicas-per-node",
    "diloco.nodes_per_replica": "--nodes-per-replica",
    "resources.memory": "--mem",
    "slurm.account": "--account",
    "slurm.partition": "--partition",
    "slurm.mail_user": "--mail-user",
    "slurm.mail_type": "--mail-type",
    "slurm.output": "--output",
    "slurm.error": "--error",
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of the command; None if the cluster or TorchTitan decides. extra_args: in shell syntax."""

    config_file: Path
    qos: str | None = None
    nodes: int = 1
    gpus_per_node: int | None = None
    time: str | None = None
    memory: str | None = None
    account: str | None = None
    partition: str | None = None
    use_ddp: bool = False
    replicas_per_node: int | None = None
    nodes_per_replica: int | None = None
    extra_args: str = ""
    job_name: str | None = None
    mail_user: str | None = None
    mail_type: str | None = None
    output: str | None = None
    error: str | None = None


def single_file(
    asked: Asked,
    *,
    cluster: str | None,
    overrides: Sequence[str] = (),
    containers: bool = True,
    now: datetime | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> str:
    """The text of the sbatch file. ConfigError for everything that the cluster or TorchTitan would refuse.

    say: gets one line about what the file trains.
    """
    now = now or datetime.now(UTC)
    titan = titan_file.read_titan_file(asked.config_file, checkout=Path.cwd())
    here = Path.cwd() / "kit generate"
    try:
        resolved = resolve(asked, titan, here, cluster=cluster, overrides=overrides)
        prepared = prepare_run.prepare_resolved(resolved, here, containers=containers, now=now, live=True)
        prepared = replace(prepared, resolved=_checked(prepared, asked, titan))
    except ConfigError as error:
        if not error.faults:
            raise
        raise ConfigError.of(*map(_as_option, error.faults)) from None
    say(_trains(prepared, asked))
    mark = _mark(f"{titan.text}{asked}")
    made = _placed(prepared, mark)
    record = manifest.make_manifest(made, job_file=asked.config_file, user=getpass.getuser(), now=now, slurm_version="")
    own = {titan.name: titan.text, "manifest.json": record.model_dump_json(indent=2) + "\n"}
    return as_one_file(made, [*_copied(made), *(PlanFile(name=name, text=text) for name, text in own.items())], mark)


def _trains(prepared: Prepared, asked: Asked) -> str:
    """What the file trains, and what the other choice is called."""
    allocation = prepared.plan.allocation
    nodes = "1 node" if allocation.nodes == 1 else f"{allocation.nodes} nodes"
    if prepared.resolved.job.shape == "replicas":
        groups = diloco.groups_of(prepared.resolved.job, allocation)
        each = f"{groups[0].world_size} rank{'s' if groups[0].world_size > 1 else ''}"
        return f"{len(groups)} replica groups of {each} on {nodes}"
    how = "a copy of the model on each" if asked.use_ddp else "sharded as the configuration says"
    return (
        f"one training of {allocation.world_size} ranks on {nodes}, {how}; replica groups: --num-ft-replicas-per-node"
    )


def _checked(prepared: Prepared, asked: Asked, titan: TitanFile) -> Resolved:
    made, lock = prepared.resolved, prepared.plan.decisions.pins.own.lock
    packages = lock.packages.pip if lock else {}
    release = program_releases.installed(made.job, made.launcher.releases, packages) if made.launcher.releases else None
    return completed(made, prepared.plan.allocation, asked, titan, release=release)


def _as_option(fault: Fault) -> Fault:
    """Change a fault of a job's key to one of the option that sets it."""
    option = "--extra-args" if fault.key.startswith("args[") else _OPTIONS.get(fault.key)
    if option is None:
        return fault
    value = re.fullmatch(r'[a-z_]+ = "?([^"]*)"?', fault.hint)
    return replace(fault, key=option, hint=f"{option} {value[1]}" if value else fault.hint)


def resolve(
    asked: Asked, titan: TitanFile, here: Path, *, cluster: str | None, overrides: Sequence[str] = ()
) -> Resolved:
    """The job that the options describe. here: a path that names the job in faults; relative paths start in its folder."""
    sources = config.job_of(_job(asked, titan), here, cluster=cluster, overrides=overrides)
    return _with_defaults(sources).resolve()


def completed(
    resolved: Resolved, allocation: Allocation, asked: Asked, titan: TitanFile, *, release: str | None
) -> Resolved:
    """The job with arguments for DDP, if that is asked for. release: of TorchTitan, if it is known.

    ConfigError if TorchTitan would refuse it.
    """
    job = resolved.job
    ranks, count, each = allocation.world_size, 1, allocation.world_size // allocation.nodes
    if job.shape == "replicas":
        groups = diloco.groups_of(job, allocation)
        ranks, count = groups[0].world_size, len(groups)
    words = [*(torchtitan.plain_ddp(titan.table, job.args, ranks) if asked.use_ddp else []), *job.args]
    # A fork's batch is that of one group.
    batch_of_all = not titan.is_python
    faults = [
        *torchtitan.broken(titan.table, words, ranks=ranks, count=count, ranks_per_node=each, batch_of_all=batch_of_all)
    ]
    releases = resolved.launcher.releases
    if releases and not titan.is_python:
        faults += program_releases.misspelt(job, releases, titan.table, release=release)
    if faults:
        raise ConfigError.of(*faults, file=config.shown(asked.config_file))
    return replace(resolved, job=job.model_copy(update={"args": tuple(words)}))


def as_one_file(run_plan: Plan, further: Sequence[PlanFile], mark: str) -> str:
    """A plan as one sbatch file. further: files in addition to the plan's own. mark: placeholder for the job's number."""
    files = sorted([*run_plan.files, *further], key=_reading_order)
    end = "KIT_FILE"
    while any(end in file.text for file in files):
        end += "_"
    return render(
        "bin/single.sh",
        {
            "phases": phases(run_plan.decisions),
            "sbatch": header(run_plan.text_of("batch.sh")),
            "explained": explained(run_plan.text_of("batch.sh")),
            "mark": mark,
            "run_dir": run_plan.run_dir,
            "folders": run_plan.folders,
            "files": [{"name": f.name, "mode": f"{f.mode:o}", "text": f.text.removesuffix("\n")} for f in files],
            "end": end,
        },
    )


def _reading_order(file: PlanFile) -> int:
    """What runs, then the programs and functions that it calls, then what records the run."""
    if file.name == "manifest.json" or file.name.startswith(Plan.RECORDS):
        return 3
    return 2 if file.name.startswith("lib/") else 1 if file.name.startswith(("bin/", "code/")) else 0


def _job(asked: Asked, titan: TitanFile) -> config.Table:
    """The job file that the options describe."""
    args = titan_file.arguments(titan, asked.extra_args)
    groups = _groups(asked)
    mode = titan_file.mode(titan, args, use_ddp=asked.use_ddp, groups_asked=bool(groups))
    resources = {"nodes": asked.nodes, "gpus_per_node": asked.gpus_per_node, "time": asked.time, "memory": asked.memory}
    slurm = {"account": asked.account, "partition": asked.partition, "mail_user": asked.mail_user}
    slurm |= {"mail_type": asked.mail_type, "output": asked.output, "error": asked.error}
    # TorchTitan v0.2.1 moved it.
    tables = (titan.table.get("debug"), titan.table.get("training"))
    seeds = [table["seed"] for table in tables if isinstance(table, Mapping) and table.get("seed") is not None]
    return {
        "name": asked.job_name or _name(asked.config_file),
        "launcher": LAUNCHER,
        "args": args,
        "resources": {key: value for key, value in resources.items() if value is not None},
        "slurm": {key: value for key, value in slurm.items() if value is not None},
        **({"shape": "replicas", "diloco": groups} if mode == "groups" else {"shape": "torchrun"}),
        **({"qos": asked.qos} if asked.qos else {}),
        **({"seed": seeds[0]} if seeds else {}),
    }


def _groups(asked: Asked) -> dict[str, int]:
    """The options of replica groups that were given. A group over several nodes has all GPUs of each."""
    nodes = asked.nodes_per_replica
    if nodes is not None and nodes > 1:
        return {"replicas_per_node": 1, "nodes_per_replica": nodes}
    own = {} if asked.replicas_per_node is None else {"replicas_per_node": asked.replicas_per_node}
    return own | ({} if nodes is None else {"nodes_per_replica": nodes})


def _name(file: Path) -> str:
    """A valid name made from a file's name: lower case, other characters replaced by dashes."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in file.stem.lower()).strip("-") or "job"


def _with_defaults(sources: Sources) -> Sources:
    """The sources with values that a single file needs, and that neither the options nor the cluster set."""
    merged = sources.merged()
    slurm = merged.get("slurm", {})
    missing = {} if slurm.get("output") else {"output": _OUTPUT}
    if slurm.get("mail_user") and not slurm.get("mail_type"):
        missing["mail_type"] = _MAIL_TYPE
    groups, asked = merged.get("diloco"), merged.get("resources", {}).get("gpus_per_node")
    gpus = asked if isinstance(asked, int) else sources.place.node.gpus
    number = (
        {}
        if groups is None or "replicas_per_node" in groups
        else {"replicas_per_node": titan_file.groups_per_node(gpus)}
    )
    added = {"slurm": missing, **({"diloco": number} if number else {})}
    return replace(sources, files=(*sources.files, (added, sources.files[-1][1])))


def _mark(text: str) -> str:
    """A word that does not occur in the text."""
    number = 0
    while (mark := f"@JOB{number or ''}@") in text:
        number += 1
    return mark


def _placed(prepared: Prepared, mark: str) -> Plan:
    """The plan with the job's number in the name of the run folder. It avoids no nodes, since the file may be used much later."""
    run_id = f"{prepared.resolved.job.name}-{mark}"
    site = replace(prepared.site, run_id=run_id, run_dir=prepared.site.runs_dir / run_id, avoid=())
    return plan(prepared.resolved, prepared.lock, site)


def _copied(run_plan: Plan) -> list[PlanFile]:
    """The launcher's programs and the modules that they import, as files. ConfigError for a file that is not text."""
    paths = {}
    for source, folder in run_plan.copies:
        for path in sorted(source.rglob("*")):
            # launcher.toml is for the kit: the plan has it already.
            if path.is_file() and "__pycache__" not in path.parts and path.name != "launcher.toml":
                paths[f"{folder}/{path.relative_to(source)}".removeprefix("code/")] = path
    try:
        texts = {name: untrusted_files.read_bytes(path).decode() for name, path in paths.items()}
        return [PlanFile(name=f"code/{name}", text=text) for name, text in without_unused(texts).items()]
    except UnicodeDecodeError as error:
        raise ConfigError(f"launcher {run_plan.job.launcher!r} has a file that is not text: {error}") from None
