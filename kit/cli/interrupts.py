"""Ctrl-C: the first one unwinds the command, and prints a line if that takes long. A second one stops the clean-up."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

# A command that ends within this time, in seconds, prints no line about its clean-up.
_SILENCE_S = 1.0

_pressed = 0
_teller: threading.Timer | None = None


def watch() -> None:
    """Handle SIGINT from now on, unless the parent ignores it, as nohup or a shell's background job does."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def end() -> int:
    """Print the last line, and return the exit code: 130, as in a shell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _teller is not None:
        _teller.cancel()
    _say("interrupted")
    return 130


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    global _pressed, _teller  # noqa: PLW0603 - one process has one terminal
    _pressed += 1
    if _pressed == 1:
        _teller = threading.Timer(_SILENCE_S, _say, ["interrupted: cleaning up; another Ctrl-C stops that too"])
        _teller.daemon = True
        _teller.start()
    else:
        _say("interrupted again: the next start of kit removes what this one leaves")
    raise KeyboardInterrupt


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
