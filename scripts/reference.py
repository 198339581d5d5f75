#!/usr/bin/env python3
"""Writes docs/reference and docs/man from the code: commands, keys of TOML files, exit codes, variables, events, rules.

    python scripts/reference.py            # make reference
    python scripts/reference.py --check    # exit code 1, and the names of the pages that are out of date

tests/unit/test_reference.py fails when a page differs from what this makes of the code.
"""

from __future__ import annotations

import inspect
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

from kit import errors
from kit.cli import GROUPS, app
from kit.health import progress
from kit.health.answer import Rule
from kit.health.rules import batch_log_rules, framework_rules, pending_reasons, program_rules, stall_cause_rules
from kit.planning import rank_files
from kit.schema import models, rank_variables, run_events
from kit.schema.job import MOST_BYTES_OF_A_STRING
from kit.schema.run_exit_codes import RunExitCode
from kit.schema.schema_base import Model
from kit.schema.sweep import MOST_COMBINATIONS, Random, Search
from kit.snapshots import chosen_files, scan
from kit.submission import workspace
from kit.version import __version__

REPO = Path(__file__).parents[1]
sys.path.insert(0, str(REPO))

from scripts import answers_page  # noqa: E402
from tests.unit.test_health import answered  # noqa: E402
from tests.why.cases import CASES  # noqa: E402

MADE = "<!-- Made by scripts/reference.py: run `make reference`. -->\n\n"
# The purpose of each TOML file, and its place.
FILES = {
    "job": ("The job file", "`job.toml`: what to run."),
    "cluster": ("A cluster's file", "`clusters/NAME.toml`: where to run."),
    "image": ("An image's file", "`containers/NAME/image.toml`: what an image is built from."),
    "launcher": ("A launcher's file", "`launchers/NAME/launcher.toml`: how ranks start."),
    "mounts": ("A mount set", "`mounts/NAME.toml`: logical names for folders of a cluster."),
    "table": ("A lookup table", "`tables/NAME.toml`: values that a sweep looks up."),
}


def pages() -> dict[str, str]:
    """Path below docs/ -> text, for all generated pages."""
    made = {f"reference/{noun}.md": _keys(noun) for noun in FILES}
    made |= {
        "reference/index.md": _index(),
        "reference/answers.md": answers_page.page(_table, _type),
        "reference/commands.md": _commands(),
        "reference/exit-codes.md": _exit_codes(),
        "reference/limits.md": _limits(),
        "reference/variables.md": _variables(),
        "reference/events.md": _events(),
        "reference/rules.md": _rules(),
    }
    made = {name: MADE + re.sub(r"\n{3,}", "\n\n", text).strip() + "\n" for name, text in made.items()}
    return made | {f"man/{name}": text for name, text in _man_pages()}


def _index() -> str:
    rows = [(f"[{title}]({noun}.md)", where) for noun, (title, where) in FILES.items()]
    rows += [
        (
            "[Commands](commands.md)",
            "All commands with their options. The man pages, such as `man kit-submit`, have the same text.",
        ),
        ("[Answers](answers.md)", "Fields of what commands print with `--json`, and the version that brought each."),
        ("[Limits](limits.md)", "Sizes that the kit checks before it submits."),
        ("[Variables](variables.md)", "Environment variables of a rank."),
        ("[Exit codes](exit-codes.md)", "Exit codes of `kit` and of a run."),
        ("[Events](events.md)", "Events in the file `state/events.jsonl` of a run."),
        ("[Rules](rules.md)", "Rules by which `kit why` explains a run."),
    ]
    return "# Reference\n\nThese pages are generated from the code. A test checks that they match it.\n\n" + _table(
        ("page", "content"), rows
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in lines
    )


# Commands


def _context(name: str, command: Any, parent: Any = None) -> Any:
    return typer._click.core.Context(command, info_name=name, parent=parent)


def _commands() -> str:
    group: Any = typer.main.get_command(app)
    text = get_docs_for_click(obj=group, ctx=_context("kit", group), name="kit")
    # Its list of commands truncates the lines; the groups below have them complete.
    head, _, rest = text.partition("## `kit run`")
    rest = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)+", "", f"## `kit run`{rest}")
    head = head.partition("**Commands**")[0].replace("# `kit`", "# Commands")
    # The usage lines are not blocks to run.
    text = re.sub(r"```console\n\$ (.*)\n```", r"    \1", head + _by_group(group) + rest)
    return re.sub(r"^(\* `[^`]+`: )(.*)$", lambda m: m[1] + m[2].replace("<", "&lt;"), text, flags=re.MULTILINE)


def _by_group(group: Any) -> str:
    parts = []
    for title, names in GROUPS.items():
        rows = [
            (f"[`{name}`](#kit-{name})", (group.get_command(None, name).help or "").split("\n\n")[0].replace("\n", " "))
            for name in names
        ]
        parts.append(f"**{title}**\n\n{_table(('command', 'does'), rows)}\n")
    return "\n".join(parts) + "\n"


def _man_pages() -> Iterator[tuple[str, str]]:
    group: Any = typer.main.get_command(app)
    above = _context("kit", group)
    lines = [(name, (group.get_command(None, name).help or "").split("\n\n")[0]) for name in group.list_commands(None)]
    yield "kit.1", _man_page("kit", group, above, lines)
    for name, _ in lines:
        command = group.get_command(None, name)
        context = _context(name, command, above)
        inner = getattr(command, "commands", {})
        yield f"kit-{name}.1", _man_page(f"kit {name}", command, context, [(n, c.help or "") for n, c in inner.items()])
        for n, c in inner.items():
            yield f"kit-{name}-{n}.1", _man_page(f"kit {name} {n}", c, _context(n, c, context), [])


def _man_page(name: str, command: Any, context: Any, commands: list[tuple[str, str]]) -> str:
    """The page in the format of man(7)."""
    text = re.sub(r"\s*\n\s*", " ", (command.help or "").replace("\n\n", "\x00")).replace("\x00", "\n.PP\n")
    title = name.replace(" ", "-")
    lines = [f'.TH "{title.upper()}" "1" "" "kit {__version__}" "slurm-kit"', ".SH NAME"]
    lines += [f"{_roff(title)} \\- {_roff(text.split('.')[0])}", ".SH SYNOPSIS", f".B {_roff(name)}"]
    lines += [_roff(" ".join(command.collect_usage_pieces(context))), ".SH DESCRIPTION", _roff(text)]
    records = [record for one in command.get_params(context) if (record := one.get_help_record(context))]
    if records:
        lines.append(".SH OPTIONS")
        lines += [line for flags, said in records for line in (".TP", f"\\fB{_roff(flags)}\\fR", _roff(said))]
    if commands:
        lines.append(".SH COMMANDS")
        lines += [line for one, said in commands for line in (".TP", f"\\fB{_roff(one)}\\fR", _roff(said))]
    lines += [".SH EXIT STATUS"]
    lines += [line for code, said in _codes_of_kit() for line in (".TP", code, _roff(said))]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("\n.PP\n", "\x00")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE).replace("\x00", "\n.PP\n")


# Keys


def _keys(noun: str) -> str:
    title, where = FILES[noun]
    schema = models()[noun].model_json_schema()
    parts = [f"# {title}", where, f"`kit schema {noun}` prints the same as a JSON Schema, for editors."]
    parts += list(_tables(schema, schema, "", noun, set()))
    for name, place in _inner(schema, schema):
        parts += _tables(schema, schema["$defs"][name], place.removeprefix("."), noun, {name})
    return "\n\n".join(parts)


def _tables(schema: Mapping[str, Any], table: Mapping[str, Any], path: str, noun: str, seen: set[str]) -> Iterator[str]:
    """The table at `path`, then those inside it. A table that several places share is printed once."""
    rows, inside = [], []
    for key, value in table.get("properties", {}).items():
        place = f"{path}.{key}" if path else key
        rows.append((f"`{key}`", _type(schema, value), _default(key, value, table), _meaning(schema, value)))
        inside += [(inner, place + suffix) for inner, suffix in _inner(schema, value)]
    if path:
        yield f"## `[{path}]`"
        yield table.get("description", "").split("\n\n")[0].replace("\n", " ")
    if rows:
        yield _table(("key", "type", "default", "meaning"), rows)
    if table.get("additionalProperties") is True:
        yield "Any other key is allowed, too."
    for name, place in inside:
        if name not in seen:
            seen.add(name)
            yield from _tables(schema, schema["$defs"][name], place, noun, seen)


def _branches(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [one for one in value.get("anyOf", value.get("oneOf", [value])) if one.get("type") != "null"]


def _inner(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The tables that a value may be, each with the text that its header has after the key's name."""
    for one in _branches(value):
        if "$ref" in one:
            name = one["$ref"].rpartition("/")[2]
            inner = schema["$defs"][name]
            if "properties" in inner:
                yield name, ""
            else:
                yield from _inner(schema, inner)
        for items in [one["items"]] if isinstance(one.get("items"), dict) else []:
            yield from ((name, f"[]{suffix}") for name, suffix in _inner(schema, items))
        named = [*one.get("patternProperties", {}).values(), one.get("additionalProperties")]
        for items in (item for item in named if isinstance(item, dict)):
            yield from ((name, f".NAME{suffix}") for name, suffix in _inner(schema, items))


def _type(schema: Mapping[str, Any], value: Mapping[str, Any]) -> str:
    names = []
    for one in _branches(value):
        if "$ref" in one:
            inner = schema["$defs"][one["$ref"].rpartition("/")[2]]
            names.append("table" if "properties" in inner else _type(schema, inner))
        elif "enum" in one:
            names.append(", ".join(f"`{_shown(item)}`" for item in one["enum"]))
        elif "const" in one:
            names.append(f"`{_shown(one['const'])}`")
        elif one.get("type") == "array":
            items = one.get("items")
            names.append(f"list of {_type(schema, items)}" if isinstance(items, dict) else "list")
        elif one.get("type") == "object":
            names.append("table")
        else:
            names.append(_scalar(one))
    return " or ".join(dict.fromkeys(names))


def _scalar(value: Mapping[str, Any]) -> str:
    word = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    name = word.get(value.get("type", ""), "any")
    least, most = value.get("minimum"), value.get("maximum")
    above, below = value.get("exclusiveMinimum"), value.get("exclusiveMaximum")
    name += f", at least {least}" if least is not None else f", above {above}" if above is not None else ""
    return name + (f", at most {most}" if most is not None else f", below {below}" if below is not None else "")


def _default(key: str, value: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    if key in table.get("required", ()):
        return "required"
    default = value.get("default")
    return "" if default is None or default in ([], {}) or isinstance(default, dict) else f"`{_shown(default)}`"


def _shown(value: object) -> str:
    """The value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _meaning(schema: Mapping[str, Any], value: Mapping[str, Any]) -> str:
    said = str(value.get("description", ""))
    if not said:
        refs = [one["$ref"].rpartition("/")[2] for one in _branches(value) if "$ref" in one]
        said = " ".join(schema["$defs"][name].get("description", "").split("\n\n")[0] for name in refs)
    # The key's own example, else one of its form.
    examples = value.get("examples") or next((one["examples"] for one in _branches(value) if one.get("examples")), None)
    example = f" Example: `{_shown(examples[0])}`." if examples and value.get("description") else ""
    return said.replace("<", "&lt;") + example


# Exit codes, variables, events, rules


def _codes_of_kit() -> list[tuple[str, str]]:
    """Exit code -> when, from the classes of kit.errors."""
    found = [("0", "The command did what was asked.")]
    by_code: dict[int, str] = {}
    for one in vars(errors).values():
        if inspect.isclass(one) and issubclass(one, errors.KitError) and one is not errors.RunFailed:
            by_code.setdefault(one.exit_code, (one.__doc__ or "").split("\n\n")[0])
    by_code[1] = "Any error that has no exit code of its own."
    found += [(str(code), said) for code, said in sorted(by_code.items())]
    found += [("130, 143", "The command was ended by Ctrl-C (130) or SIGTERM (143).")]
    return [*found, ("the run's own", "With `--wait` or `--follow`, `kit` exits with the exit code of the run.")]


def _exit_codes() -> str:
    of_runs = [(str(int(one)), one.meaning) for one in RunExitCode]
    return "\n\n".join(
        [
            "# Exit codes",
            "## Of `kit`",
            _table(("code", "when"), _codes_of_kit()),
            "## Of a run",
            "A run ends with the exit code of the first rank that failed, and with 0 when no rank failed. "
            "The batch script has these exit codes of its own:",
            _table(("code", "when"), of_runs),
            "An exit code above 128 means that a signal ended the program: 128 + the signal's number. "
            "137 is SIGKILL, 139 is SIGSEGV (segmentation fault), 143 is SIGTERM.",
        ]
    )


def _limits() -> str:
    def number(count: int) -> str:
        return f"{count:,}"

    def of(model: type[Model], key: str, name: str = "le") -> str:
        return number(next(getattr(one, name) for one in model.model_fields[key].metadata if hasattr(one, name)))

    rows = [
        ("Combinations of a sweep's values, before `when`", number(MOST_COMBINATIONS), "refused"),
        ("`sweep.random.count`", of(Random, "count"), "refused"),
        ("`sweep.search.count`", of(Search, "count"), "refused"),
        (
            "Tasks of one array",
            "the least of `max_array` in the cluster's file, of the QOS row, and Slurm's MaxArraySize",
            "the points become several arrays",
        ),
        ("Bytes of one argument or variable of a program", number(MOST_BYTES_OF_A_STRING), "refused"),
        (
            "Bytes of all arguments and variables of a program",
            number(rank_files.MOST_BYTES - rank_files.OTHERS_BYTES),
            "refused",
        ),
        ("Files of a workspace", number(chosen_files.MOST_FILES), "refused"),
        ("Files of a workspace", number(workspace.MANY_FILES), "a warning"),
        ("Bytes of one file of a workspace", number(scan.MOST_BYTES_OF_A_FILE), "refused"),
        ("Bytes of a workspace", number(scan.MOST_BYTES), "refused"),
        ("Characters of a job's name", "64", "refused"),
    ]
    return "\n\n".join(
        [
            "# Limits",
            "The kit checks these sizes at submit. What is over a limit is refused with its size, or you get a warning.",
            _table(("size", "at most", "over it"), rows),
            "Nodes, GPUs, memory, time and jobs are limited by the cluster's file, its QOS table and Slurm: "
            "[the cluster's file](cluster.md).",
        ]
    )


def _variables() -> str:
    parts = [
        "# Variables that a rank sees",
        "The kit sets all of them before the program starts, with or without a container.",
    ]
    for title, names in (
        ("The rank", rank_variables.OF_THE_RANK),
        ("The run", rank_variables.OF_THE_RUN),
        ("Libraries", rank_variables.OF_LIBRARIES),
    ):
        rows = [(f"`{name}`", said) for name, said in names.items()]
        parts += [f"## {title}", _table(("variable", "meaning"), rows)]
    return "\n\n".join([*parts, "A rank also has the variables that Slurm sets for its task (`SLURM_*`)."])


def _events() -> str:
    rows = [
        (f"`{name}`", said, ", ".join(f"`{key}`" for key in keys)) for name, (said, keys) in run_events.EVENTS.items()
    ]
    common = [(f"`{key}`", said) for key, said in run_events.COMMON.items()]
    return "\n\n".join(
        [
            "# Events of a run",
            "The file `state/events.jsonl` of a run folder has one JSON object per line. Every line has these keys:",
            _table(("key", "meaning"), common),
            "Each event adds its own keys. Their values are text:",
            _table(("event", "what happened", "further keys"), rows),
        ]
    )


def _rules() -> str:
    shelves = {
        "Waiting in the queue": pending_reasons.RULES,
        "Before the ranks": (*batch_log_rules.PREFLIGHT, *batch_log_rules.BATCH),
        "Stalled ranks, and slow ones": (
            *progress.STALLS.values(),
            progress.STRAGGLES,
            *(rule for rule, _ in stall_cause_rules.RULES),
            stall_cause_rules.SHAPE,
            stall_cause_rules.UNREACHABLE,
            stall_cause_rules.UNANSWERED,
            stall_cause_rules.CLOCK,
        ),
        "Frameworks": (*framework_rules.ALL, framework_rules.MEGATRON),
        "Programs": (*program_rules.RULES, *program_rules.BY_CODE),
    }
    parts = [
        "# Rules of `kit why`",
        "`kit why` tries its rules in a fixed order, the surest first, and answers by the first that fits. "
        "`{name}` stands for a part of the message that decided.",
    ]
    for title, rules in shelves.items():
        rows = [(f"`{one.id}`", one.verdict, _said(one), one.advice) for one in dict.fromkeys(rules)]
        parts += [f"## {title}", _table(("rule", "verdict", "says", "advice"), rows)]
    known = {one.id for rules in shelves.values() for one in rules}
    parts += [
        "## The whole run",
        "Rules that no single message decides, each with an answer to a run that really ended so (tests/why):",
        _table(("rule", "verdict", "an answer", "advice"), list(_answers(known))),
    ]
    return "\n\n".join(parts)


def _answers(known: set[str]) -> Iterator[tuple[str, ...]]:
    """Answers to recorded runs for rules that are functions: the first case of each rule."""
    for name in CASES:
        if CASES[name].rule not in known:
            known.add(CASES[name].rule)
            with tempfile.TemporaryDirectory() as folder:
                found = answered(name, Path(folder))
            line = re.sub(r"\b\d+:\d\d\b", "H:MM", found.line).replace("<", "&lt;")
            yield f"`{found.rule}`", found.verdict, line, found.advice


def _said(rule: Rule) -> str:
    return rule.says.replace("<", "&lt;")


def main() -> int:
    """Write or check the pages. Returns the exit code."""
    docs, stale = REPO / "docs", []
    made = pages()
    there = {str(path.relative_to(docs)) for folder in ("reference", "man") for path in (docs / folder).rglob("*.*")}
    for name in sorted(there - made.keys()):
        stale.append(name)
        if "--check" not in sys.argv:
            (docs / name).unlink()
    for name, text in made.items():
        path = docs / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    print(*(f"{'out of date' if '--check' in sys.argv else 'written'}: docs/{name}" for name in stale), sep="\n")
    return int("--check" in sys.argv and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
