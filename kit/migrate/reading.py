"""Holds what is known of a script while it is read: the job so far, its variables, and where its program starts."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.files import untrusted_files
from kit.migrate import names_in_lines
from kit.migrate.bash_tree import lines_of, text_of
from kit.migrate.report import LineEntry, Migration, Places
from kit.migrate.shell_lines import ShellLines
from kit.migrate.variables import Variables
from kit.migrate.words import ScriptValues
from kit.schema.sbatch_sizes import Sizes

if TYPE_CHECKING:
    from tree_sitter import Node

_TABLES = ("env", "resources", "slurm", "step", "torchrun", "container", "secrets", "retry")
MOST_BYTES = 16 << 20  # of a script, as in kit.config.script_header


@dataclass(kw_only=True)
class ScriptState:
    """One script. folder: where the ranks start, relative to the script's folder or absolute; empty for that folder.

    steps: programs of ranks so far. code_is_known: `$?` is the ranks' exit code. exit_trap: lines for the end.
    """

    path: Path
    text: str
    report: Migration
    job: dict[str, Any]
    sizes: Sizes
    values: ScriptValues
    lines: ShellLines
    variables: Variables
    folder: str = ""
    steps: int = 0
    errexit: bool = False
    code_is_known: bool = False
    exit_trap: str = ""
    functions: dict[str, Node] = field(default_factory=dict)

    def enter(self, node: Node, places: Places, *, file: str = "") -> None:
        """Note the places of a statement. Values that look like secrets are written nowhere."""
        text = re.sub(rf"({names_in_lines.SECRET.pattern})=(\"[^\"]*\"|'[^']*'|\S+)", r"\1=…", text_of(node).strip())
        span = (node.start_byte, node.end_byte)
        self.report.entries.append(LineEntry(lines=lines_of(node), span=span, text=text, places=places, file=file))


def begin(path: Path, text: str) -> ScriptState:
    """A script of which nothing has been read."""
    job: dict[str, Any] = {"name": "", "launcher": "", **{name: {} for name in _TABLES}}
    # sbatch hands these over; the folder is where a script is usually submitted.
    known = {"HOME": str(Path.home()), "USER": getpass.getuser(), "SLURM_SUBMIT_DIR": str(path.absolute().parent)}
    values, sizes = ScriptValues(known=known, arrays={"@": []}), Sizes()
    lines = ShellLines(values=values)
    variables = Variables(values=values, lines=lines, job=job, sizes=sizes)
    report = Migration(script=path.name)
    return ScriptState(
        path=path, text=text, report=report, job=job, sizes=sizes, values=values, lines=lines, variables=variables
    )


def text_beside(path: Path) -> str | None:
    """The text of a file that the script names; None if there is none, or none that a shell could have been meant to read."""
    try:
        return untrusted_files.read_bytes(path, most=MOST_BYTES).decode(errors="replace")
    except OSError:
        return None
