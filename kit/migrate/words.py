"""Computes the words of a command as bash would, with the values that the script itself decides.

What only a run can tell stays in a word as its source text behind MARK. A word with a mark has no known value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kit.migrate.bash_tree import text_of, words_of

if TYPE_CHECKING:
    from tree_sitter import Node

# No word of bash can hold a NUL.
MARK = "\0"
# A blank inside a marked text, so that a string with it is split into words where bash would split it.
_BLANK, _TAB, _NEWLINE = "\1", "\2", "\3"
# Characters before which a backslash is an escape, between double quotes.
_ESCAPED = re.compile(r'\\([$`"\\])')
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*)(?:(:?-)([^$`\"'{}]*))?\}")
_ALL = re.compile(r'"?\$\{([A-Za-z_]\w*)\[[@*]\]\}"?')
_SUM = re.compile(r"[0-9 +*/%()-]+")
_PATTERN = re.compile(r"[*?\[]")


@dataclass
class ScriptValues:
    """Variables of the script so far.

    known: text by name, perhaps with marks. arrays: words by name. used: names that were read. doubtful: names that a line since
    then may have changed, with the line. doubted: those of them that were read.
    """

    known: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    doubtful: dict[str, str] = field(default_factory=dict)
    doubted: dict[str, str] = field(default_factory=dict)

    def get(self, name: str) -> str | None:
        """The text of a variable; None if the script does not decide it."""
        self.used.add(name)
        if name in self.doubtful:
            self.doubted[name] = self.doubtful[name]
        return self.known.get(name)

    def constant(self, name: str) -> str | None:
        """The text of a variable without marks."""
        value = self.get(name)
        return None if value is None or MARK in value else value

    def forget(self, name: str) -> None:
        """From here on only the run knows the variable."""
        self.known.pop(name, None)
        self.arrays.pop(name, None)
        self.doubtful.pop(name, None)

    def doubt(self, line: str) -> None:
        """Note that a line may have changed any variable of the script."""
        self.doubtful |= {
            name: line for name in self.known if not name.startswith("SLURM_") and name not in ("HOME", "USER")
        }


def is_known(word: str) -> bool:
    """Whether a word has no mark."""
    return MARK not in word


def shown(word: str) -> str:
    """A word for people: what is not known is shown as it is written in the script."""
    return word.replace(MARK, "").translate({1: " ", 2: "\t", 3: "\n"})


def of_command(command: Node, values: ScriptValues) -> list[str]:
    """The words of a simple command, split as bash splits them."""
    return [word for node in words_of(command) for word in split(node, values)]


def split(node: Node, values: ScriptValues) -> list[str]:
    """The words that bash makes of one node: several for an array, or for a variable with blanks without quotes."""
    if (found := _ALL.fullmatch(text_of(node))) and found[1] in values.arrays:
        values.used.add(found[1])
        return list(values.arrays[found[1]])
    if text_of(node).strip('"') in ("$@", "${@}") and "@" in values.arrays:
        values.used.add("@")
        return list(values.arrays["@"])
    text = value(node, values)
    if node.type in ("simple_expansion", "expansion", "concatenation"):
        # A pattern may match files.
        return _marked(node) if _PATTERN.search(text) and is_known(text) else text.split()
    return [text]


def _marked(node: Node) -> list[str]:
    return [mark(text_of(node))]


def mark(text: str) -> str:
    """A text whose value only the run knows."""
    return MARK + text.translate({32: _BLANK, 9: _TAB, 10: _NEWLINE})


def value(node: Node, values: ScriptValues) -> str:  # noqa: PLR0911 - one answer for each kind of word
    """The text that bash makes of a node, without splitting it."""
    text = text_of(node)
    match node.type:
        case "number" | "string_content" | "heredoc_content" | "variable_name":
            return text
        case "word":
            odd = re.search(r"[*?~\[{]", text) and not text.startswith(("http", "--"))
            return mark(text) if odd else re.sub(r"\\(.)", r"\1", text.replace("\\\n", ""))
        case "raw_string":
            return text[1:-1]
        case "string":
            return _string(node, values)
        case "simple_expansion" | "expansion":
            return _expansion(text, values)
        case "arithmetic_expansion":
            return _arithmetic(text, values)
        case "concatenation":
            return "".join(value(child, values) for child in node.children)
        case _:
            return mark(text)


def _string(node: Node, values: ScriptValues) -> str:
    """The text between double quotes. Blanks between two expansions belong to no child, so the gaps are read from the text."""
    raw, begin = node.text or b"", node.start_byte
    done, offset = "", 1
    for child in node.children:
        if not child.is_named:
            continue
        done += raw[offset : child.start_byte - begin].decode()
        offset = child.end_byte - begin
        is_text = child.type == "string_content"
        done += _ESCAPED.sub(r"\1", text_of(child).replace("\\\n", "")) if is_text else value(child, values)
    return done + raw[offset:-1].decode()


def _expansion(text: str, values: ScriptValues) -> str:
    plain, default = re.fullmatch(r"\$([A-Za-z_]\w*)", text), _DEFAULT.fullmatch(text)
    found = plain or default
    own = values.get(found[1]) if found else None
    if own is None:
        return mark(text)
    if default and not own and default[2] == ":-":
        return default[3]
    return own


def _arithmetic(text: str, values: ScriptValues) -> str:
    """A sum of whole numbers. bash's division cuts towards 0; the numbers here are not negative."""
    from simpleeval import simple_eval

    filled = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\}?", lambda found: values.constant(found[1]) or "?", text[3:-2])
    if not _SUM.fullmatch(filled) or "**" in filled:
        return mark(text)
    try:
        return str(int(simple_eval(filled.replace("/", "//"))))
    except Exception:  # noqa: BLE001 - simpleeval raises classes of its own, SyntaxError and ZeroDivisionError
        return mark(text)


def quoted(command: Sequence[str]) -> str:
    """Words for people, in one line."""
    return " ".join(shown(word) for word in command)


def environment(values: Mapping[str, str]) -> ScriptValues:
    """The variables of a shell that starts with this environment."""
    return ScriptValues(known=dict(values))
