"""Reads the statements that start the ranks: srun or a launcher, what is around it, and the worker script that it runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from kit.migrate import after_ranks, bash_tree, before_ranks, programs, srun_options, words
from kit.migrate.bash_tree import ASSIGNMENTS, commands_of, name_of, text_of, within, words_of
from kit.migrate.reading import ScriptState, text_beside
from kit.migrate.report import Places, UnreadError
from kit.migrate.words import ScriptValues, shown

if TYPE_CHECKING:
    from tree_sitter import Node

_LAUNCHERS = frozenset(
    (
        "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "ray", "singularity", "apptainer",
    )
)  # fmt: skip
_NESTED = re.compile(r"\b(torchrun|accelerate|deepspeed|torch\.distributed\.(run|launch)|mpirun|ray)\b")
_BEFORE = frozenset({"time", "exec", "nohup", "command"})
# Work on a node's own disk that is no program of ranks.
_HOUSE = frozenset(
    (
        "mkdir", "cp", "rsync", "tar", "rm", "ln", "mv", "unzip", "chmod", "touch", "sync", "gunzip", "unzstd", "zstd", "test", "[",
        "cd",
    )
)  # fmt: skip
_LOGS = "the output of each rank is in logs/ of the run folder"


def starts_ranks(command: Node, *, any_program: bool) -> bool:
    """Whether a command starts ranks. any_program: the script has no srun and no launcher, so its program is what it runs."""
    first = PurePath(_first(command)).name
    if any_program:
        return first.startswith("python") or first.endswith((".py", ".sh"))
    if bash_tree.is_inside(command, ("command_substitution", "process_substitution")):
        return False
    return first in _LAUNCHERS or (first == "srun" and not _is_helper(command))


def _first(command: Node) -> str:
    """The first word of a command, after words such as `time`."""
    texts = [text_of(word) for word in words_of(command)]
    while texts and texts[0] in _BEFORE:
        texts = texts[1:]
    return texts[0] if texts else ""


def _is_helper(command: Node) -> bool:
    """Whether an srun does something other than to start ranks: it copies files, makes folders, prints."""
    return _helps(_program_of(command))


def _program_of(command: Node) -> list[str]:
    return srun_options.split([text_of(word) for word in words_of(command)[1:]])[1]


def _helps(program: list[str]) -> bool:
    if program[:1] in (["bash"], ["sh"]) and program[1:2] in (["-c"], ["-lc"]) and len(program) == 3:
        inner = list(commands_of(bash_tree.parse(program[2].strip("'\""))))
        return bool(inner) and all(name_of(one) in _HOUSE for one in inner)
    return bool(program) and (program[0] in _HOUSE or program[0] in ("hostname", "nvidia-smi", "echo", "date"))


# A helper.


def helper(command: Node, read: ScriptState, places: Places) -> None:
    """An srun of a command that is no program of ranks: [per_node], [once], or nothing if the line only prints."""
    options, program = srun_options.split(words.of_command(command, read.values)[1:])
    if program[:1] in (["hostname"], ["nvidia-smi"], ["echo"], ["date"]):
        places.out("the line only prints")
        return
    given = dict(options)
    known = {"nodes", "ntasks", "ntasks-per-node", "label", "exclusive", "overlap", "nodelist"}
    if set(given) - known or not all(map(words.is_known, [*given.values(), *program])):
        raise UnreadError("a step beside the ranks, with options or words that kit migrate does not read")
    nodes = int(given.get("nodes", read.sizes.nodes))
    tasks = int(given.get("ntasks", nodes * int(given.get("ntasks-per-node", read.sizes.tasks))))
    if read.steps or "nodelist" in given or tasks != nodes or nodes not in (1, read.sizes.nodes):
        raise UnreadError("a step beside the ranks that is not one task on each node before them")
    table = "per_node" if nodes == read.sizes.nodes and nodes > 1 else "once"
    text = program[2] if program[0] in ("bash", "sh") else " ".join(map(shlex.quote, program))
    read.lines.add(table, text, bash_tree.parse(text))
    places.key(
        f"{table}.lines{', on every node' if table == 'per_node' else ''}, before the ranks: {words.quoted(options_of(given))}"
    )


def options_of(given: dict[str, str]) -> list[str]:
    """Options for people."""
    return [f"--{name}={value}" if value else f"--{name}" for name, value in given.items()]


# The ranks.


def place(node: Node, commands: list[Node], read: ScriptState, places: Places) -> None:
    """A statement that starts ranks. UnreadError if it has no place."""
    read.steps += len(commands)
    if len(commands) > 1:
        raise UnreadError("several programs in one command")
    then = _peel(node, commands[0], read, places)
    _command(commands[0], read, places, in_loop=node.type == "for_statement")
    read.code_is_known = True
    for line, ended_well in then:
        after_ranks.only_if(line, read, places, ended_well=ended_well)


def _peel(node: Node, command: Node, read: ScriptState, places: Places) -> list[tuple[Node, bool]]:
    """What is around the command. Returns the lines that follow it on a condition: True, after a success."""
    then: list[tuple[Node, bool]] = []
    while node != command:
        named = [child for child in node.children if child.is_named]
        if node.type == "redirected_statement":
            for child in named[1:]:
                _redirection(child, places)
        elif node.type == "pipeline":
            for child in named[1:]:
                if name_of(child) != "tee":
                    raise UnreadError(f"| {text_of(child)}: the ranks' output goes into no other program")
                places.kit(f"| {text_of(child)}: {_LOGS}")
        elif node.type == "list" and len(named) == 2:
            then += _condition(node, named[1], places)
        elif node.type == "for_statement" and _is_loop_over_nodes(node):
            read.sizes.tasks = 1
            places.kit(f"{text_of(node)}: one task on each node")
            return then
        else:
            raise UnreadError(
                "a program inside a loop, a condition or a function: a job of the kit starts its program once"
            )
        node = named[0]
    return then


def _condition(node: Node, line: Node, places: Places) -> list[tuple[Node, bool]]:
    operator = node.children[1].type
    if operator not in ("&&", "||"):
        raise UnreadError(f"{text_of(node)}: kit migrate does not read this condition")
    if name_of(line) in ("exit", "true", ":") or before_ranks.prints(line):
        places.out(f"{operator} {text_of(line)}: the run has the exit code of its ranks")
        return []
    return [(line, operator == "&&")]


def _redirection(node: Node, places: Places) -> None:
    text = text_of(node)
    if node.type != "file_redirect" or re.match(r"\d*<", text):
        raise UnreadError(f"{text}: the program reads its input from it, and the kit's ranks have no input")
    places.kit(f"{text}: {_LOGS}")


def _is_loop_over_nodes(node: Node) -> bool:
    text = text_of(node)
    return bool(re.search(r"srun.*(-w|--nodelist)", text, re.S)) and bool(re.search("torchrun|torch.distributed", text))


def _command(command: Node, read: ScriptState, places: Places, *, in_loop: bool) -> None:
    for child in command.children:
        if child.type == "variable_assignment":
            read.variables.assign(child, places, exported=True)
            if any(place.kind == "unread" for place in places):
                raise UnreadError("a variable of the program")
        elif "redirect" in child.type:
            _redirection(child, places)
    rest = words.of_command(command, read.values)
    while rest[:1] and rest[0] in _BEFORE:
        places.out(f"{rest.pop(0)}: it changes nothing for the ranks")
    in_step = PurePath(rest[0]).name == "srun"
    if in_step:
        step = srun_options.StepOptions(
            job=read.job, sizes=read.sizes, report=read.report, places=places, nodes=1 if in_loop else read.sizes.nodes
        )
        rest = srun_options.read_options(rest[1:], step)
    start = programs.ProgramStart(job=read.job, sizes=read.sizes, places=places, in_step=in_step, folder=read.folder)
    _program(rest, start, read)


def _program(rest: list[str], start: programs.ProgramStart, read: ScriptState) -> None:
    """The program of the ranks, or the launcher that a line of `bash -c` or a worker script starts."""
    shell = PurePath(rest[0]).name in ("bash", "sh") if rest else False
    if shell and rest[1:2] in (["-c"], ["-lc"], ["-cl"]) and len(rest) == 3:
        if _NESTED.search(rest[2]):
            if rest[1] != "-c":
                start.places.check(f"bash {rest[1]}: the kit's scripts run in a shell without a login")
            return _inner(shown(rest[2]), start, read, "")
        if not words.is_known(rest[2]):
            raise UnreadError("the line of bash -c is known only when the script runs")
    name = (rest[1] if shell and len(rest) > 1 else rest[0]) if rest else ""
    if name.endswith(".sh") and words.is_known(name):
        beside = read.path.parent / read.folder / name
        inner = text_beside(beside)
        if inner is None:
            start.places.check(f"{name}: kit migrate has not read it: no such file beside the script")
        elif _NESTED.search(inner):
            read.values.arrays = {**read.values.arrays, "@": rest[rest.index(name) + 1 :]}
            start.places.key(
                f"{' '.join(map(shown, rest[: rest.index(name) + 1]))}: its lines are at the end of this report"
            )
            return _inner(inner, start, read, str(Path(name)))
    programs.set_program(rest, start)
    return None


def _inner(text: str, start: programs.ProgramStart, read: ScriptState, file: str) -> None:
    """A line of bash -c, or a worker script, that starts a launcher: its words, if all before it is read.

    Its shell has the variables that the script exports. file: empty for a line of bash -c.
    """
    outer, began = read.values, False
    arguments = {"@": read.values.arrays.get("@", [])} if file else {}
    exported = {name: value for name, value in outer.known.items() if _is_passed_on(name, read)}
    inner = ScriptValues(known=exported, arrays=arguments)
    read.values = read.variables.values = read.lines.values = inner
    for node in bash_tree.parse(text).children:
        if not node.is_named:
            continue
        places = Places() if file else start.places
        if node.has_error or began:
            raise UnreadError("a launcher starts in a shell, among lines that kit migrate does not follow")
        if node.type == "comment":
            places.out("a comment")
        elif node.type in ASSIGNMENTS:
            read.variables.statement(node, places)
        elif node.type == "command" and _NESTED.search(text_of(node)):
            began = True
            _worker_command(node, start, read, places)
        elif before_ranks.prints(node):
            places.out("the line only prints")
        elif node.type == "command" and name_of(node) in before_ranks.SITE | {"set"}:
            before_ranks.place(node, read, places)
        else:
            raise UnreadError(f"{text_of(node)!r} in the worker: kit migrate does not follow it")
        if file:
            read.enter(node, places, file=file)
    outer.used |= inner.used - {"@"}
    outer.doubted |= inner.doubted
    read.values = outer
    if not began:
        raise UnreadError("a launcher starts in a way that kit migrate does not follow")


def _worker_command(node: Node, start: programs.ProgramStart, read: ScriptState, places: Places) -> None:
    if any(within(node, ("herestring_redirect", "heredoc_redirect", "file_redirect"))):
        raise UnreadError("the launcher's input or output is redirected")
    for child in node.children:
        if child.type == "variable_assignment":
            read.variables.assign(child, places, exported=True)
    rest = words.of_command(node, read.values)
    while rest and rest[0] in _BEFORE:
        places.out(f"{rest.pop(0)}: it changes nothing for the ranks")
    start.places = places
    programs.set_program(rest, start)


def _is_passed_on(name: str, read: ScriptState) -> bool:
    return name in read.lines.exported or name.startswith("SLURM_") or name in ("HOME", "USER")
