"""Runs a program in a forked process as the interpreter would have started it: `python SCRIPT …` or `python -m MODULE …`."""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import signal
import sys
from types import ModuleType, TracebackType

# Names that the interpreter gives every program's module.
_NAMES = {"__annotations__", "__cached__", "__file__", "__loader__", "__package__", "__spec__"}
_OWN_NAMES = _NAMES & vars(sys.modules["__main__"]).keys()


def run(argv: list[str]) -> None:
    """Run a program as the interpreter would: `python SCRIPT ARGUMENT…` or `python -m MODULE ARGUMENT…`."""
    by_name = argv[1] == "-m"
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = list(argv)
    sys.argv = ["-m", *argv[3:]] if by_name else list(argv[1:])
    set_path0(argv)
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    # Python 3.14 has one of these names less.
    main.__dict__.update(
        {name: {} if name == "__annotations__" else None for name in _OWN_NAMES - main.__dict__.keys()}
    )
    sys.modules["__main__"] = main
    try:
        if by_name:
            import runpy  # noqa: PLC0415

            # What the interpreter itself calls for -m. Typeshed has no private names.
            runpy._run_module_as_main(argv[2])  # type: ignore[attr-defined]
        else:
            # From Python 3.9 on, the path is absolute.
            path = argv[1] if sys.version_info < (3, 9) else os.path.join(os.getcwd(), argv[1])  # noqa: PTH109, PTH118
            main.__file__ = path
            main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
            with open(path, "rb") as file:  # noqa: PTH123
                text = file.read()
            exec(compile(text, path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - what the interpreter does with an exception that nobody catches
        _report(type(error), error, error.__traceback__)


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception without the frames of this file, and end as the interpreter would."""
    trace = trace.tb_next if trace is not None else None
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    sys.excepthook(kind, error, trace)
    if not issubclass(kind, KeyboardInterrupt):
        raise SystemExit(1) from None
    import atexit  # noqa: PLC0415
    import threading  # noqa: PLC0415

    threading._shutdown()  # type: ignore[attr-defined] # as the interpreter does at its end
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


def set_path0(argv: list[str]) -> None:
    """Put the folder first that the interpreter would: that of the script, or with -m the working folder."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, os.getcwd() if argv[1] == "-m" else os.path.dirname(os.path.realpath(argv[1])))  # noqa: PTH109, PTH120
