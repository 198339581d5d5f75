"""Makes text from others safe to show: it cannot move the cursor, set a title, or change the text direction."""

from __future__ import annotations

import re
from functools import cache

# C0 and C1 controls, delete, line and paragraph separators, the marks that change the direction of text, and lone surrogates.
# Patterns are compiled where they are used first: each takes longer than most of a module's import.
_UNSAFE = "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"


def clean(text: str) -> str:
    """One line for a terminal: each control character becomes its escape, such as `\\x1b`. Tabs stay."""
    # Characters to escape are never printable. This check is four times as fast, and nearly all cells of a table pass it.
    return text if text.isprintable() else re.sub(_UNSAFE, _escaped, text)


def is_unsafe(text: str) -> bool:
    """Whether text has a character that `clean` would escape, other than a line end."""
    return not text.isprintable() and re.search(_UNSAFE_IN_LINES, text) is not None


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return {0x0A: "\\n", 0x0D: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


# In several lines, line ends stay.
_UNSAFE_IN_LINES = _UNSAFE.replace("\x0a-\x1f", "\x0b-\x1f")
# Colours (ECMA-48 SGR) are removed: logs are full of them, and here they could only hide text.
_COLOUR = rb"\x1b\[[0-9;:]*m"


@cache
def _controls() -> list[bytes]:
    """The control bytes to search for. A search for one byte uses memchr, the fastest check there is, and logs have gigabytes."""
    return [bytes([code]) for code in range(0x80) if re.match(_UNSAFE_IN_LINES, chr(code))]


@cache
def _leads() -> list[bytes]:
    """The first UTF-8 bytes of unsafe characters above 0x7f. They are computed when a log is first read, because it takes 9 ms."""
    unsafe = re.compile(_UNSAFE_IN_LINES)
    found = (chr(code) for code in range(0x80, 0xE000) if unsafe.match(chr(code)))
    return sorted({one.encode("utf-8", "surrogatepass")[:-1] for one in found})


def clean_lines(chunk: bytes) -> bytes:
    """Lines of a log for a terminal, cleaned as by `clean`. Colours are removed, and bytes that are not UTF-8 are escaped."""
    if b"\x1b" in chunk:
        chunk = re.sub(_COLOUR, b"", chunk)
    if not any(control in chunk for control in _controls()) and _is_safe_text(chunk):
        return chunk
    return re.sub(_UNSAFE_IN_LINES, _escaped, chunk.decode("utf-8", errors="backslashreplace")).encode()


def _is_safe_text(chunk: bytes) -> bool:
    """Whether the bytes are UTF-8 without an unsafe character above 0x7f."""
    if chunk.isascii():
        return True
    if any(lead in chunk for lead in _leads()):
        return False
    try:
        chunk.decode()
    except UnicodeDecodeError:
        return False
    return True
