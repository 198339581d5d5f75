"""The command line. One file a noun, no logic; `main` is the only place that catches and prints errors."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from kit import shell
from kit.cli import interrupts
from kit.cli.help_lines import HELP_LINES
from kit.errors import ConfigError, KitError
from kit.safe_text import clean

# Click's base of all usage errors. Typer brings a click of its own in some releases and uses the installed one in others; its own
# exception knows which.
_UsageFault: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

# Each command by its group and name, as module of this package and function there. A name with `app` is a noun with commands of its
# own.
GROUPS = {
    "Jobs": {
        "init": "init.init",
        "render": "render_submit.render",
        "submit": "render_submit.submit",
        "sweep": "sweep.sweep",
        "when": "when.when",
        "shell": "shell.shell",
    },
    "Runs": {
        "runs": "runs.runs",
        "status": "runs.status",
        "why": "why.why",
        "diff": "diff.diff",
        "bisect": "bisect.bisect",
        "top": "top.top",
        "stacks": "stacks.stacks",
        "time": "time.time",
        "report": "report.report",
        "watch": "watch.watch",
        "logs": "logs_tmux.logs",
        "results": "results.results",
        "cancel": "runs.cancel",
        "resume": "runs.resume",
        "rerun": "rerun.rerun",
        "export": "export_import.export",
        "import": "export_import.import_",
        "tmux": "logs_tmux.tmux",
        "port": "port_notebook.port",
        "notebook": "port_notebook.notebook",
        "code": "port_notebook.code",
        "prune-snapshots": "snapshots.prune_snapshots",
    },
    "Images": {
        "build-image": "images.build_image",
        "import-image": "images.import_image",
        "images": "images.images",
        "verify-image": "images.verify_image",
        "sign-image": "images.sign_image",
        "prune-images": "images.prune_images",
        "diff-images": "images.diff_images",
    },
    "Clusters": {
        "cluster": "cluster.app",
        "nodes": "nodes.nodes",
    },
    "Tools": {
        "serve": "serve.serve",
        "model": "model.model",
        "checkpoint-size": "checkpoints.checkpoint_size",
        "convert-checkpoint": "checkpoints.convert_checkpoint",
        "prepare-data": "prepare_data.prepare_data",
        "generate": "generate.generate",
        "template": "template.app",
        "schema": "schema.schema",
    },
}
# What a write to a pipe, a terminal or a file that is no longer open by name ends with.
_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG})
_PLACES = {name: (group, place) for group, commands in GROUPS.items() for name, place in commands.items()}


class _Commands(TyperGroup):
    """Imports a command's module when the command is asked for: no other module delays it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Typer looks here for names that are near to a misspelt one.
        self.commands: Any = dict.fromkeys(_PLACES)
        self._only_named = False

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of the groups."""
        return list(_PLACES)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Typer's page, from the commands' names and lines alone."""
        self._only_named = True
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Click's, from the same."""
        self._only_named = True
        return super().shell_complete(ctx, incomplete)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; None when there is none."""
        if cmd_name not in _PLACES:
            return None
        if self._only_named and cmd_name in HELP_LINES:
            return TyperCommand(cmd_name, help=HELP_LINES[cmd_name], rich_help_panel=_PLACES[cmd_name][0])
        group, place = _PLACES[cmd_name]
        module, _, function = place.partition(".")
        found = getattr(import_module(f"kit.cli.{module}"), function)
        if function == "app":
            command: Any = typer.main.get_group(found)
        else:
            one = typer.Typer(add_completion=False)
            one.command(cmd_name)(found)
            command = typer.main.get_command(one)
        command.name, command.rich_help_panel = cmd_name, group
        return command


app = typer.Typer(
    name="kit",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from kit import __version__

        print(f"kit {__version__}")
        raise typer.Exit


@app.callback()
def _kit(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """One job file and one command: container-pinned training runs on Slurm with Enroot and Pyxis."""


def main() -> NoReturn:
    """Run the command line; exit with the code of the error's class (kit/errors.py)."""
    _collect_seldom()
    debug = "--debug-kit" in sys.argv[1:] or os.environ.get("KIT_TRACEBACK") == "1"
    sys.argv = [word for word in sys.argv if word != "--debug-kit"]
    # The kit uses no plugins of pydantic, and looking for them costs more than reading a job.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # TERM unwinds the stack as Ctrl-C does, so that every lock, child and temporary file finds its owner.
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
    """The command's own exit code; KitError and OSError are the caller's."""
    try:
        # Without standalone mode the code of a command's typer.Exit is what the call returns.
        code = app(standalone_mode=False)
    except typer.Exit as done:
        return int(done.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return interrupts.end()
    except _UsageFault as error:
        error.show()
        return int(error.exit_code)
    return code if isinstance(code, int) else 0


def _failed(error: KitError | OSError) -> int:
    """Report an error that ended the command; its exit code. A reader that went away (`| head`) is not reported."""
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
    """The path and the reason; an error without a path is one of writing the output."""
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"cannot write the output: {reason}" if error.errno in _OUTPUT_ERRORS else reason
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    return f"{' -> '.join(names)}: {reason}" if names else reason


def _flushed(code: int) -> int:
    """Write what is still held back, while an error can still be said; the exit code then."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard_output()
        return _failed(error) if code == 0 else code
    return code


def _discard_output() -> None:
    """Nothing more goes to stdout: Python would try again when it ends, and report it in its own words."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _open_standard_files() -> None:
    """Where the caller closed one of the three, the next file that is opened would take its number, and our output with it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - it lasts as long as the program
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _collect_seldom() -> None:
    """A quarter of a short command's time would go into looking for garbage among classes that stay until its end."""
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)


def print_error(error: KitError) -> None:
    """Print an error: its message, a line per fault, and what to try."""
    label = "config error" if isinstance(error, ConfigError) else "error"
    # Messages quote file names, values and other programs' output.
    lines = [f"kit: {label}: {error.message}", *([f"  try: {error.hint}"] if error.hint else [])]
    # Where stderr takes nothing either, only the exit code is left to say it.
    with contextlib.suppress(OSError):
        print("\n".join(clean(line) for text in lines for line in text.split("\n")), file=sys.stderr, flush=True)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
