"""A batch script that is not the kit's: it runs unchanged below a script of the kit, which records its start, signals and end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from kit.errors import Fault
from kit.planning.decisions import Decisions
from kit.planning.parts import code_digest
from kit.planning.sbatch_header import salloc_options
from kit.schema import own_batch_script, sbatch_lines

# Below the run folder.
FILE = "script"
# Options that only change sbatch's answer, which the kit reads.
_ANSWER = frozenset(("parsable", "quiet", "verbose"))
_OUTPUTS = ("output", "error")


def variables(decisions: Decisions, text: str) -> dict[str, Any]:
    """The variables of templates/core/bin/foreign.sh for a script."""
    asked, snapshot = sbatch_lines.options(text), decisions.site.snapshot
    chdir = asked.get("chdir", "")
    return {
        "sbatch": [*_header(decisions, text, asked)],
        "run_dir": decisions.site.run_dir,
        "snapshot": str(snapshot.folder) if snapshot else "",
        "tree": snapshot.tree if snapshot else "",
        "code": code_digest(decisions, {FILE: text}),
        "folder": chdir if chdir.startswith("/") else f"{decisions.paths.workspace}/{chdir}".rstrip("/"),
        "submit_dir": decisions.paths.workspace,
        "args": decisions.job.args if _is_job(decisions) else (),
    }


def advice(decisions: Decisions, text: str) -> Iterator[Fault]:
    """What only the kit's own batch script does, and a folder that is not the run's copy."""
    file, written = decisions.resolved.template or ("", "")
    problem = (
        "this script runs as it is: without checks of the nodes, a log of each rank, the monitor, the stall watch, retries, and "
        "the kit's save before the time limit"
    )
    if own_batch_script.is_template(written):
        hint = "kit template eject, to start from the kit's own, which does all this"
    else:
        hint = f"kit migrate {shlex.quote(file)}, which makes a job file"
    yield Fault(file=file, key="", problem=problem, hint=hint)
    chdir = sbatch_lines.options(text).get("chdir", "")
    if chdir.startswith("/"):
        problem = f"the script runs in {chdir}, and not in the run's copy of the job's folder"
        yield Fault(file=file, key="--chdir", problem=problem, hint="remove the option")


def _is_job(decisions: Decisions) -> bool:
    """Whether the script is all of the job, so that words after `--` are its arguments."""
    return decisions.job.command == (decisions.job.slurm.template,)


def _header(decisions: Decisions, text: str, asked: dict[str, str]) -> Iterator[str]:
    """The header of the kit's script: what the script does not say, then its own lines, then what has to be different."""
    sized = not sbatch_lines.SIZES.isdisjoint(asked)
    own = [option for option in salloc_options(decisions) if not _is_said(option, asked, sized=sized)]
    yield from own
    for line in sbatch_lines.lines(text):
        names = {name for name, _ in line.options}
        if names.isdisjoint(_ANSWER):
            words = line.text.removeprefix("#SBATCH").strip()
            yield from [words] if not line.after_command and words else []
        else:
            yield from (_option(name, value) for name, value in line.options if name not in _ANSWER)
    yield from _changed(decisions, asked)


def _is_said(option: str, asked: dict[str, str], *, sized: bool) -> bool:
    """Whether the script says this option itself. Of numbers that depend on each other, all are the script's, or none is."""
    name = option.removeprefix("--").partition("=")[0]
    return name in asked or (sized and name in sbatch_lines.SIZES)


def _changed(decisions: Decisions, asked: dict[str, str]) -> Iterator[str]:
    """Options that replace the script's own: Slurm takes the last of several."""
    folder = decisions.resolved.job_dir
    if chdir := asked.get("chdir"):
        # A cluster over ssh does not have the job's folder. The script itself runs in the run's copy of it.
        beyond = decisions.resolved.cluster.ssh is not None and not chdir.startswith("/")
        folder = decisions.site.run_dir if beyond else folder / chdir
        yield _option("chdir", str(folder))
    for name in _OUTPUTS:
        if value := asked.get(name):
            yield _option(name, str(folder / value))
    if "output" not in asked:
        yield _option("output", str(decisions.paths.output))
    # A job that Slurm queues again keeps what it has written.
    if "open-mode" not in asked:
        yield "--open-mode=append"
    if decisions.site.avoid and asked.get("exclude"):
        yield _option("exclude", ",".join((asked["exclude"], *decisions.site.avoid)))
    # From the command line, above the script. The lines of a template stand: they may say more than the job.
    resources = decisions.job.resources
    if decisions.resolved.template is None or own_batch_script.is_template(decisions.resolved.template[1]):
        return
    if "nodes" in asked and asked["nodes"].isdigit() and int(asked["nodes"]) != resources.nodes:
        yield _option("nodes", str(resources.nodes))
    if resources.time and "time" in asked and asked["time"] != resources.time:
        yield _option("time", resources.time)


def _option(name: str, value: str) -> str:
    """An option for a header. Slurm splits the line at blanks outside quotes."""
    if not value:
        return f"--{name}"
    return f'--{name}="{value}"' if any(sign in value for sign in " \t#") else f"--{name}={value}"
