"""Reads files and command lines with prime-rl's own configuration classes.

    python prime_rl.py CHECKOUT NEEDS

Each line of stdin is a question in JSON, each line of stdout its answer: {"values": …} or {"refused": …}. CHECKOUT: of
prime-rl, whose `packages/prime-rl-configs` needs no GPU. NEEDS: a folder with what that imports. The environments that
a source names need not be installed: what it says of them is taken as it is said.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

CHECKOUT = Path(sys.argv[1])
# Written by prime-rl's launcher for itself alone.
OF_THE_LAUNCHER = {"deployment", "slurm", "output_dir", "dry_run"}


def without_environments() -> None:
    """Take what a source says of its environment as it is said: its package, whose options these are, is not installed."""
    from pydantic import ConfigDict

    vf = importlib.import_module("verifiers.v1")

    class AsSaid(vf.EnvConfig):  # type: ignore[misc, name-defined]
        model_config = ConfigDict(extra="allow")

        @property
        def env_id(self) -> str:
            found: str = getattr(self, "id", None) or self.taskset["id"]
            return found

    def as_said(data: Any, _: object) -> Any:
        if isinstance(data, dict) and isinstance(data.get("env"), dict):
            return {**data, "env": AsSaid.model_construct(**data["env"])}
        return data

    setattr(vf, "resolve_env_field", as_said)  # noqa: B010 - a module that mypy does not see


def parsed(kind: str, words: list[str]) -> Any:
    """What the class of that name makes of the words of a command line."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        return importlib.import_module("pydantic_config").cli(named(kind), args=words, plain=True)


def named(kind: str) -> Any:
    """`rl.RLConfig` of prime_rl.configs."""
    module, _, name = kind.rpartition(".")
    return getattr(importlib.import_module(f"prime_rl.configs.{module}"), name)


def dumped(config: Any, exclude: set[str] | None = None) -> dict[str, Any]:
    """As prime-rl's launcher writes it."""
    found: dict[str, Any] = config.model_dump(mode="json", exclude=exclude)
    return found


def shipped(kind: str, words: list[str]) -> dict[str, Any]:
    """What prime-rl's own launcher gives each program for a configuration: role -> options; where it is to run."""
    config = parsed(kind, words)
    whole = dumped(config)
    found: dict[str, Any] = {"deployment": whole["deployment"]}
    if kind == "inference.InferenceConfig":
        return {**found, **servers(config)}
    inference = config.inference
    found |= servers(inference) if inference is not None else {}
    if kind == "rl.RLConfig":
        return {**found, "trainer": dumped(config.trainer), "orchestrator": dumped(config.orchestrator)}
    found["trainer"] = dumped(config, {"deployment", "slurm", "dry_run", "clean", "inference"})
    if config.eval is not None:
        of_evals = {"model": config.model.name, "eval": whole["eval"], "weight_broadcast": whole["weight_broadcast"]}
        of_evals |= {"online": {"max_steps": config.max_steps}, "monitors": whole["monitors"]}
        of_evals["log"] = {key: whole["log"][key] for key in ("level", "json_logging")}
        found["evals"] = dumped(named("evals.EvalsConfig").model_validate(of_evals))
    return found


def servers(inference: Any) -> dict[str, Any]:
    """The options of its inference servers; of those that prefill and decode apart, with what its template adds to each."""
    options = dumped(inference, OF_THE_LAUNCHER) | {"router": None}
    if inference.deployment.type != "disaggregated":
        return {"inference": options}
    template = (CHECKOUT / "src/prime_rl/templates/inference.sbatch.j2").read_text(encoding="utf-8")
    backends = re.findall(r'all2all_backend\\": \\"(\w+)', template)
    graphs = json.loads(re.findall(r"DECODE_COMPILE_CFG='(.*)'", template)[0])
    own = inference.deployment
    extra = {
        "prefill": {"all2all_backend": backends[0], **own.prefill_vllm_overrides},
        "decode": {"all2all_backend": backends[1], "compilation_config": graphs, **own.decode_vllm_overrides},
    }
    return {role: {**options, "vllm": {**options["vllm"], **more}} for role, more in extra.items()}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """See the module."""
    try:
        if question["ask"] == "shipped":
            return {"values": shipped(question["kind"], question["words"])}
        return {"values": dumped(parsed(question["kind"], question["words"]))}
    except SystemExit as error:
        return {"refused": f"exit {error.code}"}
    except Exception as error:  # noqa: BLE001 - any of them would end the program
        return {"refused": f"{type(error).__name__}: {error}"[:3000]}


def main() -> None:
    """Answer until stdin ends."""
    warnings.simplefilter("ignore")
    sys.path[:1] = [str(CHECKOUT / "packages" / "prime-rl-configs" / "src"), sys.argv[2]]
    without_environments()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line)), default=str), flush=True)


if __name__ == "__main__":
    main()
