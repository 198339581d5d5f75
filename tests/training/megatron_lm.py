"""Megatron-LM's own parser and validator, asked from outside: a process of its own, since its megatron.core is not PyPI's.

    python megatron_lm.py CHECKOUT check
    python megatron_lm.py CHECKOUT values
    python megatron_lm.py CHECKOUT options >0.19.json                              # what one release says of itself
    python megatron_lm.py - table 0.16.json 0.19.json … >kit/frameworks/megatron-options.toml

`check` reads a JSON object a line, {"argv": [...], "world_size": 8, "env": {...}}, and answers each with a line of JSON: null, or
why the command line was refused. `values` reads {"argv": [...]} and answers {"values": {...}}, what the parser makes of it, or
{"refused": why}.

Stood in for are a module of Triton kernels, which a torch without CUDA has not, and the GPU's generation (9: Hopper): validate_args
asks for it.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import sys
import typing
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import tomli_w

HOPPER = 9


def load(checkout: Path) -> Any:
    """megatron.training.arguments of a checkout."""
    warnings.simplefilter("ignore")
    # Releases since 0.17 want Python 3.12.
    vars(typing).setdefault("override", lambda method: method)
    sys.path.insert(0, str(checkout))
    importlib.import_module("megatron.core")
    sys.modules["megatron.core.transformer.custom_layers.batch_invariant_kernels"] = mock.MagicMock()
    arguments: Any = importlib.import_module("megatron.training.arguments")
    arguments.get_device_arch_version = lambda: HOPPER
    return arguments


HEAD = """\
# The options of Megatron-LM by how its parser wants them written, and the releases that have them: what the parsers say of
# themselves, by `python tests/training/megatron_lm.py CHECKOUT options`. kit/frameworks/megatron_options.py reads it.
# value: one value. several: words. bare: a switch. both: --x and --no-x. off: on by default -> the switch that turns it off.
"""


def table(files: list[Path]) -> str:
    """The lists of several releases in one; a file is named for its release."""
    kinds: dict[str, dict[str, str]] = {kind: {} for kind in ("value", "several", "bare", "both")}
    off: dict[str, str] = {}
    for file in files:
        said = json.loads(file.read_text(encoding="utf-8"))
        for kind, names in kinds.items():
            for name in said[kind]:
                names[name] = f"{names.get(name, '')} {file.stem}".strip()
        off |= said["off"]
    content = {kind: dict(sorted(names.items())) for kind, names in {**kinds, "off": off}.items()}
    return HEAD + tomli_w.dumps(content)


def options(arguments: Any) -> str:
    """How each option is written, as JSON."""
    kinds: dict[str, list[str]] = {"value": [], "several": [], "bare": [], "both": []}
    off: dict[str, str] = {}
    for action in arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))._actions:
        names = list(dict.fromkeys(option.removeprefix("--").replace("-", "_") for option in action.option_strings))
        match type(action).__name__:
            case "_StoreAction":
                kinds["value" if action.nargs is None else "several"] += names
            case "BooleanOptionalAction":
                kinds["both"].append(names[0])
            case "_StoreTrueAction":
                kinds["bare"] += names
            case "_StoreFalseAction":
                kinds["bare"] += names
                off |= {action.dest: names[0]} if action.dest not in names else {}
    content = {**{kind: sorted(names) for kind, names in kinds.items()}, "off": dict(sorted(off.items()))}
    return json.dumps(content)


def refusal(arguments: Any, case: dict[str, Any]) -> str | None:
    """What parser, validator or the model's configuration say against a command line; None when they take it."""
    said = io.StringIO()
    env = {"RANK": "0", "WORLD_SIZE": str(case["world_size"]), **case["env"]}
    with (
        mock.patch.object(sys, "argv", ["pretrain_gpt.py", *case["argv"]]),
        mock.patch.dict(os.environ, env),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(said),
    ):
        try:
            # As initialize_megatron of pretrain_gpt.py calls them.
            args = arguments.parse_args()
            arguments.validate_args(args, {"tokenizer_type": "GPT2BPETokenizer"})
            arguments.core_transformer_config_from_args(args)
        except SystemExit:
            return said.getvalue().strip().splitlines()[-1]
        except Exception as error:  # noqa: BLE001 - any of them would end the ranks
            return f"{type(error).__name__}: {error}"
    return None


def values(arguments: Any, argv: list[str]) -> dict[str, Any]:
    """What the parser makes of a command line, before any rule is applied."""
    said = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["pretrain_gpt.py", *argv]),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(said),
    ):
        try:
            return {"values": vars(arguments.parse_args())}
        except SystemExit:
            return {"refused": said.getvalue().strip().splitlines()[-1]}


def main() -> None:
    """Answer on stdout."""
    if sys.argv[2] == "table":
        print(table([Path(name) for name in sys.argv[3:]]), end="")
        return
    arguments = load(Path(sys.argv[1]))
    if sys.argv[2] == "options":
        print(options(arguments))
        return
    for line in sys.stdin:
        asked = json.loads(line)
        answer = values(arguments, asked["argv"]) if sys.argv[2] == "values" else refusal(arguments, asked)
        print(json.dumps(answer, default=str), flush=True)


if __name__ == "__main__":
    main()
