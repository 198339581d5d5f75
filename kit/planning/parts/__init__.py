"""Parts of a run: features with files of their own, which are in a run only if a key of its job asks for them.

A part is a folder of templates/parts/, whose part.toml says what asks for it. A part that needs Python has the module of its name
here. The batch script has the functions of the parts in KIT_PARTS, and calls them by phase (templates/core/lib/parts.sh).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from kit.planning.decisions import Decisions
from kit.planning.parts.part import Part
from kit.render import absent_names, library_names, part_folders, plain, program_names, stand_in

__all__ = ["Part", "all_parts", "called_parts", "check", "code_digest", "constants", "file_names", "texts", "variables"]


@cache
def all_parts() -> tuple[Part, ...]:
    """The parts that templates/parts/ has a folder of, in the order in which the batch script calls them."""
    return tuple(sorted(map(Part.read_part, part_folders()), key=lambda part: (part.order, part.name)))


def check(decisions: Decisions) -> None:
    """Raise ConfigError for a part that the job asks for, and cannot have."""
    for part in all_parts():
        part.check(decisions)


def called_parts(decisions: Decisions) -> list[tuple[str, str]]:
    """The parts that the batch script calls, each with the key that asked for it."""
    return [
        (part.name, key) for part in all_parts() if part.has_phases and (key := part.asked_by(decisions)) is not None
    ]


def constants(decisions: Decisions) -> list[tuple[str, Any]]:
    """Name -> value of this run's parts in the head of the batch script, without empty lists and tables. A name has its
    kind: `-a X`.
    """
    wanted = [part for part in all_parts() if part.asked_by(decisions) is not None]
    return [
        (f"{_kind(value)}{name}", value)
        for part in wanted
        for name, value in part.constants(decisions).items()
        if value not in ([], (), {})
    ]


def variables(decisions: Decisions) -> dict[str, Any]:
    """The constants of all parts for a user's template, by the names that they have there: KIT_WARM_ARGV is `warm_argv`."""
    found = [pair for part in all_parts() for pair in part.constants(decisions).items()]
    return {name.removeprefix("KIT_").lower(): value for name, value in found}


def _kind(value: object) -> str:
    return "-A " if isinstance(value, Mapping) else "-a " if isinstance(value, list | tuple) else ""


def file_names(decisions: Decisions) -> tuple[str, ...]:
    """Names in the run's bin/ and lib/ of its programs and libraries, sorted by folder.

    A batch script from the user's own template may call anything, so its run has the files of all parts.
    """
    wanted = [
        part for part in all_parts() if decisions.resolved.template is not None or part.asked_by(decisions) is not None
    ]
    # Two parts may import the same module.
    unused = {name for part in all_parts() for name in part.files} - {name for part in wanted for name in part.files}
    return tuple(name for name in (*program_names(), *library_names()) if name not in unused)


def texts(decisions: Decisions) -> dict[str, str]:
    """Name -> text of all files in the run's bin/ and lib/, with the stand-ins for modules that this run does not have."""
    found = {name: plain(name) for name in file_names(decisions)}
    found |= {f"lib/site/{part.name}.sh": part.text for part in decisions.resolved.site_parts}
    absent = {f"lib/{name}": stand_in(name) for name in absent_names()}
    return found | {name: text for name, text in absent.items() if name not in found}


def code_digest(decisions: Decisions, more: Mapping[str, str] | None = None) -> str:
    """The sha256 of the run's bin/ and lib/, as batch.sh computes it: of sha256sum's output for their files, sorted by name.

    more: name -> text of files beside these folders that the script names, too.
    """
    found = texts(decisions) | dict(more or {})
    lines = (f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in sorted(found.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
