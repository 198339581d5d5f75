"""Slurm's file name patterns, in slurm.output and slurm.error: sbatch(1), "filename pattern"."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from kit.schema.wrong_value_messages import Invalid, shown

# The patterns of Slurm 22.05; later releases have them all.
MEANINGS = {
    "%": "a percent sign",
    "A": "an array's job number, or the job's",
    "a": "the task's number in an array",
    "J": "the job's number and step",
    "j": "the job's number",
    "N": "the first node",
    "n": "its number in the job",
    "s": "the step",
    "t": "the step's task",
    "u": "the user",
    "x": "the job's name",
}
_SEQUENCE = re.compile(r"%(\d*)(.?)")
_MOST_DIGITS = 10
# A header line is split at blanks and cut at `#`. The braces are the kit's own placeholders, which are filled in before.
_CHARACTERS = re.compile(r"~?[A-Za-z0-9_./%{}+=@,:-]+")
_RUN = "{run}"
_EXAMPLE = "logs/%x-%j.out"


def _pattern(value: str) -> str:
    if not _CHARACTERS.fullmatch(value):
        raise Invalid(
            f"{shown(value)} cannot be in an sbatch header, which is split at blanks: use letters, digits and "
            "_ . / % { } + = @ , : -",
            write=_EXAMPLE,
        )
    for digits, letter in _SEQUENCE.findall(value):
        if letter not in MEANINGS or int(digits or 0) > _MOST_DIGITS:
            known = ", ".join(f"%{one} ({meaning})" for one, meaning in MEANINGS.items())
            raise Invalid(f"%{digits}{letter} is not a pattern of Slurm's", allowed=known, write=_EXAMPLE)
    # slurmd makes no folders, so the folder must exist before the job does.
    early = "%" if _RUN in value else "%ux"
    late = sorted({letter for _, letter in _SEQUENCE.findall(value.rpartition("/")[0])} - set(early))
    if late:
        raise Invalid(
            f"%{late[0]} can only be in the file's name: its folder is made before the job has a number", write=_EXAMPLE
        )
    if not value.rpartition("/")[2]:
        raise Invalid(
            f"{shown(value)} names a folder: a file's name has to follow the last '/'", write=f"{value}%x-%j.out"
        )
    if not is_of_one_job(value, array=False):
        raise Invalid("two jobs would write into one file: the name needs %j or {run}", write=_EXAMPLE)
    return value


LogPattern = Annotated[str, AfterValidator(_pattern)]


def is_of_one_job(pattern: str, *, array: bool) -> bool:
    """Whether no other job writes to the same file. array: and no other task of the same array."""
    letters = {letter for _, letter in _SEQUENCE.findall(pattern)}
    return _RUN in pattern or bool(letters & {"j", "J"}) or ("A" in letters and (not array or "a" in letters))


def folder(pattern: str, *, job_name: str, user: str) -> Path:
    """The folder of a pattern's file."""
    known = {"%": "%", "u": user, "x": job_name}
    return Path(_SEQUENCE.sub(lambda found: known[found[2]], pattern.rpartition("/")[0] or "/"))
