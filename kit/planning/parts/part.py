"""A part of a run, as the modules beside this one describe theirs in PART."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kit.planning.decisions import Decisions
from kit.render import called_names, part_names


def _no_constants(_: Decisions) -> Mapping[str, Any]:
    return {}


def _no_check(_: Decisions) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Part:
    """A feature of a run.

    name: of its folder in templates/parts/, and of its functions. asked_by: the key of the job that asks for the part, as a word
    for the head of the batch script; None where no key does. constants: name -> value in that head; empty values are left out.
    check: raises ConfigError for a job that asks for the part and cannot have it. modules: Python of templates/kit_node/ that
    only parts need, by name in the run; two may name the same. order: of the calls in a phase; parts of one number come by name.
    """

    name: str
    asked_by: Callable[[Decisions], str | None]
    constants: Callable[[Decisions], Mapping[str, Any]] = _no_constants
    check: Callable[[Decisions], None] = _no_check
    modules: tuple[str, ...] = ()
    order: int = 50

    @property
    def files(self) -> tuple[str, ...]:
        """Names in bin/ and lib/ of what a run has for this part."""
        return (*part_names(self.name), *self.modules)

    @property
    def has_phases(self) -> bool:
        """Whether the batch script calls it: it has a part.sh."""
        return f"lib/{self.name}.sh" in called_names()
