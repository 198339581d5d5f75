"""The kinds of batch scripts that `[slurm] template` names: Jinja or a plain script, the kit's own or another."""

from __future__ import annotations

import re

# The line of the kit's own templates above which Jinja works.
MARK = "# Below this line nothing is generated.\n"
# A block, or a value as people write it. bash has `${#array[@]}` and `{{a,b},c}`, too.
_JINJA = re.compile(r"\{%-?\s|\{\{-?\s")
# The kit's own batch script, and changed copies of it, record the run themselves by this library.
_RECORDS_ITSELF = "lib/retry.sh"
# Calls of the library that copies the job's folder: by the phases of all parts, or by name.
_COPIES = re.compile(r"\b(?:parts::require prepare|workspace::prepare)\b")


def is_template(text: str) -> bool:
    """Whether Jinja renders the file. A plain script is copied as it is, and its header is read."""
    return MARK in text or _JINJA.search(text) is not None


def is_of_the_kit(text: str) -> bool:
    """Whether the script is the kit's own, perhaps changed. Any other one runs below a script of the kit, which records it."""
    return _RECORDS_ITSELF in text


def copies_workspace(text: str) -> bool:
    """Whether a script of the kit's, perhaps changed, makes the run's copy of the job's folder."""
    return _COPIES.search(text) is not None
