"""The options of the launchers' own programs, parsed from their source. Nothing is imported, so a login node needs no torch.

A program declares its options with argparse's `add_argument`: itself, or through the functions of launchers/lib/options.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from kit.config import Resolved
from kit.config.program_arguments import PLACE
from kit.errors import ConfigError, Fault, nearest
from kit.files import untrusted_files
from kit.schema.run_paths import CONTAINER_RUN

# The value of an option that a program's source gives as its default.
Default = str | int | float


def faults_of(resolved: Resolved) -> Iterator[Fault]:
    """Faults in the choice of a launcher's own program: the program is missing, or lacks an option that the job gives."""
    script, folder = resolved.job.script, resolved.launcher_dir
    name = resolved.launcher.script if script is None else script.partition("/code/")[2]
    # A job whose roles have their own commands does not start a program of the launcher.
    if name is None:
        return
    program = folder / name
    if program.is_file():
        typed = resolved.words.options
        for fault, option in ((one, one.problem.partition(" ")[0]) for one in faults(program, resolved.job.args)):
            yield replace(fault, file=PLACE, key=option) if option in typed else fault
        return
    there = sorted(path.name for path in folder.glob("*.py"))
    near = nearest(name, there) or next(iter(there), "train.py")
    problem = f"launcher {resolved.job.launcher!r} has no program {name!r}; it has {', '.join(there) or 'none'}"
    yield Fault(key="script", problem=problem, hint=f'script = "{CONTAINER_RUN}/code/{near}"')


def faults(program: Path, args: Iterable[str]) -> Iterator[Fault]:
    """Arguments that look like options and that the program does not have. A program that declares no options is not checked."""
    known = declared(program)
    for index, word in enumerate(args if known else ()):
        name = word.partition("=")[0]
        # argparse accepts an abbreviated option.
        if not name.startswith("--") or " " in name or any(one.startswith(name) for one in known):
            continue
        near = nearest(name, known) or "--help"
        hint = f"{near} in args; python3 {program.name} --help lists them"
        yield Fault(key=f"args[{index}]", problem=f"{name} is not an option of {program.name}", hint=hint)


@cache
def declared(program: Path) -> tuple[str, ...]:
    """The program's options with their dashes, sorted. Empty if the program does not parse them with lib/options.py."""
    sources = _sources(program)
    return tuple(sorted({"--help", *(name for node in sources for name in _names(node))})) if sources else ()


@cache
def read_defaults(program: Path) -> Mapping[str, Default]:
    """Option with its dashes -> its default, where the source has a literal one: `default=4`.

    For `default=int(_environ("KIT_CHECKPOINT_KEEP", "3"))` it is the number for an unset variable.
    """
    found: dict[str, Default] = {}
    for call in (one for node in _sources(program) for one in _calls(node)):
        value = next((_default(keyword.value) for keyword in call.keywords if keyword.arg == "default"), None)
        if value is not None:
            found |= dict.fromkeys(_options_of(call), value)
    return found


def _sources(program: Path) -> tuple[ast.AST, ...]:
    """The program, and the functions of lib/options.py that it uses. Empty if it does not parse its options with that library."""
    tree = _parse_source(program)
    library = program.parent.parent / "lib" / "options.py"
    called = {_library_function(call) for call in _calls(tree)}
    if "parse" not in called or not library.is_file():
        return ()
    functions = {node.name: node for node in _parse_source(library).body if isinstance(node, ast.FunctionDef)}
    return (tree, *(functions[name] for name in _reachable(called, functions)))


def _default(value: ast.expr) -> Default | None:
    match value:
        case ast.Constant(value=str() | int() | float() as literal):
            return literal
        case ast.Call(
            func=ast.Name(id="int"), args=[ast.Call(func=ast.Name(id="_environ"), args=[_, ast.Constant(str(text))])]
        ):
            return int(text)
    return None


def _reachable(called: Iterable[str], functions: Mapping[str, ast.FunctionDef]) -> set[str]:
    """The called functions of the library, and all functions that these call in turn."""
    reached: set[str] = set()
    waiting = [name for name in called if name in functions]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            calls = (call.func for call in _calls(functions[name]))
            waiting += [func.id for func in calls if isinstance(func, ast.Name) and func.id in functions]
    return reached


def _parse_source(path: Path) -> ast.Module:
    try:
        return ast.parse(untrusted_files.read_bytes(path))
    except (SyntaxError, ValueError) as error:
        name = f"{path.parent.name}/{path.name}"
        problem = f"line {getattr(error, 'lineno', 1)} is not Python"
        hint = f"python3 -m py_compile launchers/{name}"
        raise ConfigError.of(Fault(file="launchers", key=name, problem=problem, hint=hint)) from None


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _library_function(call: ast.Call) -> str:
    """The name of the function of lib/options.py that is called; empty for any other call."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="options"), attr=name):
            return name
    return ""


def _names(tree: ast.AST) -> Iterator[str]:
    """The options that the calls of add_argument declare. BooleanOptionalAction adds a second one with `no-`."""
    for call in _calls(tree):
        for word in _options_of(call):
            yield word
            if any("BooleanOptionalAction" in ast.unparse(keyword.value) for keyword in call.keywords):
                yield f"--no-{word[2:]}"


def _options_of(call: ast.Call) -> list[str]:
    """The options with two dashes that a call of add_argument declares; none for any other call."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
        return []
    words = [word.value for word in call.args if isinstance(word, ast.Constant)]
    return [word for word in words if isinstance(word, str) and word.startswith("--")]
