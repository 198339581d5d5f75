"""The text that `sh` gets there: constants as quoted words, what all programs share, and the program. No word is quoted by hand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from kit import data_folders

_VARIABLES = {"{home}": '"$HOME"', "{user}": '"$KIT_USER"', "{data}": '"$KIT_DATA"'}
_PLACEHOLDER = re.compile(r"(\{(?:home|user|data)\})")


class Words(tuple[str, ...]):
    """A command, word by word."""


class Unquoted(str):
    """Shell text that the kit has made itself."""


def text(
    name: str,
    constants: Mapping[str, object],
    *,
    mark: str,
    path: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """The program templates/remote/<name>.sh. mark: what its answer begins with. path: folders put before PATH."""
    lines = [f"KIT_MARK={quoted(mark)}", *([f"PATH={quoted(path)}:$PATH"] if path else [])]
    # Variables that the job inherits; they are set once those of the session are gone.
    inherited = "".join(f"export {key}={quoted(value)}; " for key, value in (environment or {}).items())
    lines.append(f"kit_inherited() {{ {inherited}:; }}")
    # It finds out who the user is there, which constants may name.
    lines.append(_plain("shared"))
    for key, value in constants.items():
        if isinstance(value, Words):
            lines.append(f"kit_{key.lower()}() {{ {' '.join(map(quoted, value))}; }}")
        else:
            lines.append(f"{key}={value if isinstance(value, Unquoted) else quoted(str(value))}")
    return "\n".join([*lines, _plain(name), "kit_answer_all", ""])


def alone(argv: Sequence[str], *, path: str = "", environment: Mapping[str, str]) -> str:
    """A command as sh's own text: the shell becomes it."""
    folders = [f"PATH={quoted(path)}:$PATH; export PATH; "] if path else []
    exports = [f"export {key}={quoted(value)}; " for key, value in environment.items()]
    return "".join([*folders, *exports, "exec ", " ".join(map(quoted, argv))])


def _plain(name: str) -> str:
    """A program's own text. Jinja, which fills in other templates, is not needed for it."""
    return (data_folders.packaged() / "templates" / "remote" / f"{name}.sh").read_text(encoding="utf-8")


def quoted(word: str) -> str:
    """One word of sh."""
    return shlex.quote(word)


def filled(path: str) -> Unquoted:
    """A path of a cluster's file whose placeholders are only known there, as one word of sh."""
    whole = "{home}" + path[1:] if path == "~" or path.startswith("~/") else path
    parts = [part for part in _PLACEHOLDER.split(whole) if part]
    return Unquoted("".join(_VARIABLES.get(part) or quoted(part) for part in parts))
