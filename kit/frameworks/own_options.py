"""Options that a framework's table writes: words of the command line must not give them a second time."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from kit.config import Resolved
from kit.config.program_arguments import PLACE, is_value, values_of
from kit.errors import Fault
from kit.frameworks.base import Extra


def written_twice(resolved: Resolved, extra: Extra, tables: tuple[str, ...]) -> Iterator[Fault]:
    """A fault for each option of the words after `--` that the kit writes from a table of the job."""
    written = {word.partition("=")[0] for word in extra.args if not is_value(word)}
    for option in sorted(written & resolved.words.options):
        key = next(iter(_keys(resolved, option, tables)), None)
        if key is None:
            problem, hint = "the kit writes this option itself", f"leave {option} out"
        else:
            problem = f"the kit writes this option, from {key}"
            value = " ".join(values_of(resolved.words, option)) or "true"
            hint = f"--set {shlex.quote(f'{key}={value}')}"
        yield Fault(file=PLACE, key=option, problem=problem, hint=hint)


def _keys(resolved: Resolved, option: str, tables: tuple[str, ...]) -> Iterator[str]:
    """The key of the job with the option's name."""
    name = option.lstrip("-").rpartition(".")[2].replace("-", "_")
    for table in tables:
        model = getattr(resolved.job, table)
        given = model.model_dump() if hasattr(model, "model_dump") else model or {}
        yield from (f"{table}.{key}" for key in given if key.replace("-", "_") == name)
