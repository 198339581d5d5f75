"""The text for `sh` on the cluster: quoted constants, the shared functions, and the program. No word is quoted by hand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from kit import data_folders

_VARIABLES = {"{home}": '"$HOME"', "{user}": '"$KIT_USER"', "{data}": '"$KIT_DATA"'}
_PLACEHOLDER = r"(\{(?:home|user|data)\})"


class Words(tuple[str, ...]):
    """A command, as separate words."""


class Unquoted(str):
    """Shell text that the kit itself has made."""


def text(
    name: str,
    constants: Mapping[str, object],
    *,
    mark: str,
    path: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """The text of templates/remote/<name>.sh. mark: the first bytes of its answer. path: folders put before PATH."""
    lines = [f"KIT_MARK={quoted(mark)}", *([f"PATH={quoted(path)}:$PATH"] if path else [])]
    # Variables for the job. They are set after the session's own variables are removed.
    # A function that this machine's shell exports (BASH_FUNC_NAME%%) is no variable there.
    known = {key: value for key, value in (environment or {}).items() if key.isidentifier()}
    inherited = "".join(f"export {key}={quoted(value)}; " for key, value in known.items())
    lines.append(f"kit_inherited() {{ {inherited}:; }}")
    # The shared part finds out the user's folders on the cluster, which constants may use.
    lines.append(_read_program("shared"))
    for key, value in constants.items():
        if isinstance(value, Words):
            lines.append(f"kit_{key.lower()}() {{ {' '.join(map(quoted, value))}; }}")
        else:
            lines.append(f"{key}={value if isinstance(value, Unquoted) else quoted(str(value))}")
    return "\n".join([*lines, _read_program(name), "kit_answer_all", ""])


def alone(argv: Sequence[str], *, path: str = "", environment: Mapping[str, str]) -> str:
    """A command as shell text. The shell is replaced by the command."""
    folders = [f"PATH={quoted(path)}:$PATH; export PATH; "] if path else []
    exports = [f"export {key}={quoted(value)}; " for key, value in environment.items()]
    return "".join([*folders, *exports, "exec ", " ".join(map(quoted, argv))])


def _read_program(name: str) -> str:
    """A program's text. Unlike other templates, it needs no Jinja."""
    return (data_folders.packaged() / "templates" / "remote" / f"{name}.sh").read_text(encoding="utf-8")


def quoted(word: str) -> str:
    """Quote one word for sh."""
    return shlex.quote(word)


def filled(path: str) -> Unquoted:
    """A path of a cluster's file as one word of sh. Its placeholders are filled in on the cluster."""
    whole = "{home}" + path[1:] if path == "~" or path.startswith("~/") else path
    parts = [part for part in re.split(_PLACEHOLDER, whole) if part]
    return Unquoted("".join(_VARIABLES.get(part) or quoted(part) for part in parts))
