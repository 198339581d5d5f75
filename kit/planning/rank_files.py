"""Files that a role's ranks run: worker.sh maps Slurm's variables to ranks, program.sh has the program and its environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kit.errors import ConfigError, Fault
from kit.planning.decisions import Decisions
from kit.planning.placement import RolePlacement
from kit.render import render
from kit.schema.job import MOST_BYTES_OF_A_STRING
from kit.schema.roles import Role, filled
from kit.schema.run_paths import CONTAINER_RUN

# For a debugged job. It overrides a cluster's NCCL_DEBUG = "WARN", which is meant for normal runs. lib/debug.sh sets the other
# variables.
_DEBUGGED = {"NCCL_DEBUG": "INFO"}
# Enroot starts a login shell, whose /etc/profile resets PATH, and it drops these locale variables (docs/internals/learnt.md#pyxis).
# The worker sets the image's values again.
_LOST_ENV = ("PATH", "LANG", "LC_ALL")
# A quarter of the stack's limit, which is 8 MiB by default, for all strings and a pointer to each (execve(2)).
MOST_BYTES = 2 << 20
# Left to what Slurm, the container and the kit itself put into a rank's environment.
OTHERS_BYTES = 256 << 10
_POINTER = 8
_FILE_HINT = "write the long values into a file beside the job file, and pass its path"


def worker(decisions: Decisions, placed: RolePlacement) -> str:
    """The text of worker.sh."""
    return render(
        "bin/worker.sh",
        {
            "folder": placed.folder,
            # No torchrun starts warm ranks: each is a task of srun, with the variables that torchrun sets.
            "shape": "srun" if decisions.job.retry.warm else placed.shape,
            "as_torchrun": placed.shape == "torchrun" and bool(decisions.job.retry.warm),
            "rendezvous": decisions.job.rendezvous,
            "nodes": placed.nodes,
            "ranks_per_node": placed.ranks_per_node,
            "cpus_per_rank": placed.cpus_per_rank,
            "python": decisions.job.python,
            "workdir": decisions.paths.inside.workdir,
            "cache_dir": decisions.paths.inside.cache,
            "seed": decisions.job.seed,
            "max_restarts": decisions.job.torchrun.max_restarts,
            "torchrun_options": decisions.job.torchrun.options(log_dir=f"{decisions.paths.inside.run}/logs/torchrun"),
        },
    )


def program(decisions: Decisions, placed: RolePlacement) -> str:
    """The text of program.sh. ConfigError when neither job nor launcher names a program."""
    role, words = placed.role, program_words(decisions, placed)
    if role.command is not None or role.script is not None:
        return _text(decisions, words, role)
    return _text(
        decisions,
        words,
        role,
        rank_args=decisions.job.rank_args,
        warm=decisions.job.retry.warm,
        keep=decisions.job.retry.keep,
    )


def program_words(decisions: Decisions, placed: RolePlacement) -> list[str]:
    """The program of a role's ranks and its arguments. Errors are those of `program`."""
    role = placed.role
    if role.command is not None:
        words = _filled(decisions, role.command)
    elif role.script is not None:
        words = [decisions.job.python, _of_job(decisions, role.script)]
    else:
        start = [filled(word, {"{run}": decisions.paths.inside.run}) for word in decisions.extra.start]
        words = [*start, *_own(decisions)]
    return [*words, *role.args]


def all_reduce(decisions: Decisions) -> str:
    """The program of the preflight's all-reduce: it runs with the same ranks, environment and container as the job's program."""
    return _text(decisions, [decisions.job.python, f"{decisions.paths.inside.run}/bin/all_reduce.py"], Role())


def image_env(decisions: Decisions, placed: RolePlacement) -> str:
    """The text of image-env.sh: the image's short digest, and its values of the variables that Enroot loses."""
    digest = decisions.pins.find_pin(placed).digest.removeprefix("sha256:")
    contained = {"containerized": decisions.runtime.containerized, "image_env": lost_env(decisions, placed)}
    return render("data/image-env.sh", {**contained, "image_short": digest[:12]})


def lost_env(decisions: Decisions, placed: RolePlacement) -> list[tuple[str, str]]:
    """The image's values of the variables that Enroot loses, by name."""
    pin = decisions.pins.find_pin(placed)
    env = pin.lock.config.env if pin.lock else {}
    return [(name, env[name]) for name in _LOST_ENV if name in env]


def program_env(decisions: Decisions, own: Mapping[str, str], *, gpus: bool) -> dict[str, str]:
    """The environment of a role's program. own: what only this role sets. gpus: whether the role may use the job's GPUs."""
    job = decisions.job
    network = {**decisions.resolved.cluster.network, **(_DEBUGGED if job.debug else {})}
    device = {"KIT_DEVICE": "cuda"} if gpus and decisions.has_gpus else {}
    drawn = job.metrics.env(run_id=decisions.site.run_id, run_dir=decisions.paths.inside.run)
    return {**network, **device, **job.checkpoint.env(), **job.profile.env(), **drawn, **job.env, **own}


def _own(decisions: Decisions) -> list[str]:
    """The job's program and its arguments."""
    job, launcher, run = decisions.job, decisions.resolved.launcher, decisions.paths.inside.run
    own = [filled(word, {"{run}": run}) for word in decisions.extra.args]
    if job.command is not None:
        return [*_filled(decisions, job.command), *own, *job.args]
    if job.module is not None:
        return [job.python, "-m", job.module, *own, *job.args]
    if job.script is not None and job.is_launchers:
        script = job.script.replace(CONTAINER_RUN, run, 1)
    elif job.script is not None:
        script = _of_job(decisions, job.script)
    elif launcher.script is not None:
        script = f"{run}/code/{launcher.script}"
    else:
        problem = f"the job names no program to run, and launcher {job.launcher!r} brings none of its own"
        raise ConfigError.of(
            Fault(key="script", problem=problem, hint='script = "train.py"'), file=decisions.resolved.job_file
        )
    return [job.python, script, *own, *job.args]


def _filled(decisions: Decisions, command: tuple[str, ...]) -> list[str]:
    inside = decisions.paths.inside
    return [filled(word, {"{run}": inside.run, "{workspace}": inside.workspace}) for word in command]


def _of_job(decisions: Decisions, script: str) -> str:
    """A script's path as the ranks see it. Relative paths are relative to the job's workspace."""
    return script if script.startswith("/") else f"{decisions.paths.inside.workspace}/{script}"


def _text(
    decisions: Decisions,
    words: list[str],
    role: Role,
    *,
    rank_args: Mapping[str, str] | None = None,
    warm: Sequence[str] = (),
    keep: bool = False,
) -> str:
    job, env = decisions.job, program_env(decisions, role.env, gpus=role.gpus != ())
    ranks = [word for pair in (rank_args or {}).items() for word in pair]
    check_size([*words, *ranks], env, file=decisions.resolved.job_file)
    variables = {"program": words, "program_env": [f"{n}={v}" for n, v in env.items()], "rank_args": ranks}
    memory = bool(job.checkpoint.memory_every)
    return render("data/program.sh", {**variables, "warm": warm, "keep": keep, "memory": memory})


def check_size(words: Sequence[str], env: Mapping[str, str], *, file: str) -> None:
    """Refuse a program that Linux would not start: execve(2) fails on the nodes with E2BIG.

    ConfigError if the program's arguments and variables are too long for one string, or too many for one program.
    """
    sizes = [("args", word, _size(word)) for word in words]
    sizes += [(f"env.{name}", name, _size(f"{name}={value}")) for name, value in env.items()]
    faults = [
        Fault(
            key=key,
            problem=f"{size:,} bytes are more than Linux passes in one string ({MOST_BYTES_OF_A_STRING:,})",
            hint=_FILE_HINT,
        )
        for key, _, size in sizes
        if size > MOST_BYTES_OF_A_STRING
    ]
    total, most = sum(size + _POINTER for _, _, size in sizes), MOST_BYTES - OTHERS_BYTES
    if total > most and not faults:
        larger = "env" if sum(size for key, _, size in sizes if key != "args") * 2 > total else "args"
        given, limit = f"{total / 1e6:.2f} MB", f"{most / 1e6:.2f} MB"
        problem = f"the program's arguments and variables are {given}; Linux passes {limit} beside those of Slurm"
        faults = [Fault(key=larger, problem=problem, hint=_FILE_HINT)]
    if faults:
        raise ConfigError.of(*faults, file=file)


def _size(text: str) -> int:
    return len(text.encode(errors="surrogateescape")) + 1
