"""Parses bash, and walks over its tree.

The parser is tree-sitter-bash. It reads all of bash, and marks what it cannot read there, so the rest of a script is
still read. bashlex stops at the first arithmetic or `case`, and its licence (GPL) is not the kit's. Both read without running.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kit.errors import UsageError

if TYPE_CHECKING:
    from tree_sitter import Node

ASSIGNMENTS = ("variable_assignment", "declaration_command", "variable_assignments")


def parse(text: str) -> Node:
    """The tree of a script. UsageError if the parser is not installed."""
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError:
        problem = "kit migrate reads bash with tree-sitter-bash, which is not installed"
        raise UsageError(problem, hint="pip install 'slurm-kit[migrate]'") from None
    language = tree_sitter.Language(tree_sitter_bash.language())
    return tree_sitter.Parser(language).parse(text.encode()).root_node


def text_of(node: Node) -> str:
    """The node's own text, as written in the script."""
    return (node.text or b"").decode()


def lines_of(node: Node) -> tuple[int, int]:
    """Numbers of the node's first and last line, from 1. A here-document's last newline is not a line of its own."""
    first, last = node.start_point[0] + 1, node.end_point[0] + (1 if node.end_point[1] else 0)
    return first, max(first, last)


def commands_of(node: Node) -> Iterator[Node]:
    """All simple commands in a node, outermost first."""
    if node.type == "command":
        yield node
    for child in node.children:
        yield from commands_of(child)


def within(node: Node, kinds: tuple[str, ...]) -> Iterator[Node]:
    """All nodes of these types in a node, itself included."""
    if node.type in kinds:
        yield node
    for child in node.children:
        yield from within(child, kinds)


def words_of(command: Node) -> list[Node]:
    """The words of a simple command with its name first, without assignments and redirections."""
    words: list[Node] = []
    for child in command.children:
        if child.type == "command_name":
            words.append(child.children[0] if child.children else child)
        elif child.is_named and child.type not in ("variable_assignment", "comment") and "redirect" not in child.type:
            words.append(child)
    return words


def name_of(command: Node) -> str:
    """A command's first word, as written; empty for assignments alone."""
    words = words_of(command)
    return text_of(words[0]) if words else ""


def is_inside(node: Node, kinds: tuple[str, ...]) -> bool:
    """Whether a node of one of these types is above the node."""
    above = node.parent
    while above is not None:
        if above.type in kinds:
            return True
        above = above.parent
    return False
