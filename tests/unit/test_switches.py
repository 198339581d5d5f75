"""Every switch is named in a test that really runs it: keys of job.toml, options of the commands that submit or stand beside a run.

A guard by names: it reads the tests of `tests/cluster`, `tests/training` and `tests/why`, which use a Slurm or torch, and the job
files of `examples/` that tests submit. KEYS_NEVER_RUN and OPTIONS_NEVER_RUN list what none of them
names: a new switch comes into such a test, not into the list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import REPO

COMMANDS = ("submit", "run", "sweep", "rerun", "resume", "shell", "notebook", "code", "port", "bisect")
# Keys of each table that no such test names: unit and script tests alone have them.
KEYS_NEVER_RUN: dict[str, str] = {
    "after": "container timeout_s",
    "checkpoint": "dir",
    "container": "capabilities entrypoint mount_home remap_root writable",
    "diloco": "alpha bits fragments min_replicas overlap quorum_timeout relay start_wait top_k wire",
    "": "inherit mount_set rank_args",
    "megatron": (
        "context_parallel_size expert_model_parallel_size max_position_embeddings num_experts num_query_groups"
    ),
    "metrics": "tensorboard wandb",
    "once": "timeout_s",
    "per_node": "container timeout_s",
    "preflight": "clock_skew_s container memlock timeout_s unpack_s verify_image",
    "profile": "ranks steps",
    "resources": "gpu_type gres segment switches",
    "retry": "exit_codes keep no_progress",
    "rl": (
        "chat_template data decode eval evals log_level max_async_level max_tokens num_infer_gpus "
        "num_train_gpus orchestrator_on output_dir prefill reward reward_timeout skip_bad temperature "
        "tokenizer validation"
    ),
    "sft": (
        "chat_template data eval evals hub_offline inference log_level model nodes_per_fsdp_group "
        "num_infer_gpus num_infer_nodes num_train_gpus output_dir parallel programs seq_len skip_bad "
        "tokenizer trainer validation wandb weight_broadcast"
    ),
    "slurm": "account constraint exclusive licenses mail_type mail_user qos reservation template",
    "step": "mem_per_gpu",
    "sweep": "max_nodes random when",
    "torchrun": "redirects",
}
# Options of each command that no such test names.
OPTIONS_NEVER_RUN: dict[str, str] = {
    "bisect": "--dry-run --exit-code --over --runs",
    "notebook": "--node",
    "rerun": "--dry-run --follow",
    "run": "--container --yes",
    "shell": "--container",
    "submit": "--base --container --point --yes",
    "sweep": "--container --of",
}


def keys() -> Iterator[tuple[str, str]]:
    """Table (empty for none) and name of each key of job.toml."""
    schema = json.loads((REPO / "docs/schema/job.schema.json").read_text(encoding="utf-8"))
    for name, field in schema["properties"].items():
        inner = _table(schema, field)
        yield from ((name, key) for key in inner) if inner else [("", name)]


def _table(schema: dict[str, Any], field: dict[str, Any]) -> list[str]:
    """The keys of a table; empty for another kind of key. For tables with names of the user's, those of one."""
    for one in (field, *field.get("anyOf", ())):
        if ref := one.get("$ref"):
            return [*schema["$defs"][ref.rpartition("/")[2]].get("properties", {})]
        if isinstance(more := one.get("additionalProperties"), dict) and (ref := more.get("$ref")):
            return [*schema["$defs"][ref.rpartition("/")[2]].get("properties", {})]
    return []


@pytest.fixture(scope="module")
def tests() -> list[str]:
    """The text of each file whose jobs really run."""
    places = [path for room in ("cluster", "training", "why") for path in (REPO / "tests" / room).glob("*.py")]
    places += [*(REPO / "examples").rglob("*.toml"), *(REPO / "tests" / "sick").glob("*.py")]
    return [path.read_text(encoding="utf-8") for path in places]


def names(text: str, table: str, key: str) -> bool:
    """Whether a file sets a key: in its table, with dots, or by --set."""
    if table == "":
        return re.search(rf"(?:\b|\\n){key}\s*=|\[{key}\b", text) is not None
    if re.search(rf"\b{table}(?:\.[\w-]+)?\.{key}\b", text):
        return True
    return (
        re.search(rf"\[{table}(?:\.[\w-]+)?\](?:(?!\n\s*\[[a-z]|\\n\[[a-z]).)*?(?:\b|\\n){key}\s*=", text, re.DOTALL)
        is not None
    )


def test_every_key_is_in_a_test_that_runs_it(tests: list[str]) -> None:
    known = {(table, key) for table, names in KEYS_NEVER_RUN.items() for key in names.split()}
    missing = {(table, key) for table, key in keys() if not any(names(text, table, key) for text in tests)}
    assert sorted(missing - known) == [], "no test with a Slurm or torch names these keys"
    assert sorted(known - {*keys()}) == [], "the list names keys that are gone"


def options() -> Iterator[tuple[str, str]]:
    """Each command of COMMANDS with each of its long options."""
    for command in COMMANDS:
        page = (REPO / f"docs/man/kit-{command}.1").read_text(encoding="utf-8").replace("\\-", "-")
        for option in sorted(
            set(re.findall(r"(?m)^(?:\\fB|\.B ?|\.BR? ?)?(?:-\w, ?)?(?:\\fB)?(--[a-z][a-z-]*)", page))
        ):
            yield command, option


def test_every_option_is_in_a_test_that_runs_it(tests: list[str]) -> None:
    """An option counts where a file names the command and the option, each as a word."""

    def used(command: str, option: str) -> bool:
        words = (rf"\b{command}\b", rf"{option}\b(?!-)")
        return any(all(re.search(word, text) for word in words) for text in tests)

    known = {(command, option) for command, names in OPTIONS_NEVER_RUN.items() for option in names.split()}
    found = {(command, option) for command, option in options() if option != "--help"}
    assert sorted({one for one in found if not used(*one)} - known) == [], (
        "no test with a Slurm or torch names these options"
    )
    assert sorted(known - found) == [], "the list names options that are gone"
