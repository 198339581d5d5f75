"""Refuses a command whose first word is a launcher of its own, such as torchrun, in a job that starts it once per rank.

Each of these launchers would begin a training of its own. Every one of them ends well, and the run's numbers are those of a smaller
world. A launcher that gets rendezvous options joins the others, and is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kit.errors import ConfigError, Fault
from kit.planning.command_words import Started, program_of
from kit.planning.decisions import Decisions
from kit.planning.placement import RolePlacement
from kit.planning.rank_files import program_words
from kit.validation import toml


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A launcher of another project. instead: the kit's launcher that does its work. joins: options with which it meets others."""

    instead: str
    joins: tuple[str, ...] = ()
    env: str = ""


_TORCHRUN = _Kind(
    instead="torchrun", joins=("--rdzv-endpoint", "--master-addr", "--node-rank", "--machine-rank"), env="PET_"
)
_MPI = _Kind(instead="mpi")
# Program, program and subcommand, or Python module -> what it is.
_KINDS = {
    "torchrun": _TORCHRUN,
    "torch.distributed.run": _TORCHRUN,
    "torch.distributed.launch": _TORCHRUN,
    "composer": _TORCHRUN,
    **dict.fromkeys(
        ("accelerate launch", "accelerate-launch", "accelerate.commands.launch"),
        _Kind(instead="accelerate", joins=("--machine-rank", "--main-process-ip"), env="ACCELERATE_"),
    ),
    **dict.fromkeys(
        ("deepspeed", "deepspeed.launcher.runner"), _Kind(instead="deepspeed", joins=("--node-rank", "--no-ssh"))
    ),
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "horovodrun"), _MPI),
    "fabric run": _Kind(instead="lightning"),
    "ray start": _Kind(instead="ray", joins=("--address",)),
    "srun": _Kind(instead="srun", joins=("--overlap",)),
}


def check(decisions: Decisions) -> None:
    """ConfigError if the ranks of a role would each start a launcher that does not know of the others."""
    if faults := [fault for placed in decisions.roles for fault in _faults(decisions, placed)]:
        raise ConfigError.of(*faults, file=decisions.resolved.job_file)


def _faults(decisions: Decisions, placed: RolePlacement) -> Iterator[Fault]:
    of_role = placed.role.command is not None
    if placed.scripts != placed.name or not (
        of_role or decisions.job.command is not None or decisions.job.module is not None
    ):
        return
    env = {**decisions.job.env, **placed.role.env}
    for started in program_of(program_words(decisions, placed), decisions.job.python):
        kind = _kind(started)
        # One process may start as many as it likes, and so may each server. But an srun in a step waits for the step's own CPUs.
        alone = (placed.world_size == 1 or placed.role.policy == "service") and started.name != "srun"
        if kind is None or alone or _joins(kind, started, env):
            continue
        key = (
            f"roles.{placed.name}.command" if of_role else "command" if decisions.job.command is not None else "module"
        )
        yield Fault(key=key, problem=_problem(started, placed), hint=_hint(decisions, placed, kind, started))


def _kind(started: Started) -> _Kind | None:
    """What the started program is; None for one that is no launcher."""
    # Sites have mpirun.openmpi, mpiexec.hydra and the like.
    name = started.name.partition(".")[0] if started.name.startswith(("mpirun.", "mpiexec.")) else started.name
    return _KINDS.get(name) or (_KINDS.get(f"{name} {started.words[0]}") if started.words else None)


def _joins(kind: _Kind, started: Started, env: Mapping[str, str]) -> bool:
    given = {word.partition("=")[0].replace("_", "-").lower() for word in started.words}
    return not given.isdisjoint(kind.joins) or bool(kind.env and any(name.startswith(kind.env) for name in env))


def _problem(started: Started, placed: RolePlacement) -> str:
    if started.name == "srun":
        return "the ranks are processes of srun already: an srun inside them waits for CPUs that they hold, for ever"
    per = "per node" if placed.world_size == placed.nodes else "per rank"
    count = placed.world_size
    return f"{started.name} starts ranks, and this job starts it {count} times, once {per}: {count} separate trainings"


def _hint(decisions: Decisions, placed: RolePlacement, kind: _Kind, started: Started) -> str:
    by_torchrun = kind.instead in ("torchrun", "accelerate")
    same = kind.instead in ("srun", decisions.job.launcher) or (by_torchrun and placed.shape == "torchrun")
    lines = [f"launcher = {toml(kind.instead)}"] if placed.plain and not same else []
    lines += ['shape = "torchrun"'] if by_torchrun and not placed.plain and placed.shape != "torchrun" else []
    lines.append(_own_program(started.words) or "in command only the words of the program itself")
    joins = f"; or {started.name} with {kind.joins[0]}" if kind.joins and started.name != "srun" else ""
    return f"{' and '.join(lines)}{joins}"


def _own_program(words: Sequence[str]) -> str:
    """The key for the program that the launcher would start: the first Python file or module among its words."""
    for place, word in enumerate(words):
        if word in ("-m", "--module") and place + 1 < len(words):
            return f"module = {toml(words[place + 1])}"
        if word.endswith(".py"):
            return f"script = {toml(word)}"
    return ""
