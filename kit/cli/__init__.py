"""The command line. Each file has the commands of one noun, without logic. Only `main` catches and prints errors."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from kit.cli import interrupts, program_words
from kit.cli.groups import GROUPS

if TYPE_CHECKING:
    from kit.cli.command_group import app
    from kit.errors import KitError

__all__ = ["GROUPS", "app", "main", "print_error"]
# Errors when a write to a pipe, a terminal or a file fails.
_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG})


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'kit.cli' has no attribute {name!r}")
    from kit.cli import command_group

    return command_group.app


def main() -> NoReturn:
    """Run the command line; exit with the code of the error's class (kit/errors.py)."""
    _collect_garbage_less_often()
    from kit import shell
    from kit.errors import KitError

    debug = "--debug-kit" in sys.argv[1:] or os.environ.get("KIT_TRACEBACK") == "1"
    sys.argv = [word for word in sys.argv if word != "--debug-kit"]
    sys.argv[1:] = program_words.as_overrides(sys.argv[1:])
    # The kit uses no pydantic plugins, and searching for them takes longer than reading a job.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # SIGTERM unwinds the stack as Ctrl-C does, so that locks, children and temporary files are cleaned up.
    signal.signal(signal.SIGTERM, _terminated)
    interrupts.watch()
    _open_standard_files()
    shell.set_own_umask()
    try:
        code = _run()
    except (KitError, OSError) as error:
        if debug:
            raise
        code = _failed(error)
    sys.exit(_flushed(code))


def _run() -> int:
    """The command's own exit code. The caller handles KitError and OSError."""
    try:
        from kit.cli import command_group

        return command_group.run()
    except KeyboardInterrupt:
        return interrupts.end()


def _failed(error: KitError | OSError) -> int:
    """Report an error that ended the command; return its exit code. A closed pipe (`| head`) is not reported."""
    from kit.errors import KitError

    if isinstance(error, KitError):
        print_error(error)
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        _discard_output()
        return 141
    if error.filename is None and error.errno in _OUTPUT_ERRORS:
        _discard_output()
    print_error(KitError(_said(error)))
    return 1


def _said(error: OSError) -> str:
    """The path and the reason. An error without a path comes from writing the output."""
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"cannot write the output: {reason}" if error.errno in _OUTPUT_ERRORS else reason
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    return f"{' -> '.join(names)}: {reason}" if names else reason


def _flushed(code: int) -> int:
    """Write buffered output while an error can still be reported; return the exit code."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard_output()
        return _failed(error) if code == 0 else code
    return code


def _discard_output() -> None:
    """Discard further output to stdout. Otherwise Python would try to write it again at exit and report its own error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _open_standard_files() -> None:
    """Open the standard files that the caller has closed.

    Otherwise the next opened file would get one of their numbers, and our output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as below
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - it lasts as long as the program
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as below


def _collect_garbage_less_often() -> None:
    """Collect garbage less often: it would take a quarter of a short command's time, mostly for classes that stay anyway."""
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)


def wants_json() -> bool:
    """Whether the command line has --json before the words of the program."""
    words = sys.argv[1:]
    # All words behind the script of `kit run` are the program's.
    return words[:1] != ["run"] and "--json" in (words[: words.index("--")] if "--" in words else words)


def print_error(error: KitError) -> None:
    """Print an error: its message, a line for each fault, and a hint. With --json, one object on one line."""
    from kit.errors import ConfigError
    from kit.files.safe_text import clean

    if wants_json():
        _print_as_json(error)
        return
    label = "config error" if isinstance(error, ConfigError) else "error"
    # Messages quote file names, values and output of other programs.
    lines = [f"kit: {label}: {error.message}", *([f"  try: {error.hint}"] if error.hint else [])]
    # If stderr cannot be written either, only the exit code reports the error.
    with contextlib.suppress(OSError):
        print("\n".join(clean(line) for text in lines for line in text.split("\n")), file=sys.stderr, flush=True)


def _print_as_json(error: KitError) -> None:
    from kit.answers.printed_error import printed

    with contextlib.suppress(OSError):
        # Characters that a terminal would obey are escaped.
        print(printed(error), file=sys.stderr, flush=True)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
