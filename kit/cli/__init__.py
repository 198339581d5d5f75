"""The command line. One file a noun, no logic; `main` is the only place that catches and prints errors."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

import typer

from kit.errors import ConfigError, KitError

app = typer.Typer(
    name="kit",
    help="One job file and one command: container-pinned training runs on Slurm with Enroot and Pyxis.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Click's base of all usage errors. Typer brings a click of its own in some releases and uses the installed one in others; its own
# exception knows which.
_UsageFault: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def _register() -> None:
    from kit.cli import checkpoints, cluster, images, jobs, model, nodes, project, results, runs, sweep, template

    app.command("init")(project.init)
    app.command("build-image")(images.build_image)
    app.command("import-image")(images.import_image)
    app.command("images")(images.images)
    app.command("verify-image")(images.verify_image)
    app.command("prune-images")(images.prune_images)
    app.command("render")(jobs.render)
    app.command("submit")(jobs.submit)
    app.command("resume")(jobs.resume)
    app.command("shell")(jobs.shell)
    app.command("nodes")(nodes.nodes)
    app.command("sweep")(sweep.sweep)
    app.command("results")(results.results)
    app.command("model")(model.model)
    app.command("runs")(runs.runs)
    app.command("status")(runs.status)
    app.command("logs")(runs.logs)
    app.command("cancel")(runs.cancel)
    app.command("convert-checkpoint")(checkpoints.convert_checkpoint)
    app.command("checkpoint-size")(checkpoints.checkpoint_size)
    app.command("schema")(project.schema)
    app.add_typer(cluster.app, name="cluster")
    app.add_typer(template.app, name="template")


def main() -> NoReturn:
    """Run the command line; exit with the code of the error's class (kit/errors.py)."""
    debug = "--debug-kit" in sys.argv[1:] or os.environ.get("KIT_TRACEBACK") == "1"
    sys.argv = [word for word in sys.argv if word != "--debug-kit"]
    # TERM unwinds the stack as Ctrl-C does, so that every lock, child and temporary file finds its owner.
    signal.signal(signal.SIGTERM, _terminated)
    try:
        _register()
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


def report(error: KitError) -> None:
    """Print an error: its message, a line per fault, and what to try."""
    label = "config error" if isinstance(error, ConfigError) else "error"
    print(f"kit: {label}: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"  try: {error.hint}", file=sys.stderr)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
