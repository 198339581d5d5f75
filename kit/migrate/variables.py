"""Reads the assignments of a script: constants, [env], secrets, and what the kit's rendezvous replaces."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kit.migrate import names_in_lines, words
from kit.migrate.bash_tree import commands_of, text_of
from kit.migrate.report import Kind, LinePlace, Places, UnreadError
from kit.migrate.shell_lines import ShellLines
from kit.migrate.words import ScriptValues, is_known, shown
from kit.schema.sbatch_sizes import Sizes

if TYPE_CHECKING:
    from tree_sitter import Node

# What the kit sets for every rank (kit/schema/job.py refuses them in [env]). Only these names, whatever their value.
KITS = frozenset(
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]
)
_COUNTS_NODES = re.compile(r'"?\$\(\s*scontrol show hostnames?( "?\$\{?SLURM_(JOB_)?NODELIST\}?"?)? *\| *wc -l *\)"?')


@dataclass(kw_only=True)
class Variables:
    """Variables as the script has set them so far. all_exported: `set -a` holds."""

    values: ScriptValues
    lines: ShellLines
    job: dict[str, Any]
    sizes: Sizes
    all_exported: bool = False
    promised: dict[str, str] = field(default_factory=dict)
    constants: list[tuple[str, LinePlace]] = field(default_factory=list)
    in_env: dict[str, LinePlace] = field(default_factory=dict)

    def statement(self, node: Node, places: Places) -> None:
        """One statement of assignments, with `export` or without."""
        text = text_of(node)
        first = text.split()[0]
        options = "".join(re.findall(r"(?<=\s)-([A-Za-z]+)", text.split("=")[0]))
        if first in ("export", "declare", "typeset", "readonly", "local") and set(options) & set("fnpF"):
            places.unread(f"{text}: kit migrate does not read this option of {first}")
            return
        exported = self.all_exported or first == "export" or (first in ("declare", "typeset") and "x" in options)
        before = len(places)
        for child in node.children if node.type != "variable_assignment" else [node]:
            if child.type == "variable_assignment":
                self.assign(child, places, exported=exported)
            elif child.type == "variable_name" and exported:
                self.export(text_of(child), places)
        if len(places) == before:
            places.out("the line sets nothing")

    def assign(self, node: Node, places: Places, *, exported: bool) -> None:
        """One assignment. Its place names the value that is not in job.toml."""
        name = next(iter(names_in_lines.set_by(node)))
        exported = exported or name in self.lines.exported
        value_node = node.children[-1] if len(node.children) > 2 else None
        adds = text_of(node).partition("=")[0].endswith("+")
        plain = node.children[0].type != "subscript" and not (adds and self.values.get(name) is None)
        is_array = value_node is not None and value_node.type == "array"
        if names_in_lines.SECRET.fullmatch(name):
            self._secret(name, places, exported=exported)
        elif is_array and value_node is not None and (not adds or name in self.values.arrays):
            self._array(value_node, node, name, places, exported=exported, adds=adds)
        elif not plain or is_array:
            self._by_a_shell(node, name, places, exported=exported)
        else:
            value = "" if value_node is None else words.value(value_node, self.values)
            if _COUNTS_NODES.fullmatch(text_of(node).partition("=")[2]):
                value = str(self.sizes.nodes)
            value = (self.values.get(name) or "") + value if adds else value
            self._set(node, name, value, places, exported=exported)

    def _set(self, node: Node, name: str, value: str, places: Places, *, exported: bool) -> None:
        text = text_of(node)
        self.values.doubtful.pop(name, None)
        if name in KITS:
            self.values.known[name] = value
            places.kit(f"{text}: every rank has {name} from the kit")
            if exported and is_known(value):
                self.promised[name] = value
        elif is_known(value):
            self._constant(name, value, places, exported=exported)
        else:
            self._by_a_shell(node, name, places, exported=exported)
            # Its words may still be those of a rendezvous.
            self.values.known[name] = value

    def _constant(self, name: str, value: str, places: Places, *, exported: bool) -> None:
        self.values.forget(name)
        self.values.known[name] = value
        if not exported:
            self.constants.append((name, places.key(f"{name}={value}: written where it is used")))
        else:
            self._into_env(name, value, places)

    def _into_env(self, name: str, value: str, places: Places) -> None:
        self.leave_env(name, "a later line sets it again; lines between the two have it", kind="out")
        self.lines.exported.add(name)
        self.job["env"][name] = value
        self.in_env[name] = places.key(f"env.{name}")

    def leave_env(self, name: str, why: str, *, kind: Kind = "key") -> str | None:
        """Take a variable out of [env], and say why at the line that put it there. Returns its value."""
        value: str | None = self.job["env"].pop(name, None)
        if value is not None and (place := self.in_env.pop(name, None)):
            place.kind, place.what = kind, f"{name}={value}: {why}"
        return value

    def _secret(self, name: str, places: Places, *, exported: bool) -> None:
        self.values.forget(name)
        if not exported:
            places.out(
                f"{name}: the name looks like that of a secret, whose value is written nowhere; a line that needs it is not read"
            )
            return
        names = self.job["secrets"].setdefault("env", [])
        names += [name] if name not in names else []
        places.check(f"{name}: secrets.env: export it in your own shell; its value is not copied into a file")

    def _array(self, array: Node, node: Node, name: str, places: Places, *, exported: bool, adds: bool) -> None:
        before = self.values.arrays.get(name, []) if adds else []
        self.values.forget(name)
        items = [one for child in array.children if child.is_named for one in words.split(child, self.values)]
        if all(map(is_known, items)) and not exported:
            self.values.arrays[name] = [*before, *items]
            self.constants.append((name, places.key(f"{text_of(node)}: written where it is used")))
        else:
            self._by_a_shell(node, name, places, exported=exported)

    def export(self, name: str, places: Places) -> None:
        """`export NAME` of a variable that has its value already."""
        value = self.values.get(name)
        self.lines.exported.add(name)
        if name in KITS:
            places.kit(f"export {name}: every rank has it from the kit")
            if value is not None and is_known(value):
                self.promised[name] = value
        elif names_in_lines.SECRET.fullmatch(name):
            self._secret(name, places, exported=True)
        elif value is not None and is_known(value) and not name.startswith("SLURM_"):
            self._into_env(name, value, places)
        elif name in self.lines.set_in.get("setup", ()):
            self.lines.tables["setup"].append(f"export {name}")
            places.key(f"export {name}: setup")
        elif name not in self.lines.assigned and names_in_lines.of_the_shell(name):
            self.lines.inherit.append(name)
            places.key(f"export {name}: inherit")
        else:
            places.unread(f"export {name}: its value is known only when the script runs")

    def _by_a_shell(self, node: Node, name: str, places: Places, *, exported: bool) -> None:
        """A value that each rank may compute by itself: a line of setup. Others are left out if only a rendezvous needs them."""
        text = text_of(node)
        self.values.forget(name)
        asks = names_in_lines.substitutes(node)
        if not asks:
            try:
                before = self.leave_env(name, "setup, before the line that reads it")
                if before is not None:
                    self.lines.say("setup", name, before)
                self.lines.add("setup", f"export {text}" if exported else text, node)
            except UnreadError as error:
                reason = str(error)
            else:
                places.key(f"{text}: setup: each rank computes the same value")
                return
        else:
            reason = "each rank would compute another value"
        if asks and not all(names_in_lines.only_asks(one) for one in commands_of(node)):
            places.unread(f"{shown(text)}: {reason}, and its command may do more than answer")
        elif not exported:
            places.out(f"{shown(text)}: only the run knows it, and no line of the job needs it")
        elif names_in_lines.asks_for_nodes(node, self.lines.assigned):
            places.check(f"{shown(text)}: the ranks do not get {name}; MASTER_ADDR and KIT_NODE_NAMES tell the same")
        else:
            places.unread(f"{shown(text)}: {reason}")

    def finish(self) -> list[str]:
        """Mark the constants that nothing uses. Lines for promises that the kit's own values do not keep."""
        for name, place in self.constants:
            if name not in self.values.used:
                place.kind, place.what = "out", place.what.replace("written where it is used", "nothing uses it")
        resources = self.job["resources"]
        each = resources.get("ranks_per_node", 1)
        expected = {"WORLD_SIZE": str(resources["nodes"] * each), "LOCAL_WORLD_SIZE": str(each)}
        if self.job["launcher"] in ("torchrun", "accelerate"):
            return []
        return [
            f"{name}={value} in the script; the kit's value is {expected.get(name, 'another on each rank')}"
            for name, value in self.promised.items()
            if not name.startswith("MASTER_") and value != expected.get(name) and expected["WORLD_SIZE"] != "1"
        ]
