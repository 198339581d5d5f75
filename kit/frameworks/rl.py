"""RL and SFT: turn `[rl]` or `[sft]` into options for the program of each role, and into the roles themselves.

A shared key sets every option that the programs' `keys` list for it, unless the role's sub-table sets that option. Values that the
kit computes (copies of the model, workers, world sizes) are passed on in the same way. The rules are those that would stop the
programs after the job has its nodes; most are also in prime-rl's RLConfig.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import tomli_w

from kit.allocation import Allocation
from kit.errors import Fault, nearest
from kit.frameworks import option_lists, program_releases
from kit.frameworks.base import Extra, Framework
from kit.frameworks.rl_option_tables import Options, all_options, holds, merged
from kit.frameworks.role_layout import derived, gpus_of, lookup, nodes_of, uneven
from kit.schema.checkpoint_and_tracking import Checkpoint
from kit.schema.job import Job
from kit.schema.launcher import Launcher
from kit.schema.rl_and_sft import Rl, Servers, Sft
from kit.schema.role_programs import Program, Programs
from kit.schema.roles import Role, filled
from kit.schema.wrong_value_messages import shown
from kit.validation import toml

FOLDER = "configs"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True, kw_only=True)
class RlSettings:
    """The resolved table of a run. options: those of each role's program. roles: in the order of the launcher."""

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
        asked = sum(gpus_of(table, 0)) if table.one_node and table.gpus_per_node is None else table.gpus_per_node
        gpus = {"gpus_per_node": asked} if asked is not None else {}
        return {"nodes": nodes_of(table) + _nodes_of_other_roles(job, set(table.tables())), **gpus}

    def faults(self, job: Job, launcher: Launcher, allocation: Allocation) -> Iterator[Fault]:
        """The faults of the table. If its set of programs is unknown, that is the only one."""
        table, known = self._table(job), launcher.programs
        if table.programs in known:
            programs, gpus = known[table.programs], allocation.gpus_per_node
            release = program_releases.chosen(job)
            yield from broken(table, programs, name=self.name, gpus=gpus, checkpoint=job.checkpoint, release=release)
            return
        near = nearest(table.programs, known) or next(iter(known), "")
        problem = f"launcher {job.launcher!r} has no programs {table.programs!r}; did you mean {near!r}?"
        yield Fault(key=f"{self.name}.programs", problem=problem, allowed=", ".join(known), hint=f'programs = "{near}"')

    def prepare(self, job: Job, launcher: Launcher, allocation: Allocation) -> Extra:
        """The roles, and a file of options for each role whose command names `{config}`."""
        table = self._table(job)
        programs, gpus = launcher.programs[table.programs], allocation.gpus_per_node
        resolved = resolve(table, programs, gpus=gpus, checkpoint=job.checkpoint)
        places = {"{python}": job.python, "{code}": "{run}/code"}
        return Extra(
            files={
                f"{FOLDER}/{name}.toml": _text(name, self.name, _with_env(name, resolved.options[name], programs, job))
                for name, role in resolved.roles.items()
                if any("{config}" in word for word in role.command or ())
            },
            roles={role: _with_job_settings(role, resolved.roles[role], job, places) for role in resolved.roles},
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


def _with_env(name: str, options: Options, programs: Programs, job: Job) -> Options:
    """The options of a role, with its [roles.<name>.env] added if the program takes variables as an option."""
    option, own = programs.roles[name].env_option, job.roles.get(name)
    if option is None or own is None or not own.env:
        return options
    said = lookup(options, option)
    return merged({option: {**own.env, **(said if isinstance(said, Mapping) else {})}}, options)


def resolve(table: Sft, programs: Programs, *, gpus: int, checkpoint: Checkpoint) -> RlSettings:
    """The options and roles of a run. gpus: the number used on each node."""
    values = _values(table, programs, checkpoint, derived(table, programs, gpus))
    options = all_options(table, programs, values, frozenset(_checkpoint(checkpoint)))
    roles = {name: _role(name, programs, table, values, options) for name in _present(table, programs)}
    return RlSettings(options=options, roles=roles)


def broken(
    table: Sft, programs: Programs, *, name: str, gpus: int, checkpoint: Checkpoint, release: str | None = None
) -> Iterator[Fault]:
    """Everything that the programs would refuse.

    name: of the table. gpus: the number used on each node. release: of programs that are not the kit's; None: any that is known.
    """
    odd = [*uneven(table, programs, gpus)]
    values = _values(table, programs, checkpoint, {} if odd else derived(table, programs, gpus))
    options = all_options(table, programs, values, frozenset(_checkpoint(checkpoint)))
    own = (*odd, *_unused_shared_keys(table, programs), *_unknown(options, programs, name))
    own = (
        *own,
        *_not_in_lists(table, programs, name, release),
        *_disagreements(options, programs, name),
        *_unstartable(table, programs),
    )
    own = (*own, *_options_of_absent_roles(table, programs), *_other_tensor_parallel(table, programs))
    yield from (replace(fault, key=f"{name}.{fault.key}") for fault in own)
    yield from _unused_checkpoint_keys(checkpoint, programs)


def _values(table: Sft, programs: Programs, checkpoint: Checkpoint, computed: Options) -> Options:
    """The shared keys. Computed values override the others."""
    return {**programs.defaults, **table.shared(), **_checkpoint(checkpoint), **computed}


def _present(table: Sft, programs: Programs) -> list[str]:
    """The roles that this run has: those whose table the job sets, and those that need none."""

    def has(key: str | None) -> bool:
        return key is not None and (bool(getattr(table, key, None)) or (key != "inference" and key in table.servers()))

    of = programs.roles
    return [name for name, one in of.items() if (one.only_with is None or has(one.only_with)) and not has(one.not_with)]


def _wandb(name: str, programs: Programs, options: Mapping[str, Options]) -> dict[str, str]:
    """Environment variables that make a role log to one common W&B run: W&B's shared mode, which needs its server."""
    targets = [target for target in programs.keys.get("wandb.project", ()) if target.startswith(f"{name}.")]
    logs = [lookup(options, target.rpartition(".")[0]) for target in targets]
    if not (programs.one_wandb_run and logs and isinstance(logs[0], Mapping)) or logs[0].get("offline"):
        return {}
    return {"WANDB_SHARED_MODE": "1", "WANDB_SHARED_LABEL": name}


def _role(name: str, programs: Programs, table: Sft, values: Options, options: Mapping[str, Options]) -> Role:
    """The role of a program, with a number of nodes if it does not share another role's.

    values: fill the placeholders of its command. options: of all roles.
    """
    program, servers = programs.roles[name], table.servers()
    given = program.model_dump(exclude_unset=True, exclude=set(Program.model_fields) - set(Role.model_fields))
    if name in servers or program.shares is None:
        given["nodes"] = servers[name].nodes if name in servers else table.num_train_nodes
    if table.one_node and (name in servers or name == "trainer"):
        train, infer = gpus_of(table, 0)
        given["gpus"] = tuple(range(infer) if name in servers else range(infer, infer + train))
    host = _shares(name, program, table)
    given |= {"shares": host} if host else {}
    given["after"] = tuple(dict.fromkeys(real for one in program.after for real in _real_names(one, servers)))
    named = {f"{{{key}}}": str(values.get(key, "none")) for key in (*programs.keys, *values)}
    named["{replicas}"] = str(servers[name].replicas) if name in servers else "1"
    given["command"] = tuple(filled(word, named) for word in program.command or ())
    given["env"] = {**program.env, **(OFFLINE if table.hub_offline else {}), **_wandb(name, programs, options)}
    return Role.model_validate(given)


def _shares(name: str, program: Program, table: Sft) -> str | None:
    """The role whose nodes this one shares; None if it has nodes of its own."""
    servers = list(table.servers())
    if table.one_node:
        return None if name == "trainer" else "trainer"
    if program.shares == "trainer" and isinstance(table, Rl) and table.orchestrator_on == "inference":
        return servers[-1]
    return servers[0] if program.shares == "inference" else program.shares


def _real_names(name: str, servers: Mapping[str, Servers]) -> list[str]:
    """The roles behind a name in launcher.toml: `inference` stands for all roles that have inference servers."""
    return list(servers) if name == "inference" else [name]


def _unstartable(table: Sft, programs: Programs) -> Iterator[Fault]:
    """Options that the programs accept but no role of this launcher can start: the job would fail or hang on its nodes."""
    for what, why in programs.refused.items():
        option, _, value = what.partition(" = ")
        if holds(table.tables(), what):
            yield Fault(key=option, problem=f"{value!r}: {why}" if value else why, hint="remove the line")


def _options_of_absent_roles(table: Sft, programs: Programs) -> Iterator[Fault]:
    """Options of roles that this run does not have: nothing would read them."""
    there = set(_present(table, programs))
    for name, options in table.tables().items():
        if options and name not in there and name not in {programs.roles[one].based_on for one in there}:
            role = programs.roles.get(name)
            problem = f"this run has no role {name!r}"
            hint = f"[sft.{role.only_with}]" if role and role.only_with else "remove the table"
            yield Fault(key=name, problem=problem, hint=hint)


def _other_tensor_parallel(table: Sft, programs: Programs) -> Iterator[Fault]:
    """A tensor parallel size in the servers' options that is not parallel.tp, from which the kit computes the layout."""
    for target in programs.keys.get("tp", ()):
        said = lookup(table.tables(), target)
        if said is not None and said != table.parallel.tp:
            problem = f"{said} differs from parallel.tp = {table.parallel.tp}, which sets the number of servers"
            yield Fault(
                key=target, problem=problem, hint=f"parallel = {{ tp = {toml(said)} }}, and remove the line here"
            )


def _checkpoint(checkpoint: Checkpoint) -> Options:
    """The job's [checkpoint] as shared keys."""
    given = checkpoint.model_dump(by_alias=True, exclude_none=True)
    return {f"checkpoint.{key}": value for key, value in given.items()}


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
        if known is not None:
            yield from option_lists.faults(name, role, given, dict.fromkeys(known, ""), ())


def _not_in_lists(table: Sft, programs: Programs, name: str, release: str | None) -> Iterator[Fault]:
    """Options in the sub-tables that programs do not have which are not the kit's."""
    if programs.option_lists is None or programs.releases is None:
        return
    lists, known = option_lists.lists_of(programs.option_lists), programs.releases.known
    for role, given in table.tables().items():
        program = programs.roles.get(role)
        listed = lists.get(program.options_of or program.based_on or role) if program else None
        if listed:
            place = f"{role}.options" if isinstance(getattr(table, role), Servers) else role
            yield from option_lists.faults(name, place, given, listed, (release,) if release in known else known)


def _disagreements(options: Mapping[str, Options], programs: Programs, name: str) -> Iterator[Fault]:
    """Options on which the roles must agree."""
    for key in ("max_steps", "temperature", "output_dir"):
        values = _values_by_option(options, programs, key)
        if len(set(values.values())) > 1:
            said = ", ".join(f"{where} = {shown(value)}" for where, value in values.items())
            first = toml(next(iter(values.values())))
            yield Fault(
                key=key,
                problem=f"the roles need the same value, and they have {said}",
                hint=f"{key} = {first} in [{name}], and remove {' and '.join(values)}",
            )
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
        value = lookup(options, target)
        if value is not None:
            found[target] = value
    return found


def _text(role: str, name: str, options: Options) -> str:
    return f"# The options of role {role}, as [{name}] of job.toml resolved to them.\n" + tomli_w.dumps(options)
