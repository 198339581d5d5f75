"""Configurations that Megatron-LM publishes, as jobs of the kit: its own parser reads the same values from what the kit writes.

    MEGATRON_LM=/path/to/Megatron-LM pytest tests/training/test_megatron_lm_published.py

A checkout publishes scripts (examples/**/*.sh) and tables (tests/functional_tests). A script runs here as it is, with a torchrun
that only writes down its words. Each option becomes a key of [megatron], and the kit makes words of the keys again.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import config
from kit.frameworks import megatron_options
from tests.support import write_job
from tests.training.test_megatron_lm import CHECKOUT, PROGRAM, release, rendered, why_not

yaml = pytest.importorskip("yaml")
tomli_w = pytest.importorskip("tomli_w")
pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

SCRIPT = "pretrain_gpt.py"
RECORDER = """\
#!/bin/bash
# Stands in for torchrun and python: keeps the words of the training, starts nothing.
printf '%s\\n' "$@" >"${WORDS}"
"""
# Keys of a job that have a meaning of their own: the kit sets them where the original says nothing.
_OF_THE_KIT = {
    "exit_signal_handler": "[megatron] save brings it: without it Megatron-LM dies of a time limit instead of saving",
}
# What Megatron-LM's own parser refuses as it is published: script -> what it says.
_BROKEN = {
    "train_gpt3_175b_distributed": "unrecognized arguments: 2.4B:320",
    "02_train": "unrecognized arguments: --export-force-local-attention",
}
Values = dict[str, Any]


def scripts() -> list[Path]:
    """Those of examples/ that start pretrain_gpt.py through torchrun, on this machine's word alone."""
    found = []
    for path in sorted((CHECKOUT / "examples").rglob("*.sh")):
        text = path.read_text(encoding="utf-8", errors="replace")
        starts = re.search(rf"^[^#\n]*{re.escape(SCRIPT)}|PRETRAIN_SCRIPT_PATH", text, re.MULTILINE)
        # A script for sbatch starts srun on a cluster of its author.
        if starts and "srun" not in text and ("torchrun" in text or "torch.distributed.run" in text):
            found.append(path)
    return found


def tables() -> list[Path]:
    """Those that the checkout's own tests train, with a model that pretrain_gpt.py makes; not those that only resume."""
    cases = CHECKOUT / "tests" / "functional_tests" / "test_cases"
    found = [path for kind in ("gpt", "mixtral", "moe") for path in sorted((cases / kind).glob("*/model_config.yaml"))]
    return [
        path for path in found if not re.search(r"inference|grpo|resume|reruns|1node|frozen|gb200", path.parent.name)
    ]


def words_of_script(path: Path, folder: Path) -> list[str]:
    """The words that a script gives pretrain_gpt.py, from a run of it."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("torchrun", "python", "uv"):
        program = programs / name
        program.write_text(RECORDER, encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (folder / SCRIPT).touch()
    places = [str(folder / name) for name in ("checkpoints", "tensorboard", "tokenizer", "merges", "data")]
    for place in places:
        Path(place).mkdir()
    argv = ["bash", str(path), *places]
    if "--checkpoint-path" in path.read_text(encoding="utf-8"):
        argv = ["bash", str(path), "--checkpoint-path", places[0], "--tensorboard-logs-path", places[1]]
    env = {"PATH": f"{programs}:/usr/bin:/bin", "WORDS": str(folder / "words"), "HOME": str(folder), "USE_UV": "0"}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (folder / "words").is_file(), done.stderr[-2000:]
    words = (folder / "words").read_text(encoding="utf-8").splitlines()
    return words[next(place for place, word in enumerate(words) if word.endswith(SCRIPT)) + 1 :]


def words_of_table(path: Path) -> list[str]:
    """The words that Megatron-LM's own test gives pretrain_gpt.py: true is the bare option, brackets hold several words.

    Its own reader makes one word of a value with spaces, which an option of several words refuses; here it gets them.
    """
    several = megatron_options.known(release())["several"]
    text = re.sub(r"\$\{?(\w+)\}?", r"/data/\1", path.read_text(encoding="utf-8"))
    found: dict[str, str] = yaml.load(text, Loader=yaml.BaseLoader)["MODEL_ARGS"]
    words = []
    for option, value in found.items():
        words.append(option)
        text_of_one = value.startswith("(") or (" " in value and option[2:].replace("-", "_") not in several)
        if text_of_one and not value.startswith("["):
            words.append(value)
        elif value != "true":
            words += shlex.split(value.strip("[]"))
    return words


def typed(word: str) -> int | float | str:
    """A word as TOML has it."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def table_of(words: list[str]) -> dict[str, Any]:
    """The [megatron] table that stands for the words of a command line."""
    known = megatron_options.known(release())
    table: dict[str, Any] = {}
    place = 0
    while place < len(words):
        option, equals, given = words[place].partition("=")
        assert option.startswith("--"), words[place]
        key = option[2:].replace("-", "_")
        place += 1
        end = place
        while end < len(words) and not re.match(r"--[a-z]", words[end]):
            end += 1
        values = [typed(word) for word in ([given] if equals else words[place:end])]
        place = end
        several = key in known["several"]
        table[key] = True if not values else values if several or len(values) > 1 else values[0]
    return table


def nodes_for(table: dict[str, Any]) -> int:
    """The least number of nodes of eight GPUs whose ranks the layout divides."""
    sizes = {kind: table.get(f"{kind}_parallel_size", 1) for kind in ("tensor_model", "pipeline_model", "context")}
    each = sizes["tensor_model"] * sizes["pipeline_model"] * sizes["context"]
    experts = table.get("expert_model_parallel_size", 1) * table.get(
        "expert_tensor_parallel_size", sizes["tensor_model"]
    )
    return next(
        n for n in range(1, 65) if 8 * n % each == 0 and (8 * n // sizes["pipeline_model"]) % max(1, experts) == 0
    )


@pytest.fixture(scope="module")
def values() -> Iterator[Callable[[list[str]], Values]]:
    """What Megatron-LM's parser makes of words."""
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), str(CHECKOUT), "values"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin and process.stdout

        def put(words: list[str]) -> Values:
            assert process.stdin and process.stdout
            process.stdin.write(json.dumps({"argv": words}) + "\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline())
            return answer

        yield put
        process.stdin.close()


PUBLISHED = [] if why_not() else [*scripts(), *tables()]


def name_of(path: Path) -> str:
    return path.stem if path.suffix == ".sh" else f"{path.parts[-3]}-{path.parts[-2]}"


@pytest.mark.parametrize("path", PUBLISHED, ids=name_of)
def test_a_published_configuration_as_a_job(path: Path, values: Callable[[list[str]], Values], tmp_path: Path) -> None:
    original = words_of_script(path, tmp_path) if path.suffix == ".sh" else words_of_table(path)
    theirs = values(original)
    if "refused" in theirs:
        assert _BROKEN.get(path.stem, "accepted") in theirs["refused"]
        return
    table = table_of(original)
    free = {"use_torch_fsdp2", "use_megatron_fsdp"} & table.keys()
    content = {
        "name": "theirs",
        "launcher": "megatron-lm",
        "image": "train-cpu",
        "resources": {"nodes": nodes_for(table), "gpus_per_node": 8},
        "env": {"CUDA_DEVICE_MAX_CONNECTIONS": "8" if free else "1"},
        "megatron": table,
    }
    resolved = config.load_job(write_job(tmp_path, tomli_w.dumps(content)), cluster="pod")
    ours = values(rendered(resolved)[0])
    assert "refused" not in ours, ours
    different = {
        key: (theirs["values"].get(key), value)
        for key, value in ours["values"].items()
        if theirs["values"].get(key) != value
    }
    assert theirs["values"].keys() == ours["values"].keys()
    assert different.keys() <= _OF_THE_KIT.keys(), different
    assert ("exit_signal_handler" in different) == ("save" in table and "exit_signal_handler" not in table)


def test_there_are_ten_of_them() -> None:
    assert len(PUBLISHED) >= 10, os.fspath(CHECKOUT)
