"""A part of a run, as part.toml in its folder of templates/parts/ declares it.

These declarations alone decide what a job does not ask for: a part's module is imported only for a job that may want the part.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self, cast

from kit.planning import steps
from kit.planning.decisions import Decisions
from kit.render import called_names, part_declaration, part_names

Condition = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Code:
    """The Python of a part: CODE of kit/planning/parts/NAME.py, for a part that needs some.

    asked_by: for a job that meets `when`, the key that asks for the part, or None if no key does after all. constants: name ->
    value in the head of the batch script, without empty lists and tables. check: raises ConfigError for a job that cannot have it.
    """

    asked_by: Callable[[Decisions], str | None] | None = None
    constants: Callable[[Decisions], Mapping[str, Any]] | None = None
    check: Callable[[Decisions], None] | None = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """A feature of a run.

    name: of its folder in templates/parts/, and of its functions. key: of the job, which asks for the part, as a word for the head
    of the batch script. when: conditions on the decisions, of which one must hold; in each, `true` is any value, `false` none, and
    a list has the possible values; `key` in a condition is the key where this one holds, and none before it. Of several roles, one
    is enough. values: name -> the decision (`job.watch.limit`) that is the value in that head. steps: name -> the function of
    kit/planning/steps.py that makes the words. modules: Python of templates/kit_node/ that only parts need, by name in the run; two
    may name the same. order: of the calls in a phase; parts of one number come by name.
    """

    name: str
    key: str
    when: tuple[Condition, ...]
    values: Mapping[str, str] = field(default_factory=dict)
    steps: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    order: int = 50

    @classmethod
    def read_part(cls, name: str) -> Self:
        """The part of this name. TypeError for a key that part.toml cannot have."""
        keys: dict[str, Any] = {"modules": (), **tomllib.loads(part_declaration(name))}
        return cls(name=name, when=tuple(keys.pop("when")), modules=tuple(keys.pop("modules")), **keys)

    def may_be_wanted(self, made: Decisions) -> bool:
        """Whether a condition of `when` holds."""
        return any(_holds(made, _decisions(condition)) for condition in self.when)

    def asked_by(self, made: Decisions) -> str | None:
        """The key of the job that asks for the part; None where no key does."""
        keys = (one.get("key", self.key) for one in self.when if _holds(made, _decisions(one)))
        key = next(keys, None)
        return self.code.asked_by(made) if key and self.code.asked_by else key

    def constants(self, made: Decisions) -> Mapping[str, Any]:
        """Name -> value for the head of the batch script, with empty values."""
        declared = {name: _decided(made, path) for name, path in self.values.items()}
        declared |= {name: getattr(steps, function)(made) for name, function in self.steps.items()}
        return {**declared, **(self.code.constants(made) if self.code.constants else {})}

    def check(self, made: Decisions) -> None:
        """Raise ConfigError for a job that asks for the part, and cannot have it."""
        if self.may_be_wanted(made) and self.code.check:
            self.code.check(made)

    @cached_property
    def code(self) -> Code:
        """The part's Python, imported now; without functions if it has none."""
        module = f"{__package__}.{self.name}"
        return cast(Code, import_module(module).CODE) if find_spec(module) else Code()

    @property
    def files(self) -> tuple[str, ...]:
        """Names in bin/ and lib/ of what a run has for this part."""
        return (*part_names(self.name), *self.modules)

    @property
    def has_phases(self) -> bool:
        """Whether the batch script calls it: it has a part.sh."""
        return f"lib/{self.name}.sh" in called_names()


def _decisions(condition: Condition) -> Condition:
    """A condition without its key."""
    return {name: wanted for name, wanted in condition.items() if name != "key"}


def _decided(made: Decisions, path: str) -> Any:
    """The decision of this path; an empty text below one that is None."""
    value: Any = made
    for name in path.split("."):
        value = "" if value is None or value == "" else getattr(value, name)
    return value


def _holds(value: Any, wanted: Any) -> bool:
    """Whether a value of the decisions meets a condition."""
    if isinstance(wanted, Mapping):
        several = value if isinstance(value, tuple) else (value,)
        return any(
            one is not None and all(_holds(getattr(one, name), inner) for name, inner in wanted.items())
            for one in several
        )
    return value in wanted if isinstance(wanted, list) else bool(value) is wanted
