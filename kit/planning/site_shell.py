"""The commands that a site gives its users as functions of the shell, such as `module`, for lines of `setup` and `[once]`.

A login shell defines them, and a step of Slurm starts none. A run whose lines may use them has templates/parts/site_shell, which
defines each at its first use. Outside a container, it also gets what the submitter's shell says about them, as sbatch passes it on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kit.errors import Fault
from kit.planning.decisions import Decisions

# Variables and exported functions of Lmod, Environment Modules, conda, mamba and Spack that say where they are.
CARRIED = (
    "MODULEPATH",
    "MODULESHOME",
    "MODULES_CMD",
    "LMOD_PKG",
    "LMOD_CMD",
    "LMOD_DIR",
    "CONDA_EXE",
    "MAMBA_EXE",
    "MAMBA_ROOT_PREFIX",
    "SPACK_ROOT",
    "BASH_FUNC_module%%",
    "BASH_FUNC_ml%%",
    "BASH_FUNC__module_raw%%",
    "BASH_FUNC_spack%%",
)
# The submitter's BASH_ENV, under a name that bash does not read: it would change the kit's own scripts.
BASH_ENV = "KIT_BASH_ENV"

_COMMAND = re.compile(r"(?:^|[;&|({]|\bthen|\bdo|\belse)\s*(module|ml|conda|mamba|micromamba|spack)\s")


def asked_by(decisions: Decisions) -> str | None:
    """The key whose lines may use such a command: any line that runs on the node itself, or one that names the command."""
    for key, lines, inside in _lines(decisions):
        if lines and (not inside or any(map(_COMMAND.search, lines))):
            return key
    return None


def carried(decisions: Decisions) -> tuple[str, ...]:
    """The names of the variables that a run outside a container takes along for its lines."""
    return () if decisions.runtime.containerized or asked_by(decisions) is None else CARRIED


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the submitter's environment says about the commands."""
    found = {name: environ[name] for name in CARRIED if name in environ}
    return found | ({BASH_ENV: environ["BASH_ENV"]} if environ.get("BASH_ENV") else {})


def warnings(decisions: Decisions) -> Iterator[Fault]:
    """A warning for `module` in a line that runs in a container: the modules of a site are files of its nodes."""
    for key, lines, inside in _lines(decisions):
        for place, line in enumerate(lines if inside else ()):
            found = _COMMAND.search(line)
            if found and found[1] in ("module", "ml"):
                problem = f"{line!r} runs in the container, which has the modules of its image, not those of the site"
                yield Fault(
                    key=f"{key}[{place}]", problem=problem, hint="--no-container; or install the software in the image"
                )


def _lines(decisions: Decisions) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Key, lines, and whether they run in a container."""
    job, contained = decisions.job, decisions.runtime.containerized
    yield "setup", (*decisions.resolved.cluster.setup, *job.setup), contained
    for table, one in job.lines.items():
        yield f"{table}.lines", one.lines, contained and one.container
    if decisions.resolved.template is not None:
        _, text = decisions.resolved.template
        yield "slurm.template", tuple(line for line in text.splitlines() if _COMMAND.search(line)), False
