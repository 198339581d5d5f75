"""prime-rl's own configurations as jobs of the kit: the files and command lines that the kit writes, given to prime-rl's classes.

PRIME_RL=<checkout> names prime-rl, which pip does not have. What its own launcher would give each program is compared by field.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from kit import config
from kit.planning.plan import Plan, plan
from tests.foreign.conftest import FOLDER, PYTHON, Judge
from tests.foreign.prime_rl_jobs import InexpressibleError, job_of
from tests.scripts.test_prime_rl import APART, ROLES
from tests.support import REPO, make_site, write_job

CHECKOUT = Path(os.environ.get("PRIME_RL", "none"))
EXAMPLES = CHECKOUT / "examples"
FILES = sorted(EXAMPLES.rglob("*.toml"))
# What prime-rl's classes import.
NEEDS = FOLDER.with_name("prime-rl")
LIBRARY = REPO / "launchers" / "lib"
CLASSES = {
    "rl": {"trainer": "trainer.TrainerConfig", "orchestrator": "orchestrator.OrchestratorConfig"},
    "sft": {"trainer": "sft.SFTConfig", "evals": "evals.EvalsConfig"},
}
SERVERS = dict.fromkeys(("inference", "prefill", "decode"), "inference.InferenceConfig")

# What is known in the allocation alone, and what the kit does itself: the run folder, resuming.
OWN = (
    "output_dir",
    "ckpt.output_dir",
    "rollout_transport.host",
    "rollout_transport.port",
    "weight_broadcast.host",
    "weight_broadcast.port",
    "model.client.base_url",
    "model.client.admin_base_url",
    "eval.client.base_url",
    "eval.client.admin_base_url",
    "env_server_base_port",
    "eval.env_server_base_port",
    "online.broadcasts_dir",
    "online.resume_step",
    "server.host",
    "server.port",
    "resume",
    "run",
)

OF_THE_LAUNCHER = {"deployment", "slurm", "dry_run", "clean"}

# Example -> field that differs -> why.
_COUNTED = (
    "prime-rl's launcher counts one GPU, before it works out that each of the four has a copy; the kit counts four."
)
DIFFERENT = {
    "basic/hendrycks-sanity/rl": {
        "trainer.weight_broadcast.inference_world_size": _COUNTED,
        "orchestrator.weight_broadcast.inference_world_size": _COUNTED,
    },
    "advanced/glm-5.2/swe": {
        "orchestrator.inference_metrics_roles": "the kit names all servers that prefill before all that decode; "
        "prime-rl those of one replica after those of the other. Both name the servers in the same order."
    },
}
# Examples that no job of the kit starts.
NOT_HERE = {
    "advanced/glm-5.2/infer/pd": "inference alone",
    "advanced/glm-5.2/infer/pd-llmd": "the llm-d router",
    "advanced/glm-5.2/swe-llmd": "the llm-d router",
    "evals/swe": "evaluation alone, of a model that is served elsewhere",
}

pytestmark = pytest.mark.skipif(not FILES, reason="PRIME_RL names no checkout of prime-rl, which pip does not have")


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    needed = f"import sys; sys.path.insert(0, {str(NEEDS)!r}); import pydantic_config, renderers, verifiers.v1"
    if not Path(PYTHON).exists() or subprocess.run([PYTHON, "-c", needed], check=False).returncode:
        pytest.skip("prime-pydantic-config, renderers and verifiers are not installed: make foreign")
    found = Judge("prime_rl.py", str(CHECKOUT), str(NEEDS))
    yield found
    found.close()


def kind_of(path: Path) -> str:
    """Which of prime-rl's commands a configuration is for."""
    if "infer" in path.parts or "evals" in path.parts:
        return "inference" if "infer" in path.parts else "evals"
    return "sft" if path.stem == "sft" else "rl"


def name_of(path: Path) -> str:
    return path.relative_to(EXAMPLES).as_posix().removesuffix(".toml")


def planned(job: dict[str, Any], folder: Path) -> Plan:
    resolved = config.load_job(write_job(folder, tomli_w.dumps(job)), cluster="infiniband")
    return plan(resolved, None, make_site(containers=False))


def told(made: Plan, role: str, folder: Path) -> list[str]:
    """The words that a role's program gets, from the script that starts it. Of several servers: the first's."""
    run = str(make_site(containers=False).run_dir)
    command = next(placed.role.command for placed in made.roles if placed.name == role) or ()
    for name in ("python", "orchestrator", "evals", "inference"):
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        others = '[[ "$*" != *server.port* || "$*" == *"server.port 20002 "* ]] || exec sleep 60'
        program.write_text(f'#!/bin/bash\n{others}\nprintf "%s\\n" "$@" >"{folder}/words"\n')
        program.chmod(0o755)
    known = {**ROLES, "PATH": f"{folder}/bin:/usr/bin:/bin", "KIT_ROLE": role}
    if role in {"prefill", "decode"}:
        known |= {**APART, "KIT_ROLE_PREFILL_PORT_HTTP": "20002", "KIT_ROLE_DECODE_PORT_HTTP": "20002"}
        count = next(placed.nodes for placed in made.roles if placed.name == role)
        known[f"KIT_ROLE_{role.upper()}_NODES"] = " ".join(f"10.0.1.{n}" for n in range(count))
        known |= {f"KIT_ROLE_{role.upper()}_PORT_{name}": str(n) for n, name in ((30000, "RPC"), (31000, "TRANSFER"))}
    elif role == "inference":
        count = next(placed.nodes for placed in made.roles if placed.name == role)
        known["KIT_ROLE_INFERENCE_NODES"] = " ".join(f"10.0.1.{n}" for n in range(count))
    argv = [word.replace("{run}", run).replace(f"{run}/code/lib", str(LIBRARY)) for word in command]
    argv = [sys.executable if word == made.job.python else word.replace(run, str(folder)) for word in argv]
    (folder / "words").unlink(missing_ok=True)
    done = subprocess.run(argv, env=known, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = (folder / "words").read_text().splitlines()
    return found[found.index("@") :]


def flat(table: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Path -> value of all that is in tables and lists of tables."""
    if isinstance(table, list) and table and isinstance(table[0], dict):
        table = {str(place): one for place, one in enumerate(table)}
    if not isinstance(table, dict) or not table:
        yield prefix, table
        return
    for key, value in table.items():
        yield from flat(value, f"{prefix}.{key}" if prefix else key)


def differing(theirs: dict[str, Any], ours: dict[str, Any], given: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Fields with two values. given: the example; a name that it does not say is drawn anew each time."""
    left, right = dict(flat(theirs)), dict(flat(ours))
    drawn = (
        () if "name" in given.get("monitors", {}).get("wandb", {}) else ("monitors.wandb.name", "monitors.prime.name")
    )
    found = {}
    for path in sorted(left.keys() | right.keys()):
        if any(path == own or path.startswith(f"{own}.") for own in (*OWN, *drawn)) or "serve.address" in path:
            continue
        if left.get(path) != right.get(path):
            found[path] = (left.get(path), right.get(path))
    return found


@pytest.mark.parametrize("broken", ["optim.lrr = 1", "model.ep = 'all'"])
def test_their_classes_refuse_what_is_wrong(broken: str, judge: Judge, tmp_path: Path) -> None:
    """Else their yes would say nothing."""
    (tmp_path / "trainer.toml").write_text(f"{broken}\n", encoding="utf-8")
    words = ["@", str(tmp_path / "trainer.toml")]
    assert "refused" in judge.ask({"ask": "parsed", "kind": "trainer.TrainerConfig", "words": words})


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_an_example_of_theirs_as_a_job(path: Path, judge: Judge, tmp_path: Path) -> None:
    given, kind = tomllib.loads(path.read_text(encoding="utf-8")), kind_of(path)
    try:
        job = job_of(given, kind)
    except InexpressibleError as error:
        assert NOT_HERE.get(name_of(path)) and NOT_HERE[name_of(path)] in str(error)
        return
    made = planned(job, tmp_path)
    shipped = judge.ask({"ask": "shipped", "kind": f"{kind}.{kind.upper()}Config", "words": ["@", str(path)]})
    assert "refused" not in shipped, shipped
    theirs = shipped["values"]
    theirs.pop("deployment")
    (tmp_path / "configs").mkdir()
    found: dict[str, tuple[Any, Any]] = {}
    for role, options in theirs.items():
        file = tmp_path / "configs" / f"{role}.toml"
        file.write_text(made.text_of(f"configs/{role}.toml"), encoding="utf-8")
        of_role = {**CLASSES[kind], **SERVERS}[role]
        words = told(made, role, tmp_path)
        answered = judge.ask({"ask": "parsed", "kind": of_role, "words": words})
        assert "refused" not in answered, (role, words, answered)
        # Each server is told its place among the others; the file says what they are together.
        words = ["@", str(file), "--router", "None"] if role in SERVERS else words
        ours = judge.ask({"ask": "parsed", "kind": of_role, "words": words})["values"]
        ours = {key: value for key, value in ours.items() if key not in OF_THE_LAUNCHER}
        found |= {f"{role}.{field}": pair for field, pair in differing(options, ours, given).items()}
    # A difference that is not named here fails, and so does one that is named and gone.
    expected = DIFFERENT.get(name_of(path), {})
    assert found.keys() == expected.keys(), found
