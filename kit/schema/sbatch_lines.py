"""Reads the #SBATCH lines of a script as Slurm does: up to the first command, without expanding anything."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from kit.schema import option_words

# sbatch(1).
SHORT = {
    "A": "account", "a": "array", "C": "constraint", "c": "cpus-per-task", "D": "chdir", "d": "dependency", "e": "error",
    "F": "nodefile", "G": "gpus", "H": "hold", "i": "input", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes",
    "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "S": "core-spec", "s": "oversubscribe", "t": "time",
    "w": "nodelist", "x": "exclude", "O": "overcommit", "Q": "quiet", "v": "verbose",
}  # fmt: skip
FLAGS = frozenset(
    (
        "hold", "overcommit", "oversubscribe", "quiet", "verbose", "exclusive", "requeue", "no-requeue", "contiguous", "no-kill",
        "spread-job", "parsable", "ignore-pbs", "wait", "reboot", "get-user-env",
    )
)  # fmt: skip
# They depend on each other; [resources] says them per node.
SIZES = frozenset(
    (
        "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "gpus", "gpus-per-node", "gpus-per-task", "gres", "mem",
        "mem-per-cpu", "mem-per-gpu", "cpus-per-gpu", "ntasks-per-gpu",
    )
)  # fmt: skip
_PREFIX = "#SBATCH"
_HETEROGENEOUS = ("hetjob", "packjob")


@dataclass(frozen=True, kw_only=True)
class HeaderLine:
    """One line that begins with #SBATCH. number: from 1. options: long name and value of each option, in order.

    after_command: Slurm does not read the line. problem: the words that Slurm would not take; empty for none. separator: the line
    begins the next component of a heterogeneous job.
    """

    number: int
    text: str
    options: tuple[tuple[str, str], ...] = ()
    after_command: bool = False
    problem: str = ""
    separator: bool = False


def lines(text: str) -> Iterator[HeaderLine]:
    """Each line of a script that begins with #SBATCH."""
    in_header = True
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith(_PREFIX):
            in_header = in_header and (not line.strip() or line.startswith("#"))
        elif in_header:
            yield _line(number, line)
        else:
            yield HeaderLine(number=number, text=line, after_command=True)


def _line(number: int, line: str) -> HeaderLine:
    try:
        words = shlex.split(line.removeprefix(_PREFIX), comments=True)
    except ValueError as error:
        return HeaderLine(number=number, text=line, problem=f"the quotes are not closed ({error})")
    if words and words[0] in _HETEROGENEOUS:
        return HeaderLine(number=number, text=line, separator=True)
    found, rest = option_words.split(words, short=SHORT, flags=FLAGS)
    problem = f"{' '.join(rest)}: no option of sbatch" if rest else ""
    return HeaderLine(number=number, text=line, options=tuple(found), problem=problem)


def options(text: str) -> dict[str, str]:
    """The options that Slurm reads from a script, by long name; those of lines without closed quotes are left out."""
    return {name: value for line in lines(text) for name, value in line.options}


def name_of(text: str) -> str:
    """A job's name as job files take it."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")[:64] or "job"
