"""Warns about words that look as if a shell would expand them. No shell does: arguments reach the program unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import get_args

from kit.errors import Fault
from kit.schema.job import Job, RankVariable
from kit.schema.roles import Role

_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)")
_HOME = re.compile(r"(^|=)~(/|$)")
_RANK = frozenset(get_args(RankVariable))

_IN_A_SHELL = "export the variable in a line of setup, which a shell reads"


def unexpanded(job: Job, roles: Mapping[str, Role]) -> Iterator[Fault]:
    """A warning for each word of the job or its roles that contains `$NAME` or begins with `~/`.

    Lines of `setup` are shell and are skipped.
    """
    script = [("script", job.script)] if job.script else []
    command = _listed("command", job.command or ()) if "-c" not in (job.command or ()) else []
    yield from _warnings([*script, *command, *_listed("args", job.args), *_named("env", job.env)])
    for name, role in roles.items():
        words = _listed(f"roles.{name}.args", role.args)
        # The word after `bash -c` is a shell line.
        if role.command is not None and "-c" not in role.command:
            words = [*_listed(f"roles.{name}.command", role.command), *words]
        yield from _warnings([*words, *_named(f"roles.{name}.env", role.env)])


def _listed(key: str, words: Iterable[str]) -> list[tuple[str, str]]:
    return [(f"{key}[{place}]", word) for place, word in enumerate(words)]


def _named(key: str, env: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(f"{key}.{name}", value) for name, value in env.items()]


def _warnings(words: Iterable[tuple[str, str]]) -> Iterator[Fault]:
    for key, word in words:
        if match := _VARIABLE.search(word):
            name = match[1]
            hint = f'inherit = ["{name}"] at the top of the file, and let the program read it; or write its value'
            if key.startswith("env.") and key == f"env.{name}":
                # The variable with more in front or behind: its value is known only on the nodes, in a shell.
                line = f'export {name}="{word}"'
                hint = (
                    f"setup = ['{line}'] in place of this line" if "'" not in line and '"' not in word else _IN_A_SHELL
                )
            elif name in _RANK:
                hint = f'rank_args = {{ --{name.lower()} = "{name}" }}'
            yield Fault(key=key, problem=f"nothing expands {match[0]}: the program gets the text itself", hint=hint)
        elif _HOME.search(word):
            problem = "nothing expands ~: the program gets the text itself"
            yield Fault(key=key, problem=problem, hint="write the path from / on, as the ranks see it")
