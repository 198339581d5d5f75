"""Collects the lines of a script that stay lines: of setup, [once], [per_node] and [after], with the constants that they read."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kit.migrate import names_in_lines
from kit.migrate.report import UnreadError
from kit.migrate.words import ScriptValues, is_known

if TYPE_CHECKING:
    from tree_sitter import Node

# Every shell on a node has them.
GIVEN = frozenset({"HOME", "USER"})


@dataclass(frozen=True)
class _Constant:
    name: str
    value: str
    exported: bool

    def line(self) -> str:
        return f"{'export ' if self.exported else ''}{self.name}={shlex.quote(self.value)}"


@dataclass(kw_only=True)
class ShellLines:
    """Lines by table.

    assigned: all names that the script sets. exported: those that its programs get. set_in: those of each table's lines.
    """

    values: ScriptValues
    assigned: set[str] = field(default_factory=set)
    exported: set[str] = field(default_factory=set)
    inherit: list[str] = field(default_factory=list)
    set_in: dict[str, set[str]] = field(default_factory=dict)
    tables: dict[str, list[str | _Constant]] = field(default_factory=dict)

    def add(self, table: str, text: str, node: Node) -> None:
        """Add lines to a table, and before them the constants that they read.

        UnreadError if only the batch script could run them.
        """
        own = set(names_in_lines.set_by(node))
        lines = self.tables.setdefault(table, [])
        for name in dict.fromkeys(names_in_lines.read_by(node)):
            self._allow(name, own, node, table)
        for name in dict.fromkeys(names_in_lines.read_by(node)):
            value = self.values.constant(name)
            if value is not None and name not in GIVEN | own | self.set_in.get(table, set()):
                self._need(lines, _Constant(name, value, name in self.exported))
            elif name not in self.assigned and names_in_lines.of_the_shell(name) and value is None:
                self.inherit += [name] if name not in self.inherit else []
        lines += text.splitlines()
        self.set_in.setdefault(table, set()).update(own)

    def _allow(self, name: str, own: set[str], node: Node, table: str) -> None:
        """UnreadError if the shell that runs the lines has another value than the batch script."""
        value = self.values.known.get(name)
        foreign = name.startswith("SLURM_") and name != "SLURM_SUBMIT_DIR"
        if foreign and not names_in_lines.same_on_every_rank(name):
            raise UnreadError(f"${name} is another one in a step than in the batch script")
        if value is not None and is_known(value):
            return
        if name in self.set_in.get("setup", ()) or name in self.set_in.get(table, ()):
            return
        # A loop's own variable. A lone assignment reads what was there before.
        alone = node.type in ("variable_assignment", "declaration_command")
        if (name in own and not alone) or (not names_in_lines.of_the_shell(name) and name in own):
            return
        if name in self.assigned or name in self.values.arrays or not names_in_lines.same_on_every_rank(name):
            raise UnreadError(f"the value of ${name} is known only when the script runs")

    @staticmethod
    def _need(lines: list[str | _Constant], constant: _Constant) -> None:
        before = next(
            (one for one in reversed(lines) if isinstance(one, _Constant) and one.name == constant.name), None
        )
        if before is None or before.value != constant.value:
            lines.append(constant)

    def say(self, table: str, name: str, value: str) -> None:
        """Export a constant at this place of a table."""
        self.tables.setdefault(table, []).append(_Constant(name, value, exported=True))

    def has(self, table: str) -> bool:
        """Whether a table has lines."""
        return bool(self.tables.get(table))

    def write(self, job: dict[str, Any]) -> None:
        """Write the tables into the job. Its [env] holds in [once] and the like, so what it says is not said again there."""
        setup_names = {re.split("=", text, maxsplit=1)[0].removeprefix("export ") for text in self._texts("setup")}
        for table in self.tables:
            lines = [
                one.line() if isinstance(one, _Constant) else one
                for one in self.tables[table]
                if not isinstance(one, _Constant)
                or table == "setup"
                or one.name in setup_names | self.set_in.get("setup", set())
                or job["env"].get(one.name) != one.value
            ]
            if table == "setup":
                job["setup"] = lines
            elif lines:
                job[table] = {"lines": lines, "container": False}
        if self.inherit:
            job["inherit"] = list(dict.fromkeys([*job.get("inherit", []), *self.inherit]))

    def _texts(self, table: str) -> list[str]:
        return [one.line() if isinstance(one, _Constant) else one for one in self.tables.get(table, [])]
