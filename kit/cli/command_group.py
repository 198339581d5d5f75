"""The command line as typer parses it. A command's module is imported when that command is called, or when its help is shown."""

from __future__ import annotations

import shlex
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kit.cli import interrupts, program_words
from kit.cli.groups import PLACES

# Click's base class of all usage errors. Some releases of typer contain their own click, others use the installed one. The bases of
# typer's own exception show which.
_UsageFault: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

# The least likeness, as difflib counts it, of a slip and the option that was meant: --flow and --follow have 0.86, --nodes and
# --yes 0.67.
_NEAR = 0.75
# Typer's answer to --gpus two, and plainer words.
_PARSER_WORDS = (
    "Input should be a valid integer, unable to parse string as an integer",
    "a whole number is expected",
)


class _Ended(Exception):  # noqa: N818 - it carries what ended a command past typer
    """An exception that typer would handle by ending the process itself: a Ctrl-C, or a closed output pipe."""

    def __init__(self, by: BaseException) -> None:
        super().__init__()
        self.by = by


class _Commands(TyperGroup):
    """Imports a command's module only when that command is used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Typer looks here for names that resemble a misspelt one.
        self.commands: Any = dict.fromkeys(PLACES)

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, in the order of the groups."""
        return list(PLACES)

    def invoke(self, ctx: Any) -> Any:
        """Typer's invoke, except that exceptions for main() pass through typer unhandled."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, BrokenPipeError) as error:
            raise _Ended(error) from error

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; None if there is none."""
        if cmd_name not in PLACES:
            return None
        group, place = PLACES[cmd_name]
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
        from kit.version import __version__

        print(f"kit {__version__}")
        raise typer.Exit


@app.callback()
def _kit(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Run training jobs on Slurm in pinned containers, with Enroot and Pyxis: one job file and one command."""


def _name_meant_options(error: Any) -> None:
    """For an unknown option, name those that the user may mean, first of all the longer ones: --gpus is short for --gpus-per-node.

    Click alone offers names with nearly the same letters, such as --cgroups.
    """
    given, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if not given or context is None:
        return
    names = [name for parameter in context.command.params for name in (*parameter.opts, *parameter.secondary_opts)]
    longer = [name for name in names if name.startswith(given)]
    if not longer and (line := _line_without(given, context.command.name, names)):
        error.message = f"No such option: {given}.\n  try: {line}"
        error.possibilities = None
        return
    meant = longer or [name for name in error.possibilities or () if _is_near(given, name)]
    error.message = f"No such option: {given}." + (f" Did you mean {' or '.join(meant)}?" if meant else "")
    error.possibilities = None


def _is_near(given: str, name: str) -> bool:
    """Whether one may be a slip for the other. Click's own bound offers --yes for --nodes."""
    from difflib import SequenceMatcher

    return SequenceMatcher(None, given, name).ratio() >= _NEAR


def _line_without(given: str, command: str | None, names: list[str]) -> str:
    """The command line for an option that is sbatch's or the program's: as a key by --set, or after --. Empty if it is neither."""
    from kit.schema.sbatch_options import SAME_VALUE

    words = sys.argv[1:]
    at = next((place for place, word in enumerate(words) if word.partition("=")[0] == given), None)
    if at is None:
        return ""
    before, (_, equals, value), after = words[:at], words[at].partition("="), words[at + 1 :]
    key = SAME_VALUE.get(given.lstrip("-").replace("-", "_"))
    if key is not None and "--set" in names:
        value, after = (value, after) if equals else (after[0] if after else "VALUE", after[1:])
        return shlex.join(["kit", *before, "--set", f"{key}={value}", *after])
    if command in {*program_words.COMMANDS, "run"} and not any(_is_near(given, name) for name in names):
        return shlex.join(["kit", *before, "--", *words[at:]])
    return ""


def _help_of(error: Any) -> str:
    """The command that shows what the failed one takes."""
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'kit'} --help"


def run() -> int:
    """The command's own exit code. The caller handles KitError and OSError."""
    try:
        # Outside standalone mode, the call returns the code of a command's typer.Exit.
        code = app(standalone_mode=False)
    except typer.Exit as done:
        return int(done.exit_code)
    except typer.Abort:
        return interrupts.end()
    except _UsageFault as error:
        _name_meant_options(error)
        error.message = error.message.replace(*_PARSER_WORDS)
        from kit.cli import wants_json

        if wants_json():
            from kit.errors import UsageError

            raise UsageError(error.format_message(), hint=_help_of(error)) from None
        error.show()
        return int(error.exit_code)
    except _Ended as ended:
        raise ended.by from None
    return code if isinstance(code, int) else 0
