"""The exit of a training program. It runs the exit handlers, flushes the output, and skips the rest of Python's shutdown.

Python's shutdown can crash a rank that has finished its training. The log says `terminate called without an active exception`, and
the exit code is 134 or 139. The cause is a gloo thread. It needs Python's global lock (GIL) to free the tensors of the last
collective. If it still waits for the GIL when the shutdown begins, Python ends the thread, and the C++ runtime aborts the process.
Seen with torch 2.13 and Python 3.11.
"""

import atexit
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn


def exit_with(program: Callable[[], int]) -> NoReturn:
    """Call `program`, and exit with the code that it returns.

    An exception goes through the whole shutdown, as in any program: a run that has failed gains nothing by a faster exit.
    """
    code = program()
    # Python's shutdown (Py_FinalizeEx) begins with these three. The first waits for threads that are not daemons.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 0xFF)
