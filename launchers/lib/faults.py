"""Turns errors of the kit's file-making programs into words for the user."""

import importlib
import json
import sys
from typing import Any


class Refused(Exception):  # noqa: N818 - it says what happened, as the message does
    """The input, or what was asked of it, cannot be. hint: what to try."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def tell(message: str, hint: str, *, as_json: bool) -> None:
    """The one error of a program, on its standard error: as a line of JSON for the kit, or as text."""
    if as_json:
        print(json.dumps({"error": message, "hint": hint}), file=sys.stderr)
    else:
        print(f"error: {message}" + (f"\n  try: {hint}" if hint else ""), file=sys.stderr)


def imported(module: str, what: str) -> Any:
    """A module that only some input needs, such as a reader of parquet; Refused where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".", maxsplit=1)[0]
        raise Refused(
            f"{what} needs the Python package {package}, which is not installed here",
            hint=f"pip install {package}, or an image that has it",
        ) from None
