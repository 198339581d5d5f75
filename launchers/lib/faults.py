"""Turns errors of programs that make files into messages for the user."""

import importlib
import json
import sys
from typing import Any


class Refused(Exception):  # noqa: N818 - named after what happened, as the message is
    """The input, or the request, cannot be used. hint: what to try."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def tell(message: str, hint: str, *, as_json: bool) -> None:
    """Print the error of a program to its standard error: as a line of JSON for the kit, or as text."""
    if as_json:
        print(json.dumps({"error": message, "hint": hint}), file=sys.stderr)
    else:
        print(f"error: {message}" + (f"\n  try: {hint}" if hint else ""), file=sys.stderr)


def imported(module: str, what: str) -> Any:
    """Import a module that only some input needs, such as a parquet reader. Refused where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".", maxsplit=1)[0]
        raise Refused(
            f"{what} needs the Python package {package}, which is not installed here",
            hint=f"pip install {package}, or an image that has it",
        ) from None
