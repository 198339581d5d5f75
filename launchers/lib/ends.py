"""The end of a program: its exit functions run and its streams are flushed, and then the process ends at once.

Python's own end aborts a rank now and then, although its work is done: exit code 134 or 139, after the line `terminate called
without an active exception`. A thread of gloo frees the tensors of the last collective, and needs the interpreter's lock for it. If
it still waits for the lock while the interpreter ends, Python ends the thread, and C++ then aborts the process (seen with torch
2.13 and Python 3.11).
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn


def run(program: Callable[[], int]) -> NoReturn:
    """Call `program`, and end this process with the exit code that it returns.

    An exception is printed, and ends the process with code 1. SystemExit ends it with its own code, or prints its text.
    """
    try:
        code: object = program()
    except SystemExit as error:
        code = error.code
    except Exception:  # noqa: BLE001 - as Python does with an exception that nobody catches
        sys.excepthook(*sys.exc_info())
        code = 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    # What Py_FinalizeEx does first, in its order. multiprocessing ends its processes in the same way.
    threading._shutdown()  # type: ignore[attr-defined]  # it waits for threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((code or 0) & 0xFF)
