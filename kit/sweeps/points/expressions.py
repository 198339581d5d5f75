"""Expressions: `= 3e-3 * sqrt(batch_size / 256)`. simpleeval evaluates them; only arithmetic and the functions in this module
exist.

A name in an expression is a key of the point (`args.batch_size` for `args.--batch-size`), the last part of a key if that is unique
(`batch_size`), or a key of the job. Names are looked up when they are used, so values may depend on each other in any order.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import simpleeval

from kit.errors import did_you_mean
from kit.schema.sweep import Value

Lookup = Callable[[str], Any]

# Longer than any expression that a person writes, and short enough for the parser's stack.
_MOST_TEXT = 2000

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "exp": math.exp,
    "float": float,
    "floor": math.floor,
    "int": int,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "max": max,
    "min": min,
    "round": round,
    "sqrt": math.sqrt,
    "str": str,
}


class ExpressionError(ValueError):
    """An expression that cannot be evaluated; the text gives the reason."""


class UnknownName(ExpressionError):  # noqa: N818 - read as a sentence where it is raised
    """A name that neither the point nor the job has."""

    def __init__(self, name: str, known: list[str]) -> None:
        said = f"{name!r} is not a name here; known: {', '.join(known) or 'none'}"
        super().__init__("; ".join(filter(None, [said, did_you_mean(name, known)])))


def evaluate(text: str, names: Lookup, lookup: Lookup) -> Any:
    """The value of an expression. ExpressionError if it has none.

    names: returns the value of a dotted name. lookup: returns the value that a table has for this point.
    """
    if len(text) > _MOST_TEXT:
        raise ExpressionError(f"it has {len(text)} characters; at most {_MOST_TEXT} are read")
    evaluator = _Arithmetic(names=lambda node: _named(node.id, names), functions={**_FUNCTIONS, "lookup": lookup})
    try:
        with warnings.catch_warnings():
            # Python's own parser prints warnings about unusual code to stderr.
            warnings.simplefilter("ignore", SyntaxWarning)
            return _plain(evaluator.eval(text.strip()))
    except ExpressionError:
        raise
    except simpleeval.FunctionNotDefined as error:
        known = [*_FUNCTIONS, "lookup"]
        said = f"{error.func_name!r} is not a function here; known: {', '.join(known)}"
        raise ExpressionError("; ".join(filter(None, [said, did_you_mean(error.func_name, known)]))) from None
    except SyntaxError as error:
        raise ExpressionError(f"not an expression: {error.msg}") from None
    except simpleeval.InvalidExpression as error:
        raise ExpressionError(str(error)) from None
    except (RecursionError, MemoryError):
        raise ExpressionError("it is nested too deeply, or its value is too large") from None
    except LookupError as error:
        raise ExpressionError(f"no such item: {error}") from None
    except (ArithmeticError, TypeError, ValueError, AttributeError) as error:
        raise ExpressionError(f"{type(error).__name__}: {error}") from None


def checked(value: Any) -> Value:
    """A result as a value of a sweep; ExpressionError for a value that a job file cannot hold."""
    numbers = [one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, float)]
    if not all(map(math.isfinite, numbers)):
        raise ExpressionError(f"its value is {value}")
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(one, bool | int | float | str) for one in value):
        return tuple(value)
    raise ExpressionError(
        f"its value is a {type(value).__name__}; a number, text, true, false or a list of them is needed"
    )


class _Arithmetic(simpleeval.EvalWithCompoundTypes):  # type: ignore[misc] # the library is untyped
    """simpleeval without features that could produce huge texts or take unlimited time: formats, methods and comprehensions."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for node in (ast.JoinedStr, ast.FormattedValue, ast.ListComp, ast.DictComp, ast.SetComp, ast.GeneratorExp):
            self.nodes.pop(node, None)
        self.operators[ast.Mod] = _modulo

    def _eval_attribute(self, node: ast.Attribute) -> Any:
        """An attribute is only the next part of a dotted name; values have no methods."""
        value = self._eval(node.value)
        if not isinstance(value, _Branch):
            raise ExpressionError(f"a value has no attribute {node.attr!r}")
        return getattr(value, node.attr)


def _modulo(left: Any, right: Any) -> Any:
    """Modulo for numbers; for text it would be a format operation."""
    if isinstance(left, str):
        raise ExpressionError("text has no remainder: '%' is for numbers")
    return left % right


class _Branch:
    """A prefix of a dotted name, such as `args` of `args.lr`; each attribute extends it."""

    def __init__(self, name: str, names: Lookup) -> None:
        self._name, self._names = name, names

    def __getattr__(self, part: str) -> Any:
        return _named(f"{self._name}.{part}", self._names)


def _named(name: str, names: Lookup) -> Any:
    value = names(name)
    return _Branch(name, names) if isinstance(value, Mapping) else value


def _plain(value: Any) -> Any:
    if isinstance(value, _Branch):
        raise ExpressionError("it names a table of the job, not a value")
    return value
