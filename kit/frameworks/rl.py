"""RL and SFT: `[rl]` or `[sft]`, resolved into one table of options for each role's program, and into the roles themselves.

A shared key goes to every option that the programs' `keys` name for it, unless the sub-table says otherwise. What the kit works
out (copies of the model, workers, world sizes) flows the same way. The rules are those that would stop the programs after they
had their nodes; prime-rl's RLConfig has most of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from kit.allocation import Allocation
from kit.errors import ConfigError, Fault, did_you_mean
from kit.frameworks import Extra
from kit.spec.job import Job
from kit.spec.launcher import Launcher
from kit.spec.programs import Program, Programs
from kit.spec.rl import Rl, Sft
from kit.spec.roles import Role, filled
from kit.spec.training import Checkpoint

FOLDER = "configs"
Options = dict[str, Any]
# Key, what it is, what is allowed, what to try.
Broken = tuple[str, object, str, str]
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """options: of each role's program. roles: in the order in which the launcher says them."""

    options: dict[str, Options]
    roles: dict[str, Role]


def prepare(job: Job, allocation: Allocation, *, launcher: Launcher, file: str) -> Extra:
    """The roles of [rl], and a file of options for each."""
    return prepared("rl", job.rl or Rl(), job, allocation, launcher=launcher, file=file)


def nodes(job: Job) -> int:
    """Those of the trainer and of the servers, and those that the job's own roles have besides."""
    table = job.rl or Rl()
    return table.num_train_nodes + table.num_infer_nodes + others(job, set(table.tables()))


def gpus_per_node(job: Job) -> int | None:
    """As [rl] says it."""
    return job.rl.gpus_per_node if job.rl else None


def others(job: Job, own: set[str]) -> int:
    """Nodes of the job's roles that are not the table's own."""
    return sum(
        int(r.nodes or 1) for n, r in job.roles.items() if n not in own and r.shares is None and r.nodes != "rest"
    )


def prepared(name: str, table: Sft, job: Job, allocation: Allocation, *, launcher: Launcher, file: str) -> Extra:
    """What a table adds to a job. name: of the table, 'rl' or 'sft'."""
    known = launcher.programs
    if table.programs not in known:
        hint = did_you_mean(table.programs, known)
        raise ConfigError.of(
            Fault(file=file, key=f"{name}.programs", got=repr(table.programs), allowed=", ".join(known), hint=hint)
        )
    made = resolve(
        table, known[table.programs], name=name, gpus=allocation.gpus_per_node, checkpoint=job.checkpoint, file=file
    )
    places = {"{python}": job.python, "{code}": "{run}/code"}
    return Extra(
        files={
            f"{FOLDER}/{role}.toml": _text(role, name, options)
            for role, options in made.options.items()
            if any("{config}" in word for word in made.roles[role].command or ())
        },
        roles={role: _as_asked(role, made.roles[role], job, places) for role in made.roles},
    )


def _as_asked(name: str, role: Role, job: Job, places: Mapping[str, str]) -> Role:
    """The role with its paths filled in, the job's arguments where it trains, and what the job's own [roles.<name>] says."""
    command = tuple(
        filled(word, {**places, "{config}": f"{{run}}/{FOLDER}/{name}.toml"}) for word in role.command or ()
    )
    own = job.roles[name].model_dump(exclude_unset=True) if name in job.roles else {}
    args = job.args if name == "trainer" else ()
    given = {**role.model_dump(exclude_unset=True), "command": command, "args": args, **own}
    given["env"] = {**role.env, **own.get("env", {})}
    return Role.model_validate(given)


def resolve(table: Sft, programs: Programs, *, name: str, gpus: int, checkpoint: Checkpoint, file: str) -> Resolved:
    """The options and roles of a run. ConfigError with every fault at once.

    name: of the table, for faults. gpus: used on each node.
    """
    broken = [*_layout(table, programs, gpus)]
    derived = _derived(table, gpus) if not broken else {}
    values = {**programs.defaults, **table.shared(), **_checkpoint(checkpoint), **derived}
    options = _options(table, programs, values)
    broken += [*_nowhere(table, programs), *_unknown(options, programs), *_across(options, programs)]
    faults = [Fault(file=file, key=f"{name}.{k}", got=str(got), allowed=why, hint=hint) for k, got, why, hint in broken]
    faults += _unsaved(checkpoint, programs, file)
    if faults:
        raise ConfigError.of(*faults)
    return Resolved(
        options=options, roles={role: _role(role, program, table, values) for role, program in programs.roles.items()}
    )


def _role(name: str, program: Program, table: Sft, values: Options) -> Role:
    """A program as a role with its nodes, where it has nodes of its own. values: what its words may name."""
    given = program.model_dump(exclude_unset=True, exclude={"options"})
    if program.shares is None:
        given["nodes"] = (
            table.num_infer_nodes if isinstance(table, Rl) and name == "inference" else table.num_train_nodes
        )
    named = {f"{{{key}}}": str(value) for key, value in values.items()}
    given["command"] = tuple(filled(word, named) for word in program.command or ())
    given["env"] = {**program.env, **(OFFLINE if table.hub_offline else {})}
    return Role.model_validate(given)


def _layout(table: Sft, programs: Programs, gpus: int) -> Iterator[Broken]:
    """Nodes and GPUs that do not divide, or that the programs do not divide."""
    group = table.nodes_per_fsdp_group
    if group is not None and table.num_train_nodes % group:
        yield "nodes_per_fsdp_group", group, f"a divisor of num_train_nodes, {table.num_train_nodes}", ""
    if not isinstance(table, Rl):
        return
    tp, dp, nodes = table.parallel.tp, table.parallel.dp, table.num_infer_nodes
    if tp > 1 and "tp" not in programs.keys:
        yield "parallel.tp", tp, f"1: each GPU holds a whole model in the programs {table.programs!r}", "say dp alone"
    elif gpus and gpus % tp:
        yield "parallel.tp", tp, f"a divisor of gpus_per_node, {gpus}: a copy of the model stays on its node", ""
    elif gpus and dp is not None and tp * dp != gpus * nodes:
        got = f"tp {tp} x dp {dp} = {tp * dp}"
        yield "parallel.dp", got, f"{gpus * nodes}: {nodes} inference nodes x {gpus} GPUs", f"dp = {gpus * nodes // tp}"
    elif not gpus and tp > 1:
        yield "parallel.tp", tp, "1 without GPUs", ""
    elif not gpus and dp is not None and dp % nodes:
        yield "parallel.dp", dp, f"a multiple of num_infer_nodes, {nodes}", ""


def _derived(table: Sft, gpus: int) -> Options:
    """What follows from the layout, under the names that `keys` may use."""
    found: Options = {"train_workers": table.num_train_nodes * max(gpus, 1)}
    if table.nodes_per_fsdp_group is not None:
        found["dp_replicate"] = table.num_train_nodes // table.nodes_per_fsdp_group
    if isinstance(table, Rl):
        tp, nodes = table.parallel.tp, table.num_infer_nodes
        dp = table.parallel.dp or max(gpus * nodes // tp, nodes)
        found |= {"tp": tp, "dp": dp, "dp_per_node": dp // nodes, "inference_servers": nodes}
        if table.weight_broadcast == "nccl":
            found["inference_world_size"] = dp * tp  # an option of that kind of broadcast alone
    return found


def _checkpoint(checkpoint: Checkpoint) -> Options:
    """The job's [checkpoint] is a shared key as well."""
    given = checkpoint.model_dump(by_alias=True, exclude_none=True)
    return {f"checkpoint.{key}": value for key, value in given.items()}


def _options(table: Sft, programs: Programs, values: Options) -> dict[str, Options]:
    """Each role's options: its sub-table, and of the shared values those that it does not say."""
    tables = table.tables()
    options = {role: copy.deepcopy(tables.get(role, {})) for role in programs.roles}
    for key, value in values.items():
        for target in programs.keys.get(key, ()):
            role, _, path = target.partition(".")
            if role in options:
                named = f"{value}-{role}" if key == "wandb.name" else value
                _fill(options[role], path.split("."), named)
    return options


def _fill(options: Options, path: list[str], value: Any) -> None:
    """Set what is not set; what stands in the way of a path is the sub-table's own business."""
    for part in path[:-1]:
        options = options.setdefault(part, {})
        if not isinstance(options, dict):
            return
    options.setdefault(path[-1], value)


def _nowhere(table: Sft, programs: Programs) -> Iterator[Broken]:
    """Shared keys that none of these programs takes: it would be as if they had not been said."""
    for key in table.shared():
        if key not in programs.keys and not (key == "tokenizer" and table.tokenizer is None):
            known = ", ".join(k for k in programs.keys if k in type(table).model_fields)
            yield key, "a value", f"of the shared keys, these programs take {known}", ""


def _unsaved(checkpoint: Checkpoint, programs: Programs, file: str) -> Iterator[Fault]:
    """The same of the job's [checkpoint]."""
    for key in _checkpoint(checkpoint):
        if key not in programs.keys:
            allowed = ", ".join(k for k in programs.keys if k.startswith("checkpoint."))
            yield Fault(file=file, key=key, got="a value", allowed=f"these programs take {allowed}")


def _unknown(options: Mapping[str, Options], programs: Programs) -> Iterator[Broken]:
    """Options that a program does not have, where its options are known."""
    for role, given in options.items():
        known = programs.roles[role].options
        if known is None:
            continue
        for path in _paths(given):
            if path not in known:
                hint = did_you_mean(path, known)
                yield f"{role}.{path}", "an option that its program does not have", _few(known), hint


def _across(options: Mapping[str, Options], programs: Programs) -> Iterator[Broken]:
    """What the roles must agree on."""
    for key in ("max_steps", "temperature", "output_dir"):
        found = _of_roles(options, programs, key)
        if len(set(found.values())) > 1:
            got = ", ".join(f"{where} {value}" for where, value in found.items())
            yield key, got, "one value for all roles", "say it once, as a shared key"
    lengths = _of_roles(options, programs, "seq_len")
    trainer = next((value for where, value in lengths.items() if where.startswith("trainer.")), None)
    for where, value in lengths.items():
        if trainer is not None and value > trainer:
            yield where, value, f"at most the trainer's, {trainer}: it trains on what the others make", ""


def _of_roles(options: Mapping[str, Options], programs: Programs, key: str) -> Options:
    """Where a shared key has gone -> the value that stands there now."""
    found = {}
    for target in programs.keys.get(key, ()):
        role, *path = target.split(".")
        value: Any = options.get(role)
        for part in path:
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            found[target] = value
    return found


def _paths(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _few(known: tuple[str, ...]) -> str:
    return ", ".join(known[:12]) + (", …" if len(known) > 12 else "")


def _text(role: str, name: str, options: Options) -> str:
    return f"# The options of role {role}, as [{name}] of job.toml resolved to them.\n" + tomli_w.dumps(options)
