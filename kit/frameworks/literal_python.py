"""Reads configurations that are Python assignments of literals (`optimizer = {"lr": 0.01}`), without executing anything of them.

TorchTitan's forks that read their configuration by mmengine have such files. This takes what a file of settings needs: literals,
`dict(lr=0.01)`, names that the file assigned before, and arithmetic of numbers.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kit.config import shown
from kit.errors import ConfigError
from kit.files import untrusted_files

# Far above any file of settings, and small enough for Python's parser, whose memory grows with nesting.
_MOST_BYTES = 1 << 20
_LARGEST = 1 << 63
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class _NotLiteralError(Exception):
    """An expression or a statement that would have to be executed. node: where it is."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__()
        self.node = node


def read_assignments(path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a file, and its assignments as a table. ConfigError names the first line that is not a literal."""
    try:
        text = untrusted_files.read_text(path, most=_MOST_BYTES)
        tree = ast.parse(text)
    except FileNotFoundError:
        raise ConfigError(f"{shown(path)}: no such file", hint="name another one") from None
    except OSError as error:
        raise ConfigError(f"{shown(path)}: cannot be read: {error.strerror}", hint=f"ls -l {shown(path)}") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{shown(path)}: not valid Python: {error}", hint=f"python3 -m py_compile {path}") from None
    table: dict[str, Any] = {}
    try:
        for statement in tree.body:
            _assign(statement, table)
    except _NotLiteralError as wrong:
        line = getattr(wrong.node, "lineno", 1)
        said = text.splitlines()[line - 1].strip()
        problem = (
            f"{shown(path)}: line {line}: {said!r} has to be executed, and the kit reads only assignments of literals"
        )
        raise ConfigError(problem, hint="write the value there, such as lr = 0.01") from None
    except RecursionError:
        raise ConfigError(f"{shown(path)}: nested too deep", hint="write shorter tables") from None
    return text, table


def _assign(statement: ast.stmt, table: dict[str, Any]) -> None:
    """One statement: `name = literal`, or a text that stands alone (a docstring)."""
    match statement:
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
        ):
            table[name] = _value(value, table)
        case ast.Expr(value=ast.Constant()) | ast.Pass():
            pass
        case _:
            raise _NotLiteralError(statement)


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:  # noqa: PLR0911 - one for each kind of expression
    """The value of an expression. Tuples become lists, as they would in TOML."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, names) for part in parts]
        case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
            pairs = zip(keys, values, strict=True)
            return {str(key.value): _value(value, names) for key, value in pairs if isinstance(key, ast.Constant)}
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=words) if all(word.arg for word in words):
            return {str(word.arg): _value(word.value, names) for word in words}
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=inner):
            number = _number(inner, names)
            return -number if isinstance(sign, ast.USub) else number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            return _computed(node, _ARITHMETIC[type(op)], _number(left, names), _number(right, names))
    raise _NotLiteralError(node)


def _number(node: ast.expr, names: Mapping[str, Any]) -> float:
    value = _value(node, names)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _NotLiteralError(node)
    return value


def _computed(node: ast.expr, compute: Callable[[Any, Any], Any], left: float, right: float) -> float:
    """The result of one operation. Numbers that no program can be given are refused, before products of them grow."""
    try:
        result: float = compute(left, right)
    except (ArithmeticError, ValueError):
        raise _NotLiteralError(node) from None
    if isinstance(result, int) and not -_LARGEST <= result < _LARGEST:
        raise _NotLiteralError(node)
    return result
