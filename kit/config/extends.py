"""Job files that extend each other: `extends = "base.toml"`."""

from __future__ import annotations

from pathlib import Path

from kit.config.layers import Layer
from kit.config.toml_file import load_toml, shown
from kit.errors import ConfigError, Fault
from kit.schema.wrong_value_messages import shown as shown_value

# The maximum number of files that extend each other.
_MOST_ABOVE = 50
_Placed = tuple[Path, Layer]


def job_files(job_file: Path) -> tuple[Layer, ...]:
    """The keys of a job file, and below them those of the files that `extends` names; lowest first, each file once."""
    return tuple(layer for _, layer in _extended(job_file, (), {}))


def _extended(job_file: Path, above: tuple[Path, ...], known: dict[Path, tuple[_Placed, ...]]) -> tuple[_Placed, ...]:
    """The layers of one file. above: the files that led here. known: files that were read already."""
    path = _resolved(job_file)
    if path in known:
        return known[path]
    table = load_toml(job_file)
    named = table.pop("extends", ())
    named = (named,) if isinstance(named, str) else named
    here = (*above, path)
    if not (isinstance(named, tuple | list) and all(isinstance(name, str) for name in named)):
        problem = f"{shown_value(named)} is not the path of a job file, relative to this one, or a list of such paths"
        raise _not_extended(job_file, problem)
    if len(here) > _MOST_ABOVE:
        raise _not_extended(job_file, f"more than {_MOST_ABOVE} files build on each other")
    below: dict[Path, Layer] = {}
    for name in named:
        other = job_file.parent / Path(name).expanduser()
        if _resolved(other) in here:
            raise _not_extended(job_file, f"{shown_value(name)} builds on this file itself")
        for one, layer in _extended(other, here, known):
            below.pop(one, None)  # a file that two others extend takes its place before the later of them
            below[one] = layer
    known[path] = (*below.items(), (path, (table, shown(job_file))))
    return known[path]


def _resolved(file: Path) -> Path:
    try:
        return file.resolve()
    except RuntimeError:  # Python's error for a loop of links
        raise ConfigError(f"{file}: a symbolic link that leads back to itself", hint="name the file itself") from None


def _not_extended(file: Path, problem: str) -> ConfigError:
    return ConfigError.of(Fault(file=shown(file), key="extends", problem=problem, hint='extends = "base.toml"'))
