"""Shell completion of names of the project's files and folders, and of keys of a job. It never asks Slurm."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

Names = Callable[[str], list[str]]


def _starting_so(names: Callable[[], Iterable[str]]) -> Names:
    """A completer for these names. After an error it offers no names, because a completion cannot print the error."""

    def complete(incomplete: str) -> list[str]:
        from kit.errors import KitError

        with contextlib.suppress(KitError, OSError):
            return [name for name in names() if name.startswith(incomplete)]
        return []

    complete.__doc__ = names.__doc__
    return complete


@_starting_so
def runs() -> Iterable[str]:
    """Ids of runs, the newest first."""
    from kit import data_folders
    from kit.record import find_runs

    return [path.name for path, _ in reversed(find_runs.find_all(find_runs.folders(data_folders.project())))]


@_starting_so
def sweeps() -> Iterable[str]:
    """Ids of sweeps, the newest first."""
    from kit import data_folders
    from kit.record import find_runs
    from kit.sweeps import find

    return [path.name for path in reversed(find.find_all(find_runs.folders(data_folders.project())))]


def runs_and_sweeps(incomplete: str) -> list[str]:
    """Ids of runs and of sweeps."""
    return [*runs(incomplete), *sweeps(incomplete)]


@_starting_so
def clusters() -> Iterable[str]:
    """Names of clusters."""
    from kit import data_folders

    return data_folders.names("clusters", project_dir=data_folders.project())


@_starting_so
def images() -> Iterable[str]:
    """Names of images."""
    from kit import data_folders

    return data_folders.names("containers", project_dir=data_folders.project())


@_starting_so
def launchers() -> Iterable[str]:
    """Names of launchers."""
    from kit import data_folders

    return data_folders.names("launchers", project_dir=data_folders.project())


@_starting_so
def job_keys() -> Iterable[str]:
    """Keys of a job file, such as `resources.nodes=`."""
    from kit.schema.job import Job

    return [f"{key}=" for key in _keys(Job)]


def _keys(model: type[BaseModel]) -> Iterator[str]:
    """Dotted keys of a model. Nested models are expanded; any other value is a leaf."""
    from typing import get_args

    from pydantic import BaseModel

    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        table = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
        yield from (f"{name}.{key}" for key in _keys(table)) if table else [name]


@_starting_so
def schemas() -> Iterable[str]:
    """Names of things that have a schema."""
    from kit.schema import schemas

    return [*schemas(), "all"]
