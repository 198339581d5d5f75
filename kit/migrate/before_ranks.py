"""Gives each line before the ranks its place: setup, [once], [per_node], the ranks' folder, a signal, or none."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from kit.migrate import bash_tree, names_in_lines, words
from kit.migrate.bash_tree import commands_of, name_of, text_of, within, words_of
from kit.migrate.reading import ScriptState, text_beside
from kit.migrate.report import Places, UnreadError
from kit.migrate.words import is_known

if TYPE_CHECKING:
    from tree_sitter import Node

_PRINTS = frozenset(
    (
        "echo", "printf", "date", "hostname", "which", "uname", "lscpu", "free", "df", "ls", "whoami", "uptime", "pwd", "type",
        "id", ":",
    )
)  # fmt: skip
# Only without an argument, or with one that asks.
_PRINTS_ALONE = frozenset({"env", "printenv", "nvidia-smi", "ulimit", "module", "rocm-smi", "export", "set"})
_ASKS = re.compile(r"-L|-q|--query\S*|--format\S*|--list-gpus|list|avail|-a|--showproductname|topo|-m|[A-Z_]+")
# Commands that change the shell for the programs after them.
SITE = frozenset(
    (
        "module", "ml", "source", ".", "conda", "mamba", "micromamba", "spack", "eval",
    )
)  # fmt: skip
_STATE = SITE | {"ulimit", "umask", "unset", "shopt"}
_TESTS = frozenset(
    (
        "[", "[[", "test", "true", "false", ":", "command", "type", "which", "return",
    )
)  # fmt: skip
_NO_LINE = re.compile(r"\b(sbatch|scancel|scontrol|sbcast|salloc|squeue|exec|return)\b")
_FAILS = "if a line fails, no rank starts"


def place(node: Node, read: ScriptState, places: Places) -> None:
    """Write a statement's keys. UnreadError if it has no place."""
    name = name_of(node) if node.type == "command" else ""
    if node.type == "unset_command":
        _unset(node, read, places)
    elif name in _SPECIAL:
        _SPECIAL[name](node, read, places)
    elif prints(node):
        places.out("the line only prints")
    elif node.type == "function_definition":
        _function(node, read, places)
    else:
        _lines(node, read, places)


def prints(node: Node) -> bool:
    """Whether a statement only writes to the script's output."""
    if any(within(node, ("heredoc_redirect", "variable_assignment", "function_definition"))):
        return False
    files = [text_of(one) for one in within(node, ("file_redirect",))]
    if any(not re.search(r"/dev/null|&[12]$", one) for one in files):
        return False
    commands = list(commands_of(node))
    return bool(commands) and all(map(_only_prints, commands)) and not any(within(node, ("declaration_command",)))


def _only_prints(command: Node) -> bool:
    name, rest = name_of(command), [text_of(word) for word in words_of(command)[1:]]
    if bash_tree.is_inside(command, ("command_substitution", "process_substitution")):
        return names_in_lines.only_asks(command)
    if name in _PRINTS_ALONE:
        return all(_ASKS.fullmatch(word) for word in rest) if name != "ulimit" else rest == ["-a"]
    if name in ("sort", "grep", "head", "tail", "tee"):
        return name != "tee" and command.parent is not None and command.parent.type == "pipeline"
    return name in _PRINTS and rest[:1] != ["-v"]


# Lines that stay lines.


def _lines(node: Node, read: ScriptState, places: Places) -> None:
    outer = [one for one in commands_of(node) if not bash_tree.is_inside(one, ("command_substitution",))]
    names = {name_of(one) for one in outer} - {""}
    exports = any(within(node, ("declaration_command", "unset_command")))
    state = names & _STATE or exports
    if _NO_LINE.search(text_of(node)) or re.search(r"\bexit(\s+0)?\s*($|[;})\n])", text_of(node)):
        raise UnreadError("what it does is known only when the script runs")
    if state and names <= _STATE | _TESTS | _PRINTS | {"exit"}:
        _setup(node, read, places)
    elif state:
        raise UnreadError("the line changes the shell and does other work, which kit migrate cannot separate")
    elif any(name in names for name in ("cd", "pushd", "popd", "trap", "alias", "set", "read", "mapfile", "let")):
        raise UnreadError("the line changes the shell in which the following lines run")
    elif _sets(node):
        raise UnreadError(f"the value of {', '.join(sorted(_sets(node)))} is known only when the script runs")
    elif calls := names & set(read.functions):
        raise UnreadError(f"kit migrate does not follow the function {', '.join(sorted(calls))}")
    else:
        read.lines.add("once", text_of(node), node)
        places.key(f"once.lines: on the first node, once per job; {_FAILS}")


def _sets(node: Node) -> set[str]:
    """Names that a statement sets for later lines, without those of its own loops."""
    loops = {text_of(child) for loop in within(node, ("for_statement",)) for child in loop.children[1:2]}
    return set(names_in_lines.set_by(node)) - loops


def _setup(node: Node, read: ScriptState, places: Places) -> None:
    kept, text = node, text_of(node)
    names = {name_of(one) for one in commands_of(node)}
    last = node.children[-1] if node.type == "list" else None
    if last is not None and name_of(last) == "exit" and node.children[1].type == "||":
        kept = node.children[0]
        places.kit(f"|| {text_of(last)}: a set-up line that fails ends the run, with exit code 73")
    elif "exit" in names:
        raise UnreadError("an exit inside a set-up line would end the rank without a message")
    if names & SITE or any(within(node, ("declaration_command",))):
        # [env] wins over what a line exports. In the script, the line comes after these and wins.
        for name in list(read.job["env"]):
            value = read.variables.leave_env(name, "setup, before the line that may set it, too")
            read.lines.say("setup", name, value or "")
    sets = _sets(node)
    text = text_of(kept)
    read.lines.add("setup", f"set -a\n{text}\nset +a" if read.variables.all_exported else text, node)
    for name in sets:
        read.values.forget(name)
    if names & SITE:
        _doubt(node, read)
    early = "; it runs before the lines of [once], too" if read.lines.has("once") else ""
    places.key(f"setup; if it fails, the run ends with 73{early}")


def _doubt(node: Node, read: ScriptState) -> None:
    """Forget what a sourced file sets. A file that is not here, or a module, may set anything."""
    for command in commands_of(node):
        given = [words.value(word, read.values) for word in words_of(command)]
        if given[:1] not in (["source"], ["."]):
            if name_of(command) in SITE:
                read.values.doubt(text_of(command))
            continue
        path = read.path.parent / read.folder / given[1] if len(given) > 1 and is_known(given[1]) else None
        sourced = None if path is None else text_beside(path)
        if sourced is None:
            read.values.doubt(text_of(command))
            continue
        root = bash_tree.parse(sourced)
        for name in names_in_lines.set_by(root):
            read.lines.assigned.add(name)
            read.lines.set_in.setdefault("setup", set()).add(name)
            read.values.forget(name)


def _unset(node: Node, read: ScriptState, places: Places) -> None:
    for name in (text_of(child) for child in node.children[1:] if child.is_named):
        read.values.forget(name)
        read.variables.leave_env(name, "a later line unsets it; lines between the two have it", kind="out")
        read.lines.exported.discard(name)
    _setup(node, read, places)


# Commands with a meaning of their own.


def _set(node: Node, read: ScriptState, places: Places) -> None:
    options = [text_of(word) for word in words_of(node)[1:]]
    letters = "".join(word[1:] for word in options if re.fullmatch(r"[-+][a-zA-Z]+", word))
    named = {word for word in options if re.fullmatch(r"[a-z]+", word)}
    if not options or set(letters) - set("eauxvo") or named - {"errexit", "nounset", "pipefail", "xtrace", "allexport"}:
        raise UnreadError("kit migrate does not read this option of set")
    turned_on = options[0].startswith("-")
    if "e" in letters or "errexit" in named:
        read.errexit = turned_on
    if "a" in letters or "allexport" in named:
        read.variables.all_exported = turned_on
    places.kit(f"{text_of(node)}: a set-up line, a line of [once] or a rank that fails ends the run; --debug traces")


def _wait(node: Node, read: ScriptState, places: Places) -> None:
    places.kit(f"{text_of(node)}: the kit waits for the ranks")
    read.code_is_known = read.steps > 0


def _cd(node: Node, read: ScriptState, places: Places) -> None:
    given = words_of(node)[1:]
    if len(given) != 1:
        raise UnreadError("kit migrate does not read this cd")
    to_folder(words.value(given[0], read.values), text_of(node), read, places)


def to_folder(value: str, text: str, read: ScriptState, places: Places) -> None:
    """`cd` to a folder: a line of setup, unless it is the script's own folder."""
    if not is_known(value):
        raise UnreadError("the folder is known only when the script runs")
    own = read.path.absolute().parent
    if not read.folder and os.path.normpath(own / value) == str(own):
        places.kit(f"{text}: the ranks start in a copy of the script's folder")
        return
    if read.folder and read.lines.has("once"):
        raise UnreadError("a second cd, after lines of [once]")
    if read.lines.has("once"):
        # Lines of setup run first in every table: the lines before this one began in the job's folder.
        read.lines.tables["once"].insert(0, 'cd "$OLDPWD"')
        read.lines.tables["once"].append(f"cd {shlex.quote(value)}")
    read.folder = value if value.startswith("/") else str(PurePosixPath(read.folder, value))
    read.lines.tables.setdefault("setup", []).append(f"cd {shlex.quote(value)}")
    places.key(f"{text}: setup; the program is {read.folder}/…")


def _trap(node: Node, read: ScriptState, places: Places) -> None:
    given = [words.value(word, read.values) for word in words_of(node)[1:]]
    if len(given) < 2 or not all(map(is_known, given[1:])):
        raise UnreadError("kit migrate does not read this trap")
    body, signals = words.shown(given[0]), {name.upper().removeprefix("SIG") for name in given[1:]}
    if signals <= {"EXIT", "0"}:
        read.exit_trap = body
        places.key(f"{text_of(node)}: after.lines, not when Slurm itself ends the job")
        return
    handler = read.functions.get(body.strip())
    parts = list(_statements(handler)) if handler is not None else [*bash_tree.parse(body).children]
    if not _requeues(parts):
        raise UnreadError("the kit passes signals on to the ranks, and has no place for other work at a signal")
    wanted = (read.job["slurm"].get("signal") or "").partition("@")[0]
    if signals != {wanted}:
        places.check(f"{text_of(node)}: the header's --signal is {wanted or 'not set'}, so the trap never runs by it")
    read.job["retry"]["requeue"] = 100
    places.key(
        f"{text_of(node)}: retry.requeue: at {', '.join(sorted(signals))} the kit signals the ranks, waits until they have "
        "saved, and puts the job back into the queue, 100 times at most"
    )
    places.check(
        "ranks that end with 0 after the signal count as done, and the job is not queued again: a program that has more to do "
        "must end with another code, such as 138"
    )


def _statements(handler: Node) -> Iterator[Node]:
    for body in handler.children:
        if body.type == "compound_statement":
            yield from (child for child in body.children if child.is_named)


def _requeues(parts: list[Node]) -> bool:
    """Whether a handler puts the job back into the queue, and does nothing else that the kit would not do."""
    requeues = False
    for part in parts:
        if not part.is_named or part.type == "comment" or prints(part):
            continue
        names = [text_of(word) for command in commands_of(part) for word in words_of(command)[:2]]
        if names[:2] == ["scontrol", "requeue"]:
            requeues = True
        elif not names or names[0] not in ("kill", "wait", "exit", "sleep"):
            return False
    return requeues


def _function(node: Node, read: ScriptState, places: Places) -> None:
    name = next((text_of(child) for child in node.children if child.type == "word"), "")
    read.functions[name] = node
    called = [one for one in commands_of(bash_tree.parse(read.text)) if name_of(one) == name]
    trapped = re.search(rf"trap\s+['\"]?{re.escape(name)}\b", read.text)
    if called:
        raise UnreadError("kit migrate does not follow functions")
    if trapped and _requeues(list(_statements(node))):
        places.kit(f"{text_of(node)}: what the trap that calls it has become")
    elif trapped:
        raise UnreadError("a trap calls the function, which does more than put the job back into the queue")
    else:
        places.out("nothing calls the function")


_SPECIAL = {"set": _set, "wait": _wait, "cd": _cd, "trap": _trap}
