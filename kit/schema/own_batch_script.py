"""The kinds of batch scripts that `[slurm] template` names: Jinja or a plain script, the kit's own or another."""

from __future__ import annotations

import re
from collections.abc import Mapping

# The line of the kit's own templates above which Jinja works.
MARK = "# Below this line nothing is generated.\n"
# A block, or a value as people write it. bash has `${#array[@]}` and `{{a,b},c}`, too.
_JINJA = re.compile(r"\{%-?\s|\{\{-?\s")
# The kit's own batch script, and changed copies of it, record the run themselves by this library.
_RECORDS_ITSELF = "lib/retry.sh"
# Calls of the library that copies the job's folder: by the phases of all parts, or by name.
_COPIES = re.compile(r"\b(?:parts::require prepare|workspace::prepare)\b")
# A function of a library lib/NAME.sh is NAME::VERB.
_FUNCTION = re.compile(r"(?<![\w:])([a-z_]+)::[a-z_]+(?![\w:])")
_DEFINED = re.compile(r"^\s*(?:function\s+)?([a-z_]+::[a-z_]+)\s*\(\)", re.MULTILINE)
_COMMENT = re.compile(r"(?:^|\s)#.*")


def is_template(text: str) -> bool:
    """Whether Jinja renders the file. A plain script is copied as it is, and its header is read."""
    return MARK in text or _JINJA.search(text) is not None


def is_of_the_kit(text: str) -> bool:
    """Whether the script is the kit's own, perhaps changed. Any other one runs below a script of the kit, which records it."""
    return _RECORDS_ITSELF in text


def copies_workspace(text: str) -> bool:
    """Whether a script of the kit's, perhaps changed, makes the run's copy of the job's folder."""
    return _COPIES.search(text) is not None


def missing_functions(text: str, libraries: Mapping[str, str]) -> list[str]:
    """Functions of the kit's libraries that a script calls, and that neither these (lib/NAME.sh -> text) nor the script define,
    sorted. What a script of an earlier release calls may be gone. Functions of anybody else's libraries do not count.
    """
    defined = {name for one in (text, *libraries.values()) for name in _DEFINED.findall(one)}
    calls = {match.group(): f"lib/{match[1]}.sh" for match in _FUNCTION.finditer(_COMMENT.sub("", text))}
    return sorted(name for name, file in calls.items() if name not in defined and (file in libraries or file in text))
