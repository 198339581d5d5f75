"""`kit render --plain`: the job as one sbatch file that a person reads in a minute, and keeps without the kit.

It has what a hand-written file has: header, environment, rendezvous, ranks, GPU monitor, the signal before the time limit. Its head
says what else the kit's own run does.
"""

from __future__ import annotations

from collections.abc import Iterator

from kit.errors import ConfigError, Fault
from kit.planning import rank_files
from kit.planning.decisions import Decisions
from kit.planning.sbatch_header import explanation, sbatch_options
from kit.render import quote, render
from kit.runtimes import Container
from kit.schema.mount import Mount
from kit.schema.run_paths import CONTAINER_RUN

# Where a launcher's program is mounted.
_PROGRAMS = "/kit/launchers"
# What has no place in a file that stands alone, and what has one.
_HINT = "kit submit, or kit render without --plain"
_HINTS = {"container.runtime": "kit render --plain --no-container, or kit submit"}
_RUNTIMES = ("pyxis", "bare")


def plain_script(decisions: Decisions) -> str:
    """The file's text. ConfigError, for each reason, where a job cannot be said in such a file."""
    if problems := [*_problems(decisions)]:
        faults = [Fault(key=key, problem=problem, hint=_HINTS.get(key, _HINT)) for key, problem in problems]
        raise ConfigError.of(*faults, file=decisions.resolved.job_file)
    job, main = decisions.job, decisions.main
    options = sbatch_options(decisions)
    return render(
        "data/plain.sh",
        {
            "name": job.name,
            "folder": decisions.resolved.job_dir,
            "sbatch": [_header_line(decisions, option) for option in options],
            "explained": [*explanation(decisions)],
            "image": f"{decisions.pin.image}, {decisions.pin.digest}" if decisions.runtime.containerized else "",
            "env": [_assignment(name, value) for name, value in _environment(decisions).items()],
            "srun": _step(decisions),
            "once": _words(_contained(decisions, ["srun", "--nodes=1", "--ntasks=1", "bash", "-s"]))
            if job.once.lines
            else "",
            "once_lines": job.once.lines,
            "image_env": rank_files.lost_env(decisions, main) if decisions.runtime.containerized else [],
            "setup": (*decisions.resolved.cluster.setup, *job.setup),
            "shape": main.shape,
            "ranks_per_node": main.ranks_per_node,
            "nodes": main.nodes,
            "workdir": _workdir(decisions),
            "program": _words(_program(decisions)),
            "rank_args": [(option, variable) for option, variable in job.rank_args.items()],
            "torchrun_options": _words(job.torchrun.options()),
            "python": job.python,
            "monitor": job.monitor.enabled and bool(decisions.allocation.gpus_per_node),
            "select": job.monitor.select,
            "delay": job.monitor.delay,
            "signal": _signal(options),
            # torchrun ends at any other signal.
            "rank_signal": _rank_signal(decisions),
            "requeue": job.goes_back,
            "retries": job.goes_back or bool(job.retry.in_allocation),
        },
    )


def _problems(decisions: Decisions) -> Iterator[tuple[str, str]]:
    """Each key that a plain file cannot hold, and why."""
    job = decisions.job
    for table in decisions.job.lines.keys() - {"once"}:
        yield f"{table}.lines", f"a plain file has no lines of [{table}]"
    if not decisions.main.plain or len(decisions.roles) > 1:
        yield "roles", "a plain file starts one program, and this job has roles"
    if job.container.runtime not in _RUNTIMES:
        why = f"runtime {job.container.runtime!r} needs programs of the kit on the nodes"
        yield "container.runtime", f"{why}; a plain file works with pyxis, or without a container"
    if decisions.extra.files:
        yield (
            "launcher",
            f"launcher {job.launcher!r} reads files of the run folder: {', '.join(sorted(decisions.extra.files))}",
        )
    if job.secrets.env or job.secrets.file:
        yield "secrets", "a file that is kept must not hold secrets"
    for word in (*_program(decisions), *_environment(decisions).values()) if decisions.main.plain else ():
        if word.startswith(decisions.paths.inside.run):
            yield "args", f"{word!r} is a path in the run folder, and a plain file has none"
    if job.rendezvous != "static":
        yield "rendezvous", f"rendezvous {job.rendezvous!r} needs the kit's batch script"


def _header_line(decisions: Decisions, option: str) -> str:
    """The header's line. The log is beside the job, for there is no run folder."""
    if option == f"--output={decisions.paths.run.batch_log}":
        return f"--output={decisions.resolved.job_dir}/%x-%j.log"
    return option


def _environment(decisions: Decisions) -> dict[str, str]:
    """What every rank gets, and what the kit's worker script would set."""
    own = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": str(decisions.main.cpus_per_rank)}
    path = {"PYTHONPATH": _PROGRAMS if decisions.runtime.containerized else str(decisions.resolved.launcher_dir.parent)}
    directory = {"KIT_CHECKPOINT_DIR": f"{_workspace(decisions)}/checkpoints", "KIT_SEED": str(decisions.job.seed)}
    programs = {**path, **directory} if _has_launchers_program(decisions) else {}
    env = {
        **own,
        **programs,
        **rank_files.program_env(decisions, decisions.main.role.env, gpus=decisions.main.role.gpus != ()),
    }
    # They need a step of the kit's on each node.
    env.pop("KIT_CHECKPOINT_MEMORY_EVERY", None)
    return env


def _assignment(name: str, value: str) -> str:
    return f"{name}={quote(value)}"


def _has_launchers_program(decisions: Decisions) -> bool:
    return decisions.job.is_launchers or bool(decisions.extra.start)


def _workspace(decisions: Decisions) -> str:
    return decisions.paths.inside.workspace if decisions.runtime.containerized else str(decisions.resolved.job_dir)


def _workdir(decisions: Decisions) -> str:
    return decisions.job.workdir or _workspace(decisions)


def _program(decisions: Decisions) -> list[str]:
    """The program's words. A launcher's own program is read where the kit is installed."""
    here, run = decisions.resolved.launcher_dir, decisions.paths.inside.run
    code = f"{_PROGRAMS}/{here.name}" if decisions.runtime.containerized else str(here)
    words = rank_files.program_words(decisions, decisions.main)
    return [
        word.replace(f"{run}/code", code).replace(decisions.paths.inside.workspace, _workspace(decisions))
        for word in words
    ]


def _step(decisions: Decisions) -> str:
    """The srun line of the ranks."""
    main = decisions.main
    srun = [
        "srun",
        f"--nodes={main.nodes}",
        f"--ntasks={main.nodes * main.tasks_per_node}",
        f"--ntasks-per-node={main.tasks_per_node}",
        f"--cpus-per-task={main.cpus_per_task}",
        f"--mpi={decisions.job.step.mpi}",
        "--kill-on-bad-exit=1",
        "--label",
        *decisions.job.step.options(),
    ]
    return _words(_contained(decisions, [*srun, "bash", "-s"]))


def _contained(decisions: Decisions, words: list[str]) -> list[str]:
    """The step in the job's container, with the job's folder in place of the run's copy of it."""
    if not decisions.runtime.containerized:
        return words
    at = words.index("bash")
    known = {CONTAINER_RUN, decisions.paths.inside.cache, decisions.paths.inside.workspace}
    mounts = [Mount(source=str(decisions.resolved.job_dir), target=decisions.paths.inside.workspace)]
    if _has_launchers_program(decisions):
        mounts.append(Mount(source=str(decisions.resolved.launcher_dir.parent), target=_PROGRAMS, flags=("ro",)))
    mounts += [mount for mount in decisions.paths.mounts if mount.target not in known]
    pin = decisions.pin
    container = Container(
        image=pin.stored if pin.lock is not None else pin.image,
        mounts=tuple(mounts),
        workdir=_workdir(decisions),
        options=decisions.job.container,
        bin=decisions.paths.run.bin,
        home=decisions.site.home,
    )
    # The kit's own FUSE programs are files of a run folder.
    return [word for word in decisions.runtime.wrap(words[:at], words[at:], container) if "BASH_ENV=" not in word]


def _words(words: list[str]) -> str:
    """Words of a command, quoted, one option a line."""
    lines = [quote(word) for word in words]
    text = ""
    for at, line in enumerate(lines):
        separator = "" if at == 0 else " \\\n    " if words[at].startswith("--") else " "
        text += separator + line
    return text


def _rank_signal(decisions: Decisions) -> str:
    """The job's own choice, else the signal that every program may be expected to end at."""
    return decisions.job.slurm.lead_signals if decisions.job.slurm.signal and decisions.main.shape == "srun" else "TERM"


def _signal(options: list[str]) -> str:
    """The name of the signal that Slurm sends the batch script before the time limit; empty without one."""
    for option in options:
        if option.startswith("--signal=B:"):
            return option.removeprefix("--signal=B:").split("@", maxsplit=1)[0]
    return ""
