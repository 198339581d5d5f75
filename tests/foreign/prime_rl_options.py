"""Lists the options of prime-rl's programs, by release: what its own configuration classes have.

    python prime_rl_options.py NEEDS RELEASE=CHECKOUT… >kit/frameworks/prime-rl-options.toml

NEEDS: a folder with what the classes import (scripts/foreign.sh makes it; for 0.4 also pydantic-settings). Needs no GPU. Each
checkout is read in a process of its own, since all have one name.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

HEAD = """\
# The options of prime-rl's programs, and the releases that have them: what its own configuration classes have, by
# `python tests/foreign/prime_rl_options.py NEEDS RELEASE=CHECKOUT…`. kit/frameworks/option_lists.py reads it.
# 0.4: the main branch of 20 February 2026, with rl_slurm and sft_slurm. 0.8.1: the main branch of 21 August 2026.
# NAME.*: a table whose keys are the user's own, such as the arguments of an environment. Tables in lists have no index.
"""
# Program -> its class, where the classes are a package of their own, and where they are not yet.
CLASSES = {
    "trainer": ("prime_rl.configs.trainer.TrainerConfig", "prime_rl.trainer.rl.config.RLTrainerConfig"),
    "orchestrator": (
        "prime_rl.configs.orchestrator.OrchestratorConfig",
        "prime_rl.orchestrator.config.OrchestratorConfig",
    ),
    "inference": ("prime_rl.configs.inference.InferenceConfig", "prime_rl.inference.config.InferenceConfig"),
    "sft": ("prime_rl.configs.sft.SFTConfig", "prime_rl.trainer.sft.config.SFTTrainerConfig"),
    "evals": ("prime_rl.configs.evals.EvalsConfig", ""),
}
# Where the classes are no package of their own: modules that they import for functions alone, and a package that imports others.
STAND_INS = ("prime_rl.utils.logger", "prime_rl.utils.utils")
WITHOUT_INIT = "prime_rl.transport"


def options(kind: Any, prefix: str, above: tuple[Any, ...] = ()) -> Iterator[str]:
    """Each option of a type, dotted; nothing for a type that is no table."""
    if typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    kind = getattr(kind, "__value__", kind)
    origin = typing.get_origin(kind)
    if origin in {typing.Union, types.UnionType, list, tuple, set}:
        for one in typing.get_args(kind):
            yield from options(one, prefix, above)
    elif kind is dict or origin is dict or kind is Any or getattr(kind, "__module__", "").startswith("verifiers"):
        yield f"{prefix}*"  # an environment brings options of its own
    elif hasattr(kind, "model_fields") and kind not in above:
        if kind.model_config.get("extra") == "allow":
            yield f"{prefix}*"
        for name, field in kind.model_fields.items():
            for known in names(name, field):
                yield f"{prefix}{known}"
                yield from options(field.annotation, f"{prefix}{known}.", (*above, kind))


def names(name: str, field: Any) -> set[str]:
    """A field's name, and the others that its class takes."""
    alias = field.validation_alias
    choices = getattr(alias, "choices", [alias] if isinstance(alias, str) else [])
    return {name, *(one for one in choices if isinstance(one, str)), *([field.alias] if field.alias else [])}


def of_one(needs: str, checkout: Path) -> dict[str, list[str]]:
    """Program -> its options."""
    package = checkout / "packages" / "prime-rl-configs" / "src"
    own = package.is_dir()
    sys.path[:1] = [str(package if own else checkout / "src"), needs]
    if not own:
        stand_in(checkout / "src")
    found = {}
    for program, paths in CLASSES.items():
        module, _, name = paths[0 if own else 1].rpartition(".")
        if module:
            known = options(getattr(importlib.import_module(module), name), "")
            found[program] = sorted({one for one in known if not one.startswith("toml_files")})
    return found


class Anything:
    """What a stand-in has: it takes every call, and has every attribute."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __getattr__(self, _: str) -> Any:
        return self


def stand_in(source: Path) -> None:
    """Replace what the classes import, and what needs torch."""
    for name in STAND_INS:
        module: Any = types.ModuleType(name)
        module.__getattr__ = lambda _: Anything()
        sys.modules[name] = module
    package = types.ModuleType(WITHOUT_INIT)
    package.__path__ = [str(source / WITHOUT_INIT.replace(".", "/"))]
    sys.modules[WITHOUT_INIT] = package


def table(needs: str, checkouts: list[str]) -> str:
    """All releases in one file."""
    import tomli_w

    content: dict[str, dict[str, str]] = {program: {} for program in CLASSES}
    for release, _, checkout in (one.partition("=") for one in checkouts):
        argv = [sys.executable, __file__, "of-one", needs, checkout]
        said = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
        for program, known in json.loads(said).items():
            for option in known:
                content[program][option] = f"{content[program].get(option, '')} {release}".strip()
    return HEAD + tomli_w.dumps({program: dict(sorted(known.items())) for program, known in content.items()})


if __name__ == "__main__":
    if sys.argv[1] == "of-one":
        print(json.dumps(of_one(sys.argv[2], Path(sys.argv[3]))))
    else:
        sys.stdout.write(table(sys.argv[1], sys.argv[2:]))
