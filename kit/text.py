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


# Lines keep their ends.
_UNSAFE_IN_LINES = re.compile(_UNSAFE.pattern.replace("\x0a-\x1f", "\x0b-\x1f"))
# Colours (ECMA-48 SGR) are left out: a log is full of them, and all they could do here is hide text.
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_HARMLESS = bytes([0x09, 0x0A, *range(0x20, 0x7F)])


def clean_lines(chunk: bytes) -> bytes:
    """Lines of a log for a terminal, as `clean` makes one; colours are left out, and bytes that are no UTF-8 are escaped."""
    if chunk.isascii() and not chunk.translate(None, _HARMLESS):
        return chunk
    shown = _COLOUR.sub("", chunk.decode("utf-8", errors="backslashreplace"))
    return _UNSAFE_IN_LINES.sub(_escaped, shown).encode()
