"""RL and SFT: turn `[rl]` or `[sft]` into options for the program of each role, and into the roles themselves.

A shared key sets every option that the programs' `keys` list for it, unless the role's sub-table sets that option. Values that the
kit computes (copies of the model, workers, world sizes) are passed on in the same way. The rules are those that would stop the
programs after the job has its nodes; most are also in prime-rl's RLConfig.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import tomli_w

from kit.allocation import Allocation
from kit.errors import Fault, nearest
from kit.frameworks.base import Extra, Framework
from kit.frameworks.nearest_multiple_or_divisor import divisor, multiple
from kit.spec.checkpoint_and_tracking import Checkpoint
from kit.spec.job import Job
from kit.spec.launcher import Launcher
from kit.spec.rl_and_sft import Rl, Sft
from kit.spec.role_programs import Programs
from kit.spec.roles import Role, filled
from kit.spec.wrong_value_messages import shown
from kit.validation import toml

FOLDER = "configs"
Options = dict[str, Any]
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """options: those of each role's program. roles: in the order of the launcher."""

    options: dict[str, Options]
    roles: dict[str, Role]


@dataclass(frozen=True, kw_only=True)
class RoleTable:
    """A framework whose table becomes roles. name: of the table. empty: the table of a job that has none."""

    name: Literal["rl", "sft"]
    empty: type[Sft]

    @property
    def tables(self) -> tuple[str, ...]:
        """The framework's one table."""
        return (self.name,)

    def resources(self, job: Job) -> dict[str, int]:
        """The nodes of the table and of the job's other roles, and `gpus_per_node` if the table sets it."""
        table = self._table(job)
        nodes = table.num_train_nodes + (table.num_infer_nodes if isinstance(table, Rl) else 0)
        gpus = {"gpus_per_node": table.gpus_per_node} if table.gpus_per_node is not None else {}
        return {"nodes": nodes + _nodes_of_other_roles(job, set(table.tables())), **gpus}

    def faults(self, job: Job, launcher: Launcher, allocation: Allocation) -> Iterator[Fault]:
        """An unknown set of programs, or all faults of the table."""
        table, known = self._table(job), launcher.programs
        if table.programs in known:
            programs, gpus = known[table.programs], allocation.gpus_per_node
            yield from broken(table, programs, name=self.name, gpus=gpus, checkpoint=job.checkpoint)
            return
        near = nearest(table.programs, known) or next(iter(known), "")
        problem = f"launcher {job.launcher!r} has no programs {table.programs!r}; did you mean {near!r}?"
        yield Fault(key=f"{self.name}.programs", problem=problem, allowed=", ".join(known), hint=f'programs = "{near}"')

    def prepare(self, job: Job, launcher: Launcher, allocation: Allocation) -> Extra:
        """The roles, and a file of options for each role whose command names `{config}`."""
        table = self._table(job)
        programs, gpus = launcher.programs[table.programs], allocation.gpus_per_node
        made = resolve(table, programs, gpus=gpus, checkpoint=job.checkpoint)
        places = {"{python}": job.python, "{code}": "{run}/code"}
        return Extra(
            files={
                f"{FOLDER}/{role}.toml": _text(role, self.name, options)
                for role, options in made.options.items()
                if any("{config}" in word for word in made.roles[role].command or ())
            },
            roles={role: _with_job_settings(role, made.roles[role], job, places) for role in made.roles},
        )

    def _table(self, job: Job) -> Sft:
        found: Sft | None = getattr(job, self.name)
        return found or self.empty()


framework: Framework = RoleTable(name="rl", empty=Rl)


def _nodes_of_other_roles(job: Job, own: set[str]) -> int:
    """The number of nodes of the job's roles that do not come from the table."""
    return sum(
        int(r.nodes or 1) for n, r in job.roles.items() if n not in own and r.shares is None and r.nodes != "rest"
    )


def _with_job_settings(name: str, role: Role, job: Job, places: Mapping[str, str]) -> Role:
    """The role with its paths filled in, with the job's arguments if it is the trainer, and with the job's own [roles.<name>]."""
    command = tuple(
        filled(word, {**places, "{config}": f"{{run}}/{FOLDER}/{name}.toml"}) for word in role.command or ()
    )
    own = job.roles[name].model_dump(exclude_unset=True) if name in job.roles else {}
    args = job.args if name == "trainer" else ()
    given = {**role.model_dump(exclude_unset=True), "command": command, "args": args, **own}
    given["env"] = {**role.env, **own.get("env", {})}
    return Role.model_validate(given)


def resolve(table: Sft, programs: Programs, *, gpus: int, checkpoint: Checkpoint) -> Settings:
    """The options and roles of a run. gpus: the number used on each node."""
    values = _values(table, programs, checkpoint, _derived(table, programs, gpus))
    roles = {role: _role(role, programs, table, values) for role in programs.roles}
    return Settings(options=_options(table, programs, values), roles=roles)


def broken(table: Sft, programs: Programs, *, name: str, gpus: int, checkpoint: Checkpoint) -> Iterator[Fault]:
    """Everything that the programs would refuse. name: of the table. gpus: the number used on each node."""
    uneven = [*_layout(table, programs, gpus), *_uneven_split(table, programs, gpus)]
    values = _values(table, programs, checkpoint, {} if uneven else _derived(table, programs, gpus))
    options = _options(table, programs, values)
    own = (
        *uneven,
        *_unused_shared_keys(table, programs),
        *_unknown(options, programs, name),
        *_disagreements(options, programs, name),
    )
    own = (*own, *_unstartable(options, programs))
    yield from (replace(fault, key=f"{name}.{fault.key}") for fault in own)
    yield from _unused_checkpoint_keys(checkpoint, programs)


def _values(table: Sft, programs: Programs, checkpoint: Checkpoint, derived: Options) -> Options:
    """The shared keys. Computed values override the others."""
    return {**programs.defaults, **table.shared(), **_checkpoint(checkpoint), **derived}


def _wandb(name: str, programs: Programs, table: Sft) -> dict[str, str]:
    """Environment variables that make a role log to one common W&B run: W&B's shared mode, which needs its server."""
    logs = any(target.startswith(f"{name}.") for target in programs.keys.get("wandb.project", ()))
    if not (programs.one_wandb_run and logs and table.wandb) or table.wandb.offline:
        return {}
    return {"WANDB_SHARED_MODE": "1", "WANDB_SHARED_LABEL": name}


def _role(name: str, programs: Programs, table: Sft, values: Options) -> Role:
    """The role of a program, with a number of nodes if it does not share another role's.

    values: fill the placeholders of its command.
    """
    program = programs.roles[name]
    given = program.model_dump(exclude_unset=True, exclude={"options"})
    if program.shares is None:
        given["nodes"] = (
            table.num_infer_nodes if isinstance(table, Rl) and name == "inference" else table.num_train_nodes
        )
    named = {f"{{{key}}}": str(value) for key, value in values.items()}
    given["command"] = tuple(filled(word, named) for word in program.command or ())
    given["env"] = {**program.env, **(OFFLINE if table.hub_offline else {}), **_wandb(name, programs, table)}
    return Role.model_validate(given)


def _layout(table: Sft, programs: Programs, gpus: int) -> Iterator[Fault]:
    """Numbers of nodes and GPUs that do not divide evenly, and layouts that the programs do not support."""
    group = table.nodes_per_fsdp_group
    if group is not None and table.num_train_nodes % group:
        problem = f"{group} does not divide num_train_nodes, {table.num_train_nodes}"
        hint = f"nodes_per_fsdp_group = {divisor(group, table.num_train_nodes)}"
        yield Fault(key="nodes_per_fsdp_group", problem=problem, hint=hint)
    if not isinstance(table, Rl):
        return
    tp, dp, nodes = table.parallel.tp, table.parallel.dp, table.num_infer_nodes
    parallel, per_node = "", f"{nodes} inference nodes x {gpus} GPUs"
    if tp > 1 and "tp" not in programs.keys:
        parallel = f"in the programs {table.programs!r} each GPU holds a whole model: only dp can be above 1"
    elif gpus and gpus % tp:
        parallel = f"{tp} does not divide gpus_per_node, {gpus}: a copy of the model stays on its node"
    elif not gpus and tp > 1:
        parallel = "a node without GPUs holds a whole model: only dp can be above 1"
    if parallel:
        yield Fault(key="parallel.tp", problem=parallel, hint=f"tp = {divisor(tp, gpus) if gpus and gpus % tp else 1}")
    elif gpus and dp is not None and tp * dp != gpus * nodes:
        problem = f"tp {tp} x dp {dp} = {tp * dp} is not {per_node} = {gpus * nodes}"
        yield Fault(key="parallel.dp", problem=problem, hint=f"dp = {gpus * nodes // tp}")
    elif not gpus and dp is not None and dp % nodes:
        problem = f"{dp} copies cannot be shared out evenly over {nodes} inference nodes"
        yield Fault(key="parallel.dp", problem=problem, hint=f"dp = {multiple(dp, nodes)}")


def _split(table: Sft, programs: Programs) -> dict[str, int]:
    """How many ranks share a sequence, by option. Only options that the sub-tables set to more than 1."""
    tables = table.tables()
    found = {option: _lookup(tables, option) for option in programs.split}
    return {option: value for option, value in found.items() if isinstance(value, int) and value > 1}


def _uneven_split(table: Sft, programs: Programs, gpus: int) -> Iterator[Fault]:
    ranks = table.num_train_nodes * max(gpus, 1)
    for option, share in _split(table, programs).items():
        if ranks % share:
            hint = f"{option.rpartition('.')[2]} = {divisor(share, ranks)}"
            yield Fault(key=option, problem=f"{share} does not divide the trainer's {ranks} ranks", hint=hint)


def _unstartable(options: Mapping[str, Options], programs: Programs) -> Iterator[Fault]:
    """Option values that the programs accept but no role of this launcher can start: the job would fail or hang on its nodes."""
    for what, why in programs.refused.items():
        option, _, value = what.partition(" = ")
        if str(_lookup(options, option)) == value:
            yield Fault(key=option, problem=f"{value!r}: {why}", hint="remove the line")


def _lookup(tables: Mapping[str, Any], path: str) -> Any:
    """The value at `role.option`; None if it is not set."""
    found: Any = tables
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _derived(table: Sft, programs: Programs, gpus: int) -> Options:
    """Values that follow from the layout, under the names that `keys` may use."""
    split = prod(_split(table, programs).values())
    found: Options = {"train_workers": table.num_train_nodes * max(gpus, 1) // split}
    if split > 1:
        found["split"] = split
    if table.nodes_per_fsdp_group is not None:
        found["dp_replicate"] = table.num_train_nodes // table.nodes_per_fsdp_group
    if isinstance(table, Rl):
        tp, nodes = table.parallel.tp, table.num_infer_nodes
        dp = table.parallel.dp or max(gpus * nodes // tp, nodes)
        found |= {"tp": tp, "dp": dp, "dp_per_node": dp // nodes, "inference_servers": nodes}
        if table.weight_broadcast == "nccl":
            found["inference_world_size"] = dp * tp  # only the NCCL broadcast has this option
    return found


def _checkpoint(checkpoint: Checkpoint) -> Options:
    """The job's [checkpoint] as shared keys."""
    given = checkpoint.model_dump(by_alias=True, exclude_none=True)
    return {f"checkpoint.{key}": value for key, value in given.items()}


def _options(table: Sft, programs: Programs, values: Options) -> dict[str, Options]:
    """Each role's options: its sub-table, and the shared values that the sub-table does not set."""
    tables = table.tables()
    options = {role: copy.deepcopy(tables.get(role, {})) for role in programs.roles}
    for key, value in values.items():
        for target in programs.keys.get(key, ()):
            role, _, path = target.partition(".")
            if role in options:
                named = f"{value}-{role}" if key == "wandb.name" and not programs.one_wandb_run else value
                _fill(options[role], path.split("."), named)
    return options


def _fill(options: Options, path: list[str], value: Any) -> None:
    """Set an option that is not set. Do nothing if the path runs through a value: the sub-table's own check reports that."""
    for part in path[:-1]:
        options = options.setdefault(part, {})
        if not isinstance(options, dict):
            return
    options.setdefault(path[-1], value)


def _unused_shared_keys(table: Sft, programs: Programs) -> Iterator[Fault]:
    """Shared keys that none of these programs takes: the programs would silently ignore them."""
    for key in table.shared():
        if key not in programs.keys:
            known = ", ".join(k for k in programs.keys if k in type(table).model_fields)
            yield Fault(key=key, problem="none of these programs takes this key", allowed=known, hint="remove the line")


def _unused_checkpoint_keys(checkpoint: Checkpoint, programs: Programs) -> Iterator[Fault]:
    """Keys of the job's [checkpoint] that none of these programs takes."""
    for key in _checkpoint(checkpoint):
        if key not in programs.keys:
            allowed = ", ".join(k for k in programs.keys if k.startswith("checkpoint."))
            yield Fault(
                key=key, problem="none of these programs takes this key", allowed=allowed, hint="remove the line"
            )


def _unknown(options: Mapping[str, Options], programs: Programs, name: str) -> Iterator[Fault]:
    """Options that a program does not have. Programs whose options are not known are skipped."""
    for role, given in options.items():
        known = programs.roles[role].options
        if known is None:
            continue
        for path, value in _flat(given):
            if path not in known:
                near = nearest(path, known)
                problem = "its program has no such option" + (f"; did you mean {near!r}?" if near else "")
                hint = f"[{name}.{role}]\n       {near} = {toml(value)}" if near else "remove the line"
                yield Fault(
                    key=f"{role}.{path}", problem=problem, allowed="" if near else _first_names(known), hint=hint
                )


def _disagreements(options: Mapping[str, Options], programs: Programs, name: str) -> Iterator[Fault]:
    """Options on which the roles must agree."""
    for key in ("max_steps", "temperature", "output_dir"):
        found = _values_by_option(options, programs, key)
        if len(set(found.values())) > 1:
            said = ", ".join(f"{where} = {shown(value)}" for where, value in found.items())
            first = toml(next(iter(found.values())))
            yield Fault(key=key, problem=f"the roles need one value: {said}", hint=f"[{name}]\n       {key} = {first}")
    lengths = _values_by_option(options, programs, "seq_len")
    trainer = next((value for where, value in lengths.items() if where.startswith("trainer.")), None)
    for where, value in lengths.items():
        if trainer is not None and value > trainer:
            problem = (
                f"{value} is above the trainer's {trainer}: the trainer reads every sample that the other roles make"
            )
            yield Fault(key=where, problem=problem, hint=f"seq_len = {trainer}")


def _values_by_option(options: Mapping[str, Options], programs: Programs, key: str) -> Options:
    """Option that received a shared key -> its value now."""
    found = {}
    for target in programs.keys.get(key, ()):
        value = _lookup(options, target)
        if value is not None:
            found[target] = value
    return found


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _first_names(known: tuple[str, ...]) -> str:
    return ", ".join(known[:12]) + (", …" if len(known) > 12 else "")


def _text(role: str, name: str, options: Options) -> str:
    return f"# The options of role {role}, as [{name}] of job.toml resolved to them.\n" + tomli_w.dumps(options)
