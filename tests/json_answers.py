"""Checks what commands print with --json against their schemas: every test that runs such a command checks its answer so."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def check_argv(argv: Sequence[str], code: int, out: str, err: str) -> None:
    """The same for the argv of a process; others than the kit are not looked at."""
    words = [*argv]
    if "-m" in words and words[words.index("-m") + 1 :][:1] == ["kit"]:
        check(words[words.index("-m") + 2 :], code, out, err)


def check(words: Sequence[str], code: int, out: str, err: str) -> None:
    """The answer of `kit WORDS`, if it was asked for --json: AssertionError for one that its schema does not describe."""
    own = [*words][: [*words].index("--")] if "--" in words else [*words]
    # A command that was ended may have printed half of its answer. Environments of frameworks may lack the validator.
    ended = code < 0 or code > 128
    if ended or "--json" not in own or "--help" in own or find_spec("jsonschema") is None:
        return
    command = command_of(own)
    if command is None:
        return
    if out.strip():
        for text in out.splitlines() if command in _schemas().LINES else [out]:
            _valid(command, text)
    last = err.rstrip().rpartition("\n")[2]
    if last.startswith('{"'):
        _valid("error", last)


def command_of(words: Sequence[str]) -> str | None:
    """The command that has a schema; None for another."""
    known = _schemas().answers()
    return next((name for count in (2, 1) if (name := " ".join(words[:count])) in known), None)


def checked(run: Callable[..., Any]) -> Callable[..., Any]:
    """`kit.shell.run`, with a check of what the kit printed."""

    @wraps(run)
    def checking(argv: Sequence[str], *args: Any, **options: Any) -> Any:
        done = run(argv, *args, **options)
        check_argv([str(word) for word in argv], done.returncode, done.stdout or "", done.stderr or "")
        return done

    return checking


def _schemas() -> Any:
    """Imported late: environments of frameworks, which run no command with --json, may lack what it imports."""
    return import_module("kit.answers.schemas")


def _valid(command: str, text: str) -> None:
    value = json.loads(text, parse_constant=_refuse)
    found = [f"{error.json_path}: {error.message[:300]}" for error in _validator(command).iter_errors(value)]
    name = _schemas().file_name(command)
    assert not found, f"{name}: the schema does not describe this answer: {'; '.join(found)}\n{text[:2000]}"


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@cache
def _validator(command: str) -> Any:
    """Strict: a key that the schema does not name is an error here, though readers shall ignore it."""
    return import_module("jsonschema").Draft202012Validator(_closed(_schemas().schema(command)))


def _closed(part: Any) -> Any:
    if isinstance(part, list):
        return [_closed(one) for one in part]
    if not isinstance(part, dict):
        return part
    made = {key: _closed(one) for key, one in part.items()}
    if isinstance(part.get("properties"), dict) and "type" in part:
        made.setdefault("additionalProperties", False)
    return made
