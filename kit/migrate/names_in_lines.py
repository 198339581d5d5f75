"""Names of the variables that a line of bash reads and sets, and the lines that every rank may run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from kit.migrate.bash_tree import commands_of, name_of, text_of, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

# Commands that only answer: a value that they compute has no other effect.
_ASKS = frozenset(
    (
        "hostname", "head", "tail", "cut", "awk", "sed", "grep", "tr", "wc", "sort", "uniq", "shuf", "seq", "expr", "bc", "date",
        "basename", "dirname", "realpath", "readlink", "pwd", "echo", "printf", "cat", "nproc", "nvidia-smi", "getent", "ip", "ss",
        "comm", "whoami", "id", "uname", "jot", "od", "conda", "which",
    )
)  # fmt: skip
_ABOUT_NODES = frozenset({"scontrol", "hostname", "getent", "ip"})
# The value is in Slurm's environment of the job, the same for the batch script and for every rank.
_SAME_EVERYWHERE = frozenset({"SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NAME"})
# The kit hands these over, or every shell has them.
_STANDARD = frozenset(
    (
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "PWD", "LD_LIBRARY_PATH", "PYTHONPATH", "CPATH",
        "LIBRARY_PATH",
    )
)  # fmt: skip
_EACH_TIME = frozenset({"RANDOM", "SECONDS", "BASHPID", "EPOCHSECONDS", "EPOCHREALTIME", "SRANDOM", "LINENO", "OLDPWD"})
SECRET = re.compile(r"\w*(API_?KEY|TOKEN|SECRET|PASSWORD|ACCESS_KEY)\w*")


def read_by(node: Node) -> Iterator[str]:
    """Names of the variables that a node reads, `$` and digits among them."""
    if node.type in ("simple_expansion", "expansion"):
        for child in node.children:
            if child.is_named and child.type in ("variable_name", "special_variable_name"):
                yield text_of(child)
    elif node.type == "arithmetic_expansion":
        yield from re.findall(r"[A-Za-z_]\w*", text_of(node))
        return
    for child in node.children:
        yield from read_by(child)


def set_by(node: Node) -> Iterator[str]:
    """Names of the variables that a node sets."""
    if node.type == "variable_assignment":
        yield re.split(r"[\[+=]", text_of(node), maxsplit=1)[0]
    elif node.type == "for_statement":
        yield from (text_of(child) for child in node.children if child.type == "variable_name")
    elif node.type == "command" and name_of(node) in ("read", "mapfile", "readarray"):
        yield from (text_of(word) for word in words_of(node)[1:] if re.fullmatch(r"[A-Za-z_]\w*", text_of(word)))
    elif node.type == "expansion" and ":=" in text_of(node):
        yield from (text_of(child) for child in node.children if child.type == "variable_name")
    elif node.type == "command" and text_of(node).startswith("let "):
        yield from re.findall(r"\b([A-Za-z_]\w*)\s*[-+*/%]?=", text_of(node))
    elif node.type == "compound_statement" and text_of(node).startswith("(("):
        yield from re.findall(r"\b([A-Za-z_]\w*)\s*(?:[-+*/%]?=(?!=)|\+\+|--)", text_of(node))
    elif node.type == "command" and text_of(node).startswith("printf -v"):
        yield text_of(node).split()[2]
    for child in node.children:
        yield from set_by(child)


def substitutes(node: Node) -> bool:
    """Whether a node takes the output of a command."""
    return node.type in ("command_substitution", "process_substitution") or any(map(substitutes, node.children))


def only_asks(command: Node) -> bool:
    """Whether a command answers, and does nothing else."""
    words = [text_of(word) for word in words_of(command)]
    name = words[0] if words else ""
    if name == "scontrol":
        return words[1:2] == ["show"]
    if name in ("python", "python3"):
        return "-c" in words
    if name == "srun":
        return any(word in _ASKS for word in words[1:])
    return name in _ASKS and "redirected_statement" not in (command.parent.type if command.parent else "")


def asks_for_nodes(node: Node, assigned: Collection[str]) -> bool:
    """Whether a value is a name, an address or a list of the job's nodes."""
    read = set(read_by(node))
    commands = {name_of(one) for one in commands_of(node)}
    about = bool(commands & _ABOUT_NODES) or any("NODELIST" in name or "NODEID" in name for name in read)
    return about and all(name.startswith("SLURM_") or name in assigned for name in read)


def of_the_shell(name: str) -> bool:
    """Whether a variable comes from the environment of the one who submits, and not from Slurm or the kit."""
    return (
        name not in _STANDARD
        and not name.startswith(("SLURM_", "KIT_"))
        and re.fullmatch(r"[A-Za-z_]\w*", name) is not None
    )


def same_on_every_rank(name: str) -> bool:
    """Whether a variable that the script does not set has the same value in the batch script and in each rank."""
    if name in _EACH_TIME or not re.fullmatch(r"[A-Za-z_]\w*", name):
        return False
    return not name.startswith("SLURM_") or name in _SAME_EVERYWHERE
