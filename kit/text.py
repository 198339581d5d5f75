"""Text that somebody else wrote, made safe to show: nothing in it moves the cursor, sets a title, or changes the direction."""

from __future__ import annotations

import re

# C0 and C1 controls, delete, line and paragraph separators, the marks that change the direction of text, and lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """One line for a terminal: each control character as its escape, such as `\\x1b`. Tabs stay."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return {0x0A: "\\n", 0x0D: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
