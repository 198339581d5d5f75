"""Refuses `[retry] warm` for ranks that cannot be forked from a warm process of their node: templates/lib/warm_ranks.py."""

from __future__ import annotations

from collections.abc import Iterator

from kit.errors import ConfigError, Fault
from kit.planning.decisions import Decisions
from kit.planning.rank_files import program_words

_REMOVE = "remove the line"


def check(made: Decisions) -> None:
    """ConfigError if the job asks for warm ranks, but its ranks cannot be forked."""
    if made.job.retry.warm and (problems := [*_problems(made)]):
        faults = [Fault(key="retry.warm", problem=problem, hint=hint) for problem, hint in problems]
        raise ConfigError.of(*faults, file=made.resolved.job_file)


def _problems(made: Decisions) -> Iterator[tuple[str, str]]:
    """Each problem with its hint."""
    if not made.main.plain:
        yield "warm ranks are for a job with one program, and this job has roles", _REMOVE
        return
    if made.main.shape != "srun":
        can = "srun" in made.resolved.launcher.shapes
        yield (
            f"in the start shape {made.main.shape!r} torchrun starts the ranks: only the ranks of 'srun' can be forked warm",
            'shape = "srun"' if can else _REMOVE,
        )
        return
    words = program_words(made, made.main)
    if words[0] != made.job.python or len(words) < 2 or (words[1].startswith("-") and words[1] != "-m"):
        yield f"a warm process runs Python programs, and this job runs {words[0]!r}", 'script = "train.py"'
    step = made.job.step
    for key, value in (("gpus_per_task", step.gpus_per_task), ("gpu_bind", step.gpu_bind)):
        if value is not None:
            yield (
                f"step.{key} gives each rank GPUs that the warm process of its node does not have",
                f"remove step.{key}",
            )
    if step.mpi != "none":
        yield f"a program that starts by MPI ({step.mpi}) cannot be forked", f"{_REMOVE}, or step.mpi"
