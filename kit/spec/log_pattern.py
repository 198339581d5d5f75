"""Slurm's file name patterns, in slurm.output and slurm.error: sbatch(1), "filename pattern"."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

# Those that Slurm 22.05 knows; later releases know them all.
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
# A header line is split at blanks and cut at `#`; the braces are the kit's own, and gone when the line is written.
_CHARACTERS = re.compile(r"[A-Za-z0-9_./%{}+=@,:-]+")
_RUN = "{run}"


def _pattern(value: str) -> str:
    if not _CHARACTERS.fullmatch(value):
        raise ValueError("letters, digits and _ . / % { } + = @ , : - (sbatch splits its header at blanks)")
    for digits, letter in _SEQUENCE.findall(value):
        if letter not in MEANINGS or int(digits or 0) > _MOST_DIGITS:
            known = ", ".join(f"%{one} ({meaning})" for one, meaning in MEANINGS.items())
            raise ValueError(f"Slurm's own patterns, as %j or %4j: {known}; not %{digits}{letter}")
    # slurmd makes no folder: it has to be there before the job is.
    early = "%" if _RUN in value else "%ux"
    late = sorted({letter for _, letter in _SEQUENCE.findall(value.rpartition("/")[0])} - set(early))
    if late:
        raise ValueError(f"%{late[0]} in the file's name alone: its folder is made before the job is there")
    if not value.rpartition("/")[2]:
        raise ValueError("a file's name after the last '/'")
    if not is_of_one_job(value, array=False):
        raise ValueError("%j in it, or {run}: two jobs would write into one file, and 'kit logs' would show both")
    return value


LogPattern = Annotated[str, AfterValidator(_pattern)]


def is_of_one_job(pattern: str, *, array: bool) -> bool:
    """Whether no other job writes to the same file. array: nor another task of the same array."""
    letters = {letter for _, letter in _SEQUENCE.findall(pattern)}
    return _RUN in pattern or bool(letters & {"j", "J"}) or ("A" in letters and (not array or "a" in letters))


def folder(pattern: str, *, job_name: str, user: str) -> Path:
    """The folder that a pattern's file is in."""
    known = {"%": "%", "u": user, "x": job_name}
    return Path(_SEQUENCE.sub(lambda found: known[found[2]], pattern.rpartition("/")[0] or "/"))
