"""Finds the programs that a command starts behind words that only run another: env, nice, numactl, `bash -c`, `python -m`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePath

# Program -> its options whose value is the next word. After its options it runs the rest of the words.
_RUNS: dict[str, frozenset[str]] = {
    "env": frozenset({"-u", "--unset", "-C", "--chdir"}),
    "nohup": frozenset(),
    "setsid": frozenset(),
    "time": frozenset({"-f", "-o", "--format", "--output"}),
    "nice": frozenset({"-n", "--adjustment"}),
    "ionice": frozenset({"-c", "-n", "--class", "--classdata"}),
    "numactl": frozenset({"-N", "-m", "-C", "-i", "-p", "-w", "--cpunodebind", "--membind", "--physcpubind"}),
    "taskset": frozenset(),
    "chrt": frozenset(),
    "timeout": frozenset({"-s", "-k", "--signal", "--kill-after"}),
    "stdbuf": frozenset({"-i", "-o", "-e", "--input", "--output", "--error"}),
    "uv run": frozenset({"-p", "--python", "--with", "--project", "--extra", "--group", "--directory", "--env-file"}),
    "conda run": frozenset({"-n", "-p", "--name", "--prefix"}),
    "poetry run": frozenset(),
    "nsys profile": frozenset({"-t", "-o", "-s", "-c", "-w", "-x", "-y", "-d", "-e", "--trace", "--output"}),
}
# Programs whose first word after the options is not yet the program.
_OPERANDS = {"taskset": 1, "chrt": 1, "timeout": 1}
_PYTHON_TAKES = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_PYTHON = re.compile(r"python[0-9.]*")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_KEYWORDS = frozenset({"then", "else", "do", "!", "{", "exec", "command"})
# A line that reads which rank it is decides for itself what each rank starts.
_KNOWS_ITS_RANK = re.compile(r"\$\{?(SLURM_(PROCID|LOCALID|NODEID)|(LOCAL_|NODE_|GROUP_)?RANK)\b")


@dataclass(frozen=True, kw_only=True)
class Started:
    """A program that a command starts. name: without its folder, or a Python module's. words: its arguments."""

    name: str
    words: tuple[str, ...]


def program_of(words: Sequence[str], python: str) -> Iterator[Started]:
    """The program that the words start at last; of a shell line the program of each of its commands.

    python: the job's interpreter.
    """
    rest = list(words)
    while rest and (_ASSIGNMENT.match(rest[0]) or rest[0] in _KEYWORDS):
        del rest[0]
    if not rest:
        return
    name = PurePath(rest[0]).name
    two = f"{name} {rest[1]}" if len(rest) > 1 else ""
    if name in _RUNS or two in _RUNS:
        known = name if name in _RUNS else two
        rest = _after_options(rest[len(known.split()) :], _RUNS[known])
        yield from program_of(rest[_OPERANDS.get(known, 0) :], python)
    elif name in _SHELLS:
        yield from _of_shell(rest[1:], python)
    elif rest[0] == python or _PYTHON.fullmatch(name):
        yield from _of_python(rest[1:])
    else:
        yield Started(name=name, words=tuple(rest[1:]))


def _after_options(words: Sequence[str], takes: frozenset[str]) -> list[str]:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        del rest[: 2 if rest[0] in takes else 1]
    return rest


def _of_python(words: Sequence[str]) -> Iterator[Started]:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        if rest[0] == "-m" and len(rest) > 1:
            yield Started(name=rest[1], words=tuple(rest[2:]))
            return
        del rest[: 2 if rest[0] in _PYTHON_TAKES else 1]
    if rest:
        yield Started(name=PurePath(rest[0]).name, words=tuple(rest[1:]))


def _of_shell(words: Sequence[str], python: str) -> Iterator[Started]:
    """The commands of the line after -c."""
    flag = next((n for n, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)), None)
    if flag is None or flag + 1 >= len(words) or _KNOWS_ITS_RANK.search(words[flag + 1]):
        return
    line = words[flag + 1].replace("\\\n", " ").replace("\n", " ; ")
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        found = list(lexer)
    except ValueError:
        return
    for between, command in groupby(found, lambda word: bool(word) and not word.strip(";&|()")):
        if not between:
            yield from program_of(list(command), python)
