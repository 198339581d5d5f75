"""Prints answers of commands as JSON (docs/reference/answers.md)."""

from __future__ import annotations

import json
import math
from typing import Any


def print_json(command: str, answer: Any, *, indent: int | None = 2, named: bool = False) -> None:
    """Print what `kit COMMAND --json` answers, with the version of its schema. JSON has no NaN and no infinity: they are null.

    indent: None prints one line. named: the answer has an object for each of several names.
    """
    from kit.answers.schema_versions import versioned

    whole = {name: versioned(command, one) for name, one in answer.items()} if named else versioned(command, answer)
    try:
        text = json.dumps(whole, indent=indent, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(whole), indent=indent, allow_nan=False)
    print(text, flush=indent is None)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
