"""TorchTitan's configuration of one training, a TOML or a Python file of assignments, and what the command line overrides in it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kit import config
from kit.config.toml_file import check_values
from kit.errors import ConfigError, Fault, UsageError
from kit.files import untrusted_files
from kit.frameworks import literal_python, program_releases, titan_checkout, titan_words, torchtitan
from kit.frameworks.titan_words import Known

# How the ranks are split: one training that shards as the file says, one that copies the model on every rank, or replica groups.
Mode = Literal["plain", "ddp", "groups"]

TOML, PYTHON = "config.toml", "config.py"
# Of launchers/torchtitan.
_OPTIONS = "torchtitan-options.toml"
# The generator that people come from makes as many groups on a node of eight GPUs.
_GROUPS_PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
class TitanFile:
    """One configuration. text: ends with a newline. table: its values. is_python: a fork's. checkout: options of its sources."""

    path: Path
    text: str
    table: Mapping[str, Any]
    is_python: bool = False
    checkout: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file's name in the run folder."""
        return PYTHON if self.is_python else TOML


def read_titan_file(path: Path, *, checkout: Path) -> TitanFile:
    """A configuration; ConfigError if it cannot be read. checkout: the folder that may hold the program's sources."""
    if path.suffix == ".py":
        text, table = literal_python.read_assignments(path)
        check_values(table, config.shown(path))
        options = titan_checkout.options(checkout)
    else:
        table, text, options = config.load_toml(path), untrusted_files.read_text(path), {}
    whole = text.rstrip("\n") + "\n"
    return TitanFile(path=path, text=whole, table=table, is_python=path.suffix == ".py", checkout=options)


def arguments(titan: TitanFile, extra_args: str) -> list[str]:
    """--extra-args as the words that the program gets. ConfigError names the keys and values that it would drop or refuse."""
    try:
        typed = shlex.split(extra_args)
    except ValueError as error:
        raise UsageError(f"--extra-args {extra_args!r}: {error}", hint="quote it as for a shell") from None
    known = _known(titan)
    options, overrides = titan_words.split(typed, known.switches)
    found = [*titan_words.stray(options), *_faults(titan, overrides, known)]
    if found:
        raise ConfigError.of(*found)
    if not titan.is_python:
        return [*options, *titan_words.as_options(overrides, known)]
    pairs = [f"{key}={text}" for key, text in overrides]
    return [*options, *([titan_words.CFG_OPTIONS, *pairs] if pairs else [])]


def _faults(titan: TitanFile, overrides: list[tuple[str, str]], known: Known) -> Iterator[Fault]:
    """Of a TOML, unknown keys are found later, with the release that is then known."""
    mine = overrides if titan.is_python else [pair for pair in overrides if known.has(pair[0])]
    return titan_words.faults(mine, known, tables=titan.is_python, file=config.shown(titan.path))


def _known(titan: TitanFile) -> Known:
    lists = program_releases.options_of(_OPTIONS)
    if titan.is_python:
        return titan_words.of_python(titan.table, titan.checkout, lists.names(None))
    return Known(names=frozenset(lists.names(None)), switches=frozenset(lists.switch), kinds=lists.kind)


def mode(titan: TitanFile, words: Sequence[str], *, use_ddp: bool, groups_asked: bool) -> Mode:
    """Replica groups if an option or the configuration asks for them; else one training over all nodes."""
    if use_ddp:
        return "ddp"
    return "groups" if groups_asked or torchtitan.wants_groups(titan.table, words) else "plain"


def groups_per_node(gpus: int) -> int:
    """The default number of groups on a node: the generator's own, and at most one for each GPU."""
    return min(_GROUPS_PER_NODE, gpus or 1)
