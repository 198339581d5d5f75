"""Refuses `[retry] warm` for ranks that cannot be forked from a warm process of their node: templates/kit_node/warm_ranks.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kit.errors import ConfigError, Fault
from kit.planning import steps
from kit.planning.decisions import Decisions
from kit.planning.parts.part import Code
from kit.planning.rank_files import program_words

_REMOVE = "remove the line"


def _check(decisions: Decisions) -> None:
    """ConfigError if the job asks for warm ranks, but its ranks cannot be forked."""
    if decisions.job.retry.keep and not decisions.job.retry.warm:
        problem = "only ranks that are forked from a warm process can live on, and this job has no retry.warm"
        raise ConfigError.of(
            Fault(key="retry.keep", problem=problem, hint='retry.warm = ["torch"]'), file=decisions.resolved.job_file
        )
    if decisions.job.retry.warm and (problems := [*_problems(decisions)]):
        faults = [Fault(key="retry.warm", problem=problem, hint=hint) for problem, hint in problems]
        raise ConfigError.of(*faults, file=decisions.resolved.job_file)


def _problems(decisions: Decisions) -> Iterator[tuple[str, str]]:
    """Each problem with its hint."""
    if not decisions.main.plain:
        yield "warm ranks are for a job with one program, and this job has roles", _REMOVE
        return
    if decisions.main.shape == "torchrun":
        yield from _of_torchrun(decisions)
    words = program_words(decisions, decisions.main)
    if words[0] != decisions.job.python or len(words) < 2 or (words[1].startswith("-") and words[1] != "-m"):
        yield f"a warm process runs Python programs, and this job runs {words[0]!r}", 'script = "train.py"'
    step = decisions.job.step
    for key, value in (("gpus_per_task", step.gpus_per_task), ("gpu_bind", step.gpu_bind)):
        if value is not None:
            yield (
                f"step.{key} gives each rank GPUs that the warm process of its node does not have",
                f"remove step.{key}",
            )
    if step.mpi != "none":
        yield f"a program that starts by MPI ({step.mpi}) cannot be forked", f"{_REMOVE}, or step.mpi"


def _of_torchrun(decisions: Decisions) -> Iterator[tuple[str, str]]:
    """torchrun's options: with warm ranks there is no torchrun, and the ranks get its variables alone."""
    torchrun = decisions.job.torchrun
    if torchrun.max_restarts:
        yield (
            "the kit itself restarts warm ranks, and torchrun's own restarts (torchrun.max_restarts) have no effect",
            f"retry.in_allocation = {torchrun.max_restarts}, and remove torchrun.max_restarts",
        )
    for key in ("local_ranks_filter", "tee", "redirects", "log_dir"):
        if getattr(torchrun, key):
            yield f"warm ranks start without torchrun, and torchrun.{key} has no effect", f"remove torchrun.{key}"
    if decisions.job.rendezvous == "c10d" and not torchrun.max_restarts:
        yield "warm ranks start without torchrun, and a rendezvous 'c10d' has no effect", "remove rendezvous"


def _warm_step(decisions: Decisions) -> list[str]:
    """Starts on every node, including spares, the process from which ranks are forked; empty without `[retry] warm`.

    The ranks are its children, so it has the CPUs of all of them. If one of these processes dies, the others continue.
    """
    main = decisions.main
    if not decisions.job.retry.warm:
        return []
    srun = [
        "srun",
        "--job-name=kit-warm",
        "--overlap",
        "--mem=0",
        f"--nodes={decisions.every_node}",
        f"--ntasks={decisions.every_node}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={main.cpus_per_task * main.tasks_per_node}",
        "--mpi=none",
        "--export=ALL",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--no-kill",
        # Standard input and output carry orders and reports: templates/parts/warm_ranks/part.sh.
        f"--error={decisions.paths.run.logs}/warm.log",
        "--open-mode=append",
    ]
    return steps.contain(decisions, main, srun, f"{decisions.paths.inside.run}/worker.sh")


def _asked_by(decisions: Decisions) -> str | None:
    return "retry.warm" if decisions.job.retry.warm else None


def _constants(decisions: Decisions) -> dict[str, Any]:
    return {"KIT_WARM_ARGV": _warm_step(decisions), "KIT_WARM_RANKS": decisions.main.world_size}


CODE = Code(asked_by=_asked_by, constants=_constants, check=_check)
