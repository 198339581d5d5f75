"""Ctrl-C: the first one unwinds the command, and prints a line if that takes long. A second one stops the clean-up."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

# A command that ends within this time, in seconds, prints no line about its clean-up.
_SILENCE_S = 1.0
# Seconds after which a signal that Python has dropped is sent again.
_AGAIN_S = 0.05

_pressed = 0
_dropped = False
_teller: threading.Timer | None = None


def watch() -> None:
    """Handle SIGINT from now on, unless the parent ignores it, as nohup or a shell's background job does.

    From now on, too, no signal whose handler raises an exception is lost.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    sys.unraisablehook = _send_again


def end() -> int:
    """Print the last line, and return the exit code: 130, as in a shell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _teller is not None:
        _teller.cancel()
    _say("interrupted")
    return 130


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    global _pressed, _dropped, _teller  # noqa: PLW0603 - one process has one terminal
    if _dropped:
        _dropped = False
        raise KeyboardInterrupt
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


def _send_again(raised: sys.UnraisableHookArgs) -> None:
    """Send a signal again whose exception Python drops.

    Python drops an exception in a destructor or in a weak reference's callback, and a signal's handler may be called in one,
    such as Popen.__del__. The next call of the handler finds the command itself.
    """
    global _dropped
    if isinstance(raised.exc_value, KeyboardInterrupt):
        number, _dropped = signal.SIGINT, True
    elif isinstance(raised.exc_value, SystemExit) and raised.exc_value.code == 128 + signal.SIGTERM:
        number = signal.SIGTERM
    else:
        sys.__unraisablehook__(raised)
        return
    timer = threading.Timer(_AGAIN_S, os.kill, [os.getpid(), number])
    timer.daemon = True
    timer.start()
