"""Gives each line after the ranks its place: [after], or none where the kit does the same."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kit.migrate import bash_tree, before_ranks
from kit.migrate.bash_tree import name_of, text_of
from kit.migrate.reading import ScriptState
from kit.migrate.report import Places, UnreadError

if TYPE_CHECKING:
    from tree_sitter import Node

_NO_LINE = re.compile(r"\b(sbatch|scancel|scontrol|sbcast|salloc|squeue|srun|exec|return|trap)\b")
_CODE = re.compile(r"\$\?|\$\{\?\}")
_WHEN = "after.lines: once, on the first node"


def place(node: Node, read: ScriptState, places: Places) -> None:
    """Write a statement's keys. UnreadError if it has no place."""
    known, read.code_is_known = read.code_is_known, False
    text = text_of(node)
    if name_of(node) == "wait" and node.type == "command":
        places.kit(f"{text}: the kit waits for the ranks")
        read.code_is_known = True
    elif re.fullmatch(r"\w+=\$\{?!\}?", text):
        places.kit(f"{text}: the kit waits for its own steps")
        read.code_is_known = known
    elif name_of(node) == "exit" and node.type == "command":
        places.out(f"{text}: the run has the exit code of its ranks, whatever the script makes of it")
    elif before_ranks.prints(node):
        places.out("the line only prints")
    elif node.type == "function_definition":
        raise UnreadError("kit migrate does not follow functions")
    else:
        _add(text, read, places, code_is_known=known)


def only_if(node: Node, read: ScriptState, places: Places, *, ended_well: bool) -> None:
    """`RANKS && LINE` and `RANKS || LINE`."""
    test = "==" if ended_well else "!="
    text = f"if (( KIT_EXIT_CODE {test} 0 )); then {text_of(node)}; fi"
    _add(text, read, places, code_is_known=True)


def at_the_end(read: ScriptState, places: Places) -> None:
    """The lines of `trap … EXIT`."""
    for node in bash_tree.parse(read.exit_trap).children:
        if node.is_named:
            place(node, read, places)


def _add(text: str, read: ScriptState, places: Places, *, code_is_known: bool) -> None:
    if _NO_LINE.search(text):
        raise UnreadError("no key runs such a line after the ranks: kit submit --after RUN starts another job")
    if _CODE.search(text):
        if not code_is_known:
            raise UnreadError("$? is the exit code of a line that is not in the job")
        text = _CODE.sub("${KIT_EXIT_CODE}", text)
    if read.errexit and not read.lines.has("after"):
        read.lines.tables["after"] = ['[[ "${KIT_EXIT_CODE}" == 0 ]] || exit 0']
    if read.folder and not read.lines.has("setup"):
        raise UnreadError("the folder in which it runs is not known")
    read.lines.add("after", text, bash_tree.parse(text))
    places.key(f"{_WHEN}{', only after a success, as with set -e' if read.errexit else ''}")
