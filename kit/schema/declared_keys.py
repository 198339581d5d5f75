"""Declarations of keys in a TOML file: type, form, example, and the right table for a misplaced key."""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge
from pydantic import BaseModel, RootModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from kit.schema.wrong_value_messages import Form

Location = tuple[str | int, ...]
# pydantic's mark for a fault of a table's key rather than of its value.
_KEY = "[key]"


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The declaration of one key. keys: its path in the user's file. of_key: the fault is in the name of the last key."""

    keys: Location
    annotation: Any
    metadata: tuple[Any, ...] = ()
    default: Any = None
    of_key: bool = False

    @property
    def form(self) -> Form | None:
        """The form of its text, if it has one."""
        return next((one for one in self.metadata if isinstance(one, Form)), None)

    @property
    def least(self) -> int:
        """The least integer that it accepts; 1 if none is declared."""
        return next((int(one.ge) for one in self.metadata if isinstance(one, Ge) and isinstance(one.ge, int)), 1)

    @property
    def model(self) -> type[BaseModel] | None:
        """The pydantic model of this key's value, if the value is a table with declared keys; else None."""
        return next((one for one in self.branches() if _is_model(one)), None)

    def branches(self) -> list[Any]:
        """The possible types of its value, without None."""
        inner = _bare(self.annotation)[0]
        if get_origin(inner) in (Union, types.UnionType):
            return [_bare(one)[0] for one in get_args(inner) if one is not type(None)]
        return [inner]

    def key(self, name: str) -> Declared:
        """The declaration of a key in its table."""
        for branch in self.branches():
            if _is_model(branch) and issubclass(branch, RootModel):
                return replace(_declared((), branch.model_fields["root"]), keys=self.keys).key(name)
            if _is_model(branch):
                field = _fields(branch).get(name)
                return (
                    _declared((*self.keys, name), field) if field else Declared(keys=(*self.keys, name), annotation=Any)
                )
            if get_origin(branch) is dict:
                return _annotated((*self.keys, name), get_args(branch)[1])
        return Declared(keys=(*self.keys, name), annotation=Any)

    def item(self, index: int) -> Declared:
        """The declaration of an item of its list."""
        for branch in self.branches():
            if get_origin(branch) is tuple:
                return _annotated((*self.keys, index), get_args(branch)[0])
        return Declared(keys=(*self.keys, index), annotation=Any)

    def name_of_keys(self) -> Declared:
        """The declaration of a table's keys, if any name is allowed."""
        for branch in self.branches():
            if get_origin(branch) is dict:
                return replace(_annotated(self.keys, get_args(branch)[0]), of_key=True)
            if _is_model(branch) and issubclass(branch, RootModel):
                return replace(_declared(self.keys, branch.model_fields["root"]), keys=self.keys).name_of_keys()
        return replace(self, of_key=True)


def locate(model: type[BaseModel], location: Location) -> Declared:
    """The declaration at the location of one of pydantic's faults.

    The location has a name for each branch of a union; users do not know these.
    """
    here = above = Declared(keys=(), annotation=model)
    rest = list(location)
    while rest:
        part = rest.pop(0)
        if part == _KEY:
            return replace(above.name_of_keys(), keys=here.keys)
        if len(here.branches()) > 1:
            here = replace(here, annotation=_branch(here, str(part)))
            continue
        above, here = here, here.item(part) if isinstance(part, int) else here.key(part)
    return here


def names_at(model: type[BaseModel], keys: Sequence[str | int]) -> list[str]:
    """The declared keys of a table; empty if any name is allowed."""
    here = Declared(keys=(), annotation=model)
    for key in keys:
        here = here.item(key) if isinstance(key, int) else here.key(key)
    table = here.model
    return sorted(_fields(table)) if table is not None and not issubclass(table, RootModel) else []


def tables_with(model: type[BaseModel], name: str) -> list[str]:
    """The tables that have a key of this name, as a file writes them, the outermost first; '' is the top of the file."""
    return sorted(dict.fromkeys(_tables_with(model, name, ())), key=lambda table: table.count("."))


def _tables_with(model: type[BaseModel], name: str, path: tuple[str, ...]) -> Iterator[str]:
    for key, field in _fields(model).items():
        if key == name:
            yield ".".join(path)
        inner = _declared((), field)
        for table in inner.branches():
            if _is_model(table):
                yield from _tables_with(table, name, (*path, key))
            elif get_origin(table) is dict and _is_model(held := _bare(get_args(table)[1])[0]):
                yield from _tables_with(held, name, (*path, key, "NAME"))


def _branch(here: Declared, tag: str) -> Any:
    """The branch of a union with pydantic's name `tag`."""
    kind = {"tuple": tuple, "dict": dict, "literal": Literal}.get(tag.partition("[")[0])
    for branch in here.branches():
        named = _is_model(branch) and tag.endswith((f" {branch.__name__}]", f"{branch.__name__}"))
        if named or (kind is not None and get_origin(branch) is kind):
            return branch
    return next((one for one in here.branches() if not _is_model(one) and get_origin(one) is None), Any)


def _declared(keys: Location, field: FieldInfo) -> Declared:
    annotation, metadata = _bare(field.annotation)
    default = None if field.default is PydanticUndefined else field.default
    if default is None and field.examples:
        default = field.examples[0]
    return Declared(keys=keys, annotation=annotation, metadata=(*field.metadata, *metadata), default=default)


def _annotated(keys: Location, annotation: Any) -> Declared:
    inner, metadata = _bare(annotation)
    return Declared(keys=keys, annotation=inner, metadata=metadata)


def _bare(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """An annotation without Annotated and Optional, and the metadata of these."""
    metadata: tuple[Any, ...] = ()
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *said = get_args(annotation)
            metadata += tuple(said)
        elif get_origin(annotation) in (Union, types.UnionType):
            inner = [one for one in get_args(annotation) if one is not type(None)]
            if len(inner) != 1:
                return annotation, metadata
            annotation = inner[0]
        else:
            return annotation, metadata


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
