"""TorchTitan's own parser, asked from outside: a process of its own for each release, since all have one name.

    python torchtitan.py options FOLDER… >kit/frameworks/torchtitan-options.toml
    python torchtitan.py check FOLDER

FOLDER holds a release's package and its .dist-info, as `pip install --no-deps --target FOLDER torchtitan==0.2.2` makes it.
`check` reads a JSON list of words a line, and answers each with one: {"refused": why} or {"values": {"training.seed": 3}}.
Neither needs a GPU. They need torch, tyro, triton, torchdata, tensorboard, and for 0.3 spmd_types and torch_checkpointing.
"""

import contextlib
import dataclasses
import importlib
import io
import json
import pkgutil
import re
import subprocess
import sys
import typing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = """\
# TorchTitan's options, and the releases that have them: what their own configuration classes say, by
# `python tests/foreign/torchtitan.py options FOLDER…`. kit/frameworks/program_releases.py reads it.
# value: takes one. switch: --x, and --no-x for false. module: releases in which it is there only with the module of groups chosen.
# kind: the annotation of an option, where all releases have the same and the kit checks values by it.
# choose: options that name a module of options. groups: the one that all of [module] is in.
# open: releases in which a configuration may bring options of its own.
"""
CHOOSE = ["job.custom_config_module", "experimental.custom_args_module"]
CHECKED = re.compile(r"(int|float|list\[str\]|Literal\[.*\])( \| None)?$")
GROUPS = "torchtitan.components.ft.config.job_config"


def release(folder: Path) -> str:
    """The release, by its .dist-info."""
    return next(folder.glob("torchtitan-*.dist-info")).name.removeprefix("torchtitan-").removesuffix(".dist-info")


def flat(kind: type, made: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each option with its type and its value, dotted."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        value = getattr(made, field.name, None)
        if dataclasses.is_dataclass(value):
            yield from flat(type(value), value, f"{prefix}{field.name}.")
        elif isinstance(hints[field.name], type) and dataclasses.is_dataclass(hints[field.name]):
            yield from flat(hints[field.name], None, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", hints[field.name], value


def made_configurations(package: Path) -> Iterator[Any]:
    """A configuration of each class that the release has; of 0.3 each that its models' registries make without an error."""
    for name in ("torchtitan.config.job_config", "torchtitan.config_manager"):
        with contextlib.suppress(ImportError):
            yield importlib.import_module(name).JobConfig()
            return
    found = [f"torchtitan.models.{info.name}" for info in pkgutil.iter_modules([str(package / "models")])]
    for name in [*found, "torchtitan.experiments.torchft.llama3"]:
        try:
            registry = importlib.import_module(f"{name}.config_registry")
        except ImportError:
            continue
        for function in vars(registry).values():
            if getattr(function, "__module__", "") == registry.__name__ and callable(function):
                with contextlib.suppress(Exception):  # wants a GPU's library, or arguments
                    yield function()


def of_one(folder: Path) -> dict[str, Any]:
    """The options of one release, by kind."""
    found: dict[str, Any] = {"value": set(), "switch": set(), "module": [], "kind": {}}
    for made in made_configurations(folder / "torchtitan"):
        for name, kind, _ in flat(type(made), made):
            if not name.startswith("model_spec."):
                found["switch" if kind is bool else "value"].add(name)
                found["kind"][name] = shown(kind)
    with contextlib.suppress(ImportError):
        extended = importlib.import_module(GROUPS).JobConfig()
        for name, kind, _ in flat(type(extended), extended):
            if name not in found["value"] | found["switch"]:
                found["switch" if kind is bool else "value"].add(name)
                found["module"].append(name)
    return {**found, "value": sorted(found["value"]), "switch": sorted(found["switch"])}


def shown(kind: Any) -> str:
    """An annotation as its file writes it."""
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")


def options(folders: list[str]) -> str:
    """All releases in one table."""
    import tomli_w

    content: dict[str, Any] = {"choose": CHOOSE, "groups": GROUPS, "open": [], "value": {}, "switch": {}, "module": {}}
    kinds: dict[str, set[str]] = {}
    for folder in map(Path, folders):
        argv = [sys.executable, __file__, "of-one", str(folder)]
        said = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        name = release(folder)
        content["open"] += [] if (folder / "torchtitan" / "config" / "job_config.py").is_file() else [name]
        for kind in ("value", "switch"):
            for option in said[kind]:
                content[kind][option] = f"{content[kind].get(option, '')} {name}".strip()
        for option, kind in said["kind"].items():
            kinds.setdefault(option, set()).add(kind)
        for option in said["module"]:
            content["module"][option] = f"{content['module'].get(option, '')} {name}".strip()
    content["open"] = [name for name in content["open"] if not name.startswith("0.1.")]
    tables = {kind: dict(sorted(content[kind].items())) for kind in ("value", "switch", "module")}
    tables["kind"] = {
        option: found.pop()
        for option, found in sorted(kinds.items())
        if len(found) == 1 and CHECKED.match(next(iter(found)))
    }
    return HEAD + tomli_w.dumps({**content, **tables})


def answer(words: list[str]) -> dict[str, Any]:
    """What the release's own parser makes of an argument list."""
    said = io.StringIO()
    try:
        name = next(n for n in ("torchtitan.config", "torchtitan.config_manager") if _has(n))
        manager = importlib.import_module(name).ConfigManager()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            config = manager.parse_args(words)
    except SystemExit:
        return {"refused": said.getvalue()[-2000:]}
    except Exception as error:  # noqa: BLE001 - any of them would end the ranks
        return {"refused": f"{type(error).__name__}: {error}"}
    found = {name: value for name, _, value in flat(type(config), config)}
    return {"values": {name: value for name, value in found.items() if _plain(value)}}


def _plain(value: Any) -> bool:
    """Whether it is no object of the program's, which would be another one at each question."""
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _has(module: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), "ConfigManager")
    except ImportError:
        return False


def main() -> None:
    """Answer on stdout."""
    warnings.simplefilter("ignore")
    if sys.argv[1] == "options":
        print(options(sys.argv[2:]), end="")
        return
    # This file has the package's name.
    sys.path[0] = sys.argv[2]
    if sys.argv[1] == "of-one":
        print(json.dumps(of_one(Path(sys.argv[2]))))
        return
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line)), default=str), flush=True)


if __name__ == "__main__":
    main()
