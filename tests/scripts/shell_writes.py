"""Finds the global names that a bash file writes, by rules for the style of this repository; it is no parser of bash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_FUNCTION = re.compile(r"^([\w:]+)\(\) [({]\n(.*?)^[)}]$", re.MULTILINE | re.DOTALL)
_DECLARED = re.compile(r"\b(?:local|declare|readonly)((?: +-[a-zA-Z]+)*)((?: +\w+(?:=\S*)?)+)")
_ASSIGNED = re.compile(r"(\w+)(?:\[(?:[^\[\]]|\[[^\]]*\])*\])?\+?=")
_COMMAND = re.compile(r"(?:^|;;?|&&|\|\||\bthen\b|\bdo\b|\belse\b|[{(]|\w\)|\bexport\b)\s+|^", re.MULTILINE)
_COUNTED = re.compile(r"\+\+(\w+)|(\w+)(?:\[.*?\])?\+\+|(\w+)(?:\[[^\]]*\])? [-+]?= ")
_FILLED = re.compile(
    r"\b(?:mapfile(?: -\w+(?: \S+)?)* (\w+)|printf -v (\w+)|for (\w+) in|unset \"?(\w+)|exec \{(\w+)\}[<>](?!&-)|"
    r"declare -g\w* \"?(\w+))"
)
_READ = re.compile(r"\bread((?: -\w+(?: \"[^\"]*\"| \d+)?)*)((?: \w+)+)")
_CLOSED = {"(": ")", "{": "}"}


def written(path: Path) -> set[str]:
    """Names that the file assigns, counts, reads into or unsets, outside of `local`."""
    text = re.sub(r"{{.*?}}|{%.*?%}", "X", path.read_text(encoding="utf-8"))
    text = re.sub(r"(?m)(^|\s)#.*$", r"\1", text)
    found: set[str] = set()
    rest = text
    for function in _FUNCTION.finditer(text):
        found |= set(_names(function[2])) - _local(function[2])
        rest = rest.replace(function[0], "")
    return {name for name in found | set(_names(rest)) | _local(rest) if not name.isdigit() and name != "_"}


def _local(body: str) -> set[str]:
    names: set[str] = set()
    for flags, words in _DECLARED.findall(body):
        if "g" not in flags:
            names |= {word.partition("=")[0] for word in words.split()}
    # `local a="x y" b`: what follows a quoted value.
    for line in re.findall(r"\blocal [^\n]*", body):
        names |= set(re.findall(r"(?:^| )(\w+)(?==| |$)", re.sub(r"\"[^\"]*\"|\$\(.*\)", "", line)))
    return names


def _names(text: str) -> Iterator[str]:
    for begin in _COMMAND.finditer(text):
        yield from _assignments(text, begin.end(), exported=begin[0].lstrip().startswith("export"))
    for block in re.findall(r"\(\((.*?)\)\)", text):
        for groups in _COUNTED.findall(block):
            yield from filter(None, groups)
    for groups in _FILLED.findall(text):
        yield from filter(None, groups)
    for _, names in _READ.findall(text):
        yield from names.split()


def _assignments(text: str, at: int, *, exported: bool) -> Iterator[str]:
    """The assignments that a command consists of; those before a command's name hold for that command alone."""
    names = []
    while match := _ASSIGNED.match(text, at):
        names.append(match[1])
        at = _value_end(text, match.end())
        while at < len(text) and text[at] == " ":
            at += 1
    if exported or at >= len(text) or text[at] in ";\n&|)}":
        yield from names


def _value_end(text: str, at: int) -> int:
    """Where a value ends: at a blank or an operator outside of quotes and brackets."""
    inside: list[str] = []
    while at < len(text):
        char, now = text[at], inside[-1] if inside else ""
        if char == "\\" and now != "'":
            at += 1
        elif now == "'":
            if char == "'":
                inside.pop()
        elif (char in ")}" and _CLOSED.get(now) == char) or (char == '"' and now == '"'):
            inside.pop()
        elif (char in "({" and (now != '"' or text[at - 1] == "$")) or char == '"' or (char == "'" and now != '"'):
            inside.append(char)
        elif not inside and char in " \n;&|)}":
            return at
        at += 1
    return at
