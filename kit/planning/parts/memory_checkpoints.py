"""Refuses `[checkpoint] memory_every` for jobs whose ranks cannot continue from memory: templates/kit_node/kit_memory.py."""

from __future__ import annotations

from collections.abc import Iterator

from kit.errors import ConfigError, Fault
from kit.planning import steps
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Code

_REMOVE = "remove the line"


def _check(decisions: Decisions) -> None:
    """ConfigError if the job asks for checkpoints in memory, but could not use them."""
    if decisions.job.checkpoint.memory_every and (problems := [*_problems(decisions)]):
        faults = [Fault(key="checkpoint.memory_every", problem=problem, hint=hint) for problem, hint in problems]
        raise ConfigError.of(*faults, file=decisions.resolved.job_file)


def _problems(decisions: Decisions) -> Iterator[tuple[str, str]]:
    """Each problem with its hint."""
    job, launcher = decisions.job, decisions.resolved.launcher
    if not decisions.main.plain:
        problem = "checkpoints in memory are for a job with one program, and this job has roles"
        if decisions.main.role.policy == "replica":
            problem += "; a replica group gets its state from the other groups"
        yield problem, _REMOVE
        return
    if job.is_launchers and not launcher.memory:
        yield f"the program of launcher {job.launcher!r} makes no checkpoints in memory", _REMOVE
    if not job.retry.in_allocation and not job.torchrun.max_restarts:
        yield (
            "memory lasts as long as the allocation, and this job starts no rank again in it",
            "[retry] in_allocation = 3",
        )


def _memory_step(decisions: Decisions) -> list[str]:
    """Keeps the folder of checkpoints in memory on every node, including spares; empty without `[checkpoint] memory_every`.

    It outlives a lost node: the other nodes hold the copies.
    """
    if not decisions.job.checkpoint.memory_every:
        return []
    run = decisions.paths.run
    step = steps.start_helper("kit-memory", decisions.every_node, f"{run.logs}/memory.log")
    return [*step, "--kill-on-bad-exit=0", "--wait=0", "--no-kill", f"{run.bin}/memory.sh"]


CODE = Code(constants=lambda made: {"KIT_MEMORY_ARGV": _memory_step(made)}, check=_check)
