"""Jinja's sandbox for the templates of users: a template of a clone ends, whatever it computes."""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment

# Turns of all loops and calls of all macros together. A template of the kit takes some hundreds.
_MOST_TURNS = 1_000_000
# The longest text or list that `*` may make, and the largest exponent of `**`.
_LONGEST, _MOST_EXPONENT = 1_000_000, 64


class Sandbox(SandboxedEnvironment):
    """No access to Python's internal attributes, no long ranges (Jinja's documentation, "Sandbox"), and no end of them by loops
    inside of each other, macros that call themselves, powers or products.

    For one template.
    """

    intercepted_binops = frozenset({"*", "**"})
    turns = 0

    def counting(self, template: nodes.Template) -> nodes.Template:
        """The template with a count of each turn of a loop and each call of a macro."""
        kinds = (nodes.For, nodes.Macro, nodes.CallBlock)
        for one in [one for kind in kinds for one in template.find_all(kind)]:
            assert isinstance(one, kinds)
            call = nodes.Call(nodes.EnvironmentAttribute("turn"), [], [], None, None)
            one.body.insert(0, nodes.ExprStmt(call).set_lineno(one.lineno, override=True))
        template.set_environment(self)
        return template

    def turn(self) -> None:
        """Count a turn. OverflowError for too many."""
        self.turns += 1
        if self.turns > _MOST_TURNS:
            raise OverflowError(f"its loops and macros take more than {_MOST_TURNS:,} turns")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """A product or a power. OverflowError for one that takes long."""
        if operator == "**" and not (_is_small(left, _LONGEST) and _is_small(right, _MOST_EXPONENT)):
            raise OverflowError(f"a power of more than {_MOST_EXPONENT}")
        for one, times in ((left, right), (right, left)):
            if isinstance(one, str | bytes | list | tuple) and isinstance(times, int) and len(one) * times > _LONGEST:
                raise OverflowError(f"a product of more than {_LONGEST:,} elements")
        return super().call_binop(context, operator, left, right)


def _is_small(value: Any, most: int) -> bool:
    return isinstance(value, int | float) and abs(value) <= most
