"""The command line. One file a noun, no logic; `main` is the only place that catches and prints errors."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn

import typer

from kit.errors import ConfigError, KitError

app = typer.Typer(
    name="kit",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Click's base of all usage errors. Typer brings a click of its own in some releases and uses the installed one in others; its own
# exception knows which.
_UsageFault: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


# Each command by its name, as module of this package and function there. A command's own module is the only one that it waits for.
_COMMANDS = {
    "init": "project.init",
    "build-image": "images.build_image",
    "import-image": "images.import_image",
    "images": "images.images",
    "verify-image": "images.verify_image",
    "prune-images": "images.prune_images",
    "render": "jobs.render",
    "submit": "jobs.submit",
    "resume": "jobs.resume",
    "shell": "jobs.shell",
    "nodes": "nodes.nodes",
    "sweep": "sweep.sweep",
    "generate": "generate.generate",
    "results": "results.results",
    "model": "model.model",
    "runs": "runs.runs",
    "status": "runs.status",
    "logs": "runs.logs",
    "tmux": "runs.tmux",
    "cancel": "runs.cancel",
    "convert-checkpoint": "checkpoints.convert_checkpoint",
    "checkpoint-size": "checkpoints.checkpoint_size",
    "schema": "project.schema",
}
_NOUNS = ("cluster", "template")


@app.callback()
def _kit() -> None:
    """One job file and one command: container-pinned training runs on Slurm with Enroot and Pyxis."""


def _register(asked: str) -> None:
    """The command or noun that is asked for; all of them for help, and for a name that is none of them."""
    known = {*_COMMANDS, *_NOUNS}
    for name, place in _COMMANDS.items():
        if name == asked or asked not in known:
            module, _, function = place.partition(".")
            app.command(name)(getattr(import_module(f"kit.cli.{module}"), function))
    for name in _NOUNS:
        if name == asked or asked not in known:
            app.add_typer(import_module(f"kit.cli.{name}").app, name=name)


def main() -> NoReturn:
    """Run the command line; exit with the code of the error's class (kit/errors.py)."""
    _collect_seldom()
    debug = "--debug-kit" in sys.argv[1:] or os.environ.get("KIT_TRACEBACK") == "1"
    sys.argv = [word for word in sys.argv if word != "--debug-kit"]
    # Plugins that the environment holds for pydantic are none of the kit's, and looking for them costs more than reading a job.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # TERM unwinds the stack as Ctrl-C does, so that every lock, child and temporary file finds its owner.
    signal.signal(signal.SIGTERM, _terminated)
    try:
        _register(sys.argv[1] if len(sys.argv) > 1 else "")
        # Without standalone mode the code of a command's typer.Exit is what the call returns.
        code = app(standalone_mode=False)
    except KitError as error:
        if debug:
            raise
        report(error)
        sys.exit(error.exit_code)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (`kit logs | head`): nothing to report, and nothing more to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except _UsageFault as error:
        error.show()
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _collect_seldom() -> None:
    """A quarter of a short command's time would go into looking for garbage among classes that stay until its end."""
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)


def report(error: KitError) -> None:
    """Print an error: its message, a line per fault, and what to try."""
    label = "config error" if isinstance(error, ConfigError) else "error"
    print(f"kit: {label}: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"  try: {error.hint}", file=sys.stderr)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
