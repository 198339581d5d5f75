"""RL and SFT: `[rl]` or `[sft]`, resolved into one table of options for each role's program, and into the roles themselves.

A shared key goes to every option that the programs' `keys` name for it, unless the sub-table says otherwise. What the kit works
out (copies of the model, workers, world sizes) flows the same way. The rules are those that would stop the programs after they
had their nodes; prime-rl's RLConfig has most of them.
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
    """options: of each role's program. roles: in the order in which the launcher says them."""

    options: dict[str, Options]
    roles: dict[str, Role]


@dataclass(frozen=True, kw_only=True)
class RoleTable:
    """A framework whose table becomes roles. name: of the table. empty: the table where a job says nothing."""

    name: Literal["rl", "sft"]
    empty: type[Sft]

    @property
    def tables(self) -> tuple[str, ...]:
        """See Framework."""
        return (self.name,)

    def resources(self, job: Job) -> dict[str, int]:
        """See Framework. Nodes: the table's, and those that the job's own roles have besides."""
        table = self._table(job)
        nodes = table.num_train_nodes + (table.num_infer_nodes if isinstance(table, Rl) else 0)
        gpus = {"gpus_per_node": table.gpus_per_node} if table.gpus_per_node is not None else {}
        return {"nodes": nodes + _others(job, set(table.tables())), **gpus}

    def faults(self, job: Job, launcher: Launcher, allocation: Allocation) -> Iterator[Fault]:
        """See Framework."""
        table, known = self._table(job), launcher.programs
        if table.programs in known:
            programs, gpus = known[table.programs], allocation.gpus_per_node
            yield from broken(table, programs, name=self.name, gpus=gpus, checkpoint=job.checkpoint)
            return
        near = nearest(table.programs, known) or next(iter(known), "")
        problem = f"launcher {job.launcher!r} has no programs {table.programs!r}; did you mean {near!r}?"
        yield Fault(key=f"{self.name}.programs", problem=problem, allowed=", ".join(known), hint=f'programs = "{near}"')

    def prepare(self, job: Job, launcher: Launcher, allocation: Allocation) -> Extra:
        """See Framework. The roles, and a file of options for each."""
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
            roles={role: _as_asked(role, made.roles[role], job, places) for role in made.roles},
        )

    def _table(self, job: Job) -> Sft:
        found: Sft | None = getattr(job, self.name)
        return found or self.empty()


framework: Framework = RoleTable(name="rl", empty=Rl)


def _others(job: Job, own: set[str]) -> int:
    """Nodes of the job's roles that are not the table's own."""
    return sum(
        int(r.nodes or 1) for n, r in job.roles.items() if n not in own and r.shares is None and r.nodes != "rest"
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


def resolve(table: Sft, programs: Programs, *, gpus: int, checkpoint: Checkpoint) -> Settings:
    """The options and roles of a run. gpus: used on each node."""
    values = _values(table, programs, checkpoint, _derived(table, programs, gpus))
    roles = {role: _role(role, programs, table, values) for role in programs.roles}
    return Settings(options=_options(table, programs, values), roles=roles)


def broken(table: Sft, programs: Programs, *, name: str, gpus: int, checkpoint: Checkpoint) -> Iterator[Fault]:
    """All that the programs would refuse. name: of the table. gpus: used on each node."""
    uneven = [*_layout(table, programs, gpus), *_uneven_split(table, programs, gpus)]
    values = _values(table, programs, checkpoint, {} if uneven else _derived(table, programs, gpus))
    options = _options(table, programs, values)
    own = (*uneven, *_nowhere(table, programs), *_unknown(options, programs, name), *_across(options, programs, name))
    own = (*own, *_unstartable(options, programs))
    yield from (replace(fault, key=f"{name}.{fault.key}") for fault in own)
    yield from _unsaved(checkpoint, programs)


def _values(table: Sft, programs: Programs, checkpoint: Checkpoint, derived: Options) -> Options:
    """The shared keys; those that are worked out win."""
    return {**programs.defaults, **table.shared(), **_checkpoint(checkpoint), **derived}


def _wandb(name: str, programs: Programs, table: Sft) -> dict[str, str]:
    """What makes a role log to the run of all: W&B's shared mode, which needs its server."""
    logs = any(target.startswith(f"{name}.") for target in programs.keys.get("wandb.project", ()))
    if not (programs.one_wandb_run and logs and table.wandb) or table.wandb.offline:
        return {}
    return {"WANDB_SHARED_MODE": "1", "WANDB_SHARED_LABEL": name}


def _role(name: str, programs: Programs, table: Sft, values: Options) -> Role:
    """A program as a role with its nodes, where it has nodes of its own. values: what its words may name."""
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
    """Nodes and GPUs that do not divide, or that the programs do not divide."""
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
    """How many ranks share a sequence, by the options that say it: those alone that the sub-tables set to more than one."""
    tables = table.tables()
    found = {option: _at(tables, option) for option in programs.split}
    return {option: value for option, value in found.items() if isinstance(value, int) and value > 1}


def _uneven_split(table: Sft, programs: Programs, gpus: int) -> Iterator[Fault]:
    ranks = table.num_train_nodes * max(gpus, 1)
    for option, share in _split(table, programs).items():
        if ranks % share:
            hint = f"{option.rpartition('.')[2]} = {divisor(share, ranks)}"
            yield Fault(key=option, problem=f"{share} does not divide the trainer's {ranks} ranks", hint=hint)


def _unstartable(options: Mapping[str, Options], programs: Programs) -> Iterator[Fault]:
    """What the programs take, and no role of theirs here can start: they would refuse it on their nodes, or wait."""
    for what, why in programs.refused.items():
        option, _, value = what.partition(" = ")
        if str(_at(options, option)) == value:
            yield Fault(key=option, problem=f"{value!r}: {why}", hint="remove the line")


def _at(tables: Mapping[str, Any], path: str) -> Any:
    """The value at `role.option`; None where nothing is."""
    found: Any = tables
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _derived(table: Sft, programs: Programs, gpus: int) -> Options:
    """What follows from the layout, under the names that `keys` may use."""
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
                named = f"{value}-{role}" if key == "wandb.name" and not programs.one_wandb_run else value
                _fill(options[role], path.split("."), named)
    return options


def _fill(options: Options, path: list[str], value: Any) -> None:
    """Set what is not set. A value where the path needs a table is left: the sub-table's own check reports it."""
    for part in path[:-1]:
        options = options.setdefault(part, {})
        if not isinstance(options, dict):
            return
    options.setdefault(path[-1], value)


def _nowhere(table: Sft, programs: Programs) -> Iterator[Fault]:
    """Shared keys that none of these programs takes: they would be silently ignored."""
    for key in table.shared():
        if key not in programs.keys:
            known = ", ".join(k for k in programs.keys if k in type(table).model_fields)
            yield Fault(key=key, problem="none of these programs takes this key", allowed=known, hint="remove the line")


def _unsaved(checkpoint: Checkpoint, programs: Programs) -> Iterator[Fault]:
    """The same of the job's [checkpoint]."""
    for key in _checkpoint(checkpoint):
        if key not in programs.keys:
            allowed = ", ".join(k for k in programs.keys if k.startswith("checkpoint."))
            yield Fault(
                key=key, problem="none of these programs takes this key", allowed=allowed, hint="remove the line"
            )


def _unknown(options: Mapping[str, Options], programs: Programs, name: str) -> Iterator[Fault]:
    """Options that a program does not have, where its options are known."""
    for role, given in options.items():
        known = programs.roles[role].options
        if known is None:
            continue
        for path, value in _flat(given):
            if path not in known:
                near = nearest(path, known)
                problem = "its program has no such option" + (f"; did you mean {near!r}?" if near else "")
                hint = f"[{name}.{role}]\n       {near} = {toml(value)}" if near else "remove the line"
                yield Fault(key=f"{role}.{path}", problem=problem, allowed="" if near else _few(known), hint=hint)


def _across(options: Mapping[str, Options], programs: Programs, name: str) -> Iterator[Fault]:
    """What the roles must agree on."""
    for key in ("max_steps", "temperature", "output_dir"):
        found = _of_roles(options, programs, key)
        if len(set(found.values())) > 1:
            said = ", ".join(f"{where} = {shown(value)}" for where, value in found.items())
            first = toml(next(iter(found.values())))
            yield Fault(key=key, problem=f"the roles need one value: {said}", hint=f"[{name}]\n       {key} = {first}")
    lengths = _of_roles(options, programs, "seq_len")
    trainer = next((value for where, value in lengths.items() if where.startswith("trainer.")), None)
    for where, value in lengths.items():
        if trainer is not None and value > trainer:
            problem = f"{value} is above the trainer's {trainer}, and it trains on what the others make"
            yield Fault(key=where, problem=problem, hint=f"seq_len = {trainer}")


def _of_roles(options: Mapping[str, Options], programs: Programs, key: str) -> Options:
    """Where a shared key has gone -> the value that is there now."""
    found = {}
    for target in programs.keys.get(key, ()):
        value = _at(options, target)
        if value is not None:
            found[target] = value
    return found


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _few(known: tuple[str, ...]) -> str:
    return ", ".join(known[:12]) + (", …" if len(known) > 12 else "")


def _text(role: str, name: str, options: Options) -> str:
    return f"# The options of role {role}, as [{name}] of job.toml resolved to them.\n" + tomli_w.dumps(options)
