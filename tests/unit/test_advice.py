"""Advice is code: what `try:` says is done to a wrong file, and the kit must then take the file, or have another fault to name."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from kit import config
from kit.errors import ConfigError, Fault
from kit.planning.plan import plan
from kit.schema.cluster import Cluster
from kit.schema.job import Job
from kit.validation import toml
from tests.support import REPO, make_lock, make_site, write_job

JOB: dict[str, Any] = {"name": "a", "launcher": "ddp"}
CLUSTER: dict[str, Any] = {"node": {"cpus": 8}}
WRONG: tuple[object, ...] = (
    True,
    -1,
    10**9,
    0.5,
    "two words",
    "x",
    "",
    "$HOME/a,b",
    [],
    [3],
    ["--lr", 0.1],
    {},
    {"a": 1},
)
_LINE = re.compile(r"(?:\[(?P<table>[\w.-]+)\]\n\s*)?(?P<line>[\w\"'.-]+ = .*)", re.DOTALL)
_PARTS = re.compile(r'"(?P<quoted>[^"]*)"|\[(?P<place>\d+)\]|(?P<name>[^.\[\]"]+)')


def faults(table: dict[str, Any], model: type[BaseModel]) -> tuple[Fault, ...]:
    try:
        config.validate(table, model, file="a.toml")
    except ConfigError as error:
        return error.faults
    return ()


def parts(key: str) -> list[str | int]:
    return [int(m["place"]) if m["place"] else m["quoted"] or m["name"] for m in _PARTS.finditer(key)]


def inside(table: Any, keys: list[str | int]) -> Any:
    for key in keys:
        table = table[key] if isinstance(key, int) else table.setdefault(key, {})
    return table


def followed(table: dict[str, Any], fault: Fault) -> dict[str, Any] | None:
    """The file after the advice; None if the advice is a sentence."""
    made, keys = copy.deepcopy(table), parts(fault.key)
    if fault.hint == "remove the line":
        while keys and isinstance(keys[-1], int):
            keys.pop()
        inside(made, keys[:-1]).pop(keys[-1], None)
        return made
    if not (found := _LINE.fullmatch(fault.hint)):
        return None
    try:
        line = tomllib.loads(found["line"])
    except tomllib.TOMLDecodeError:
        return None
    ((name, value),) = line.items()
    while keys and isinstance(keys[-1], int):
        keys.pop()
    into = parts(found["table"]) if found["table"] else keys[:-1]
    if [*into, name] != keys:
        inside(made, keys[:-1]).pop(keys[-1], None)
    inside(made, into)[name] = value
    return made


def keys_of(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        key = (*above, field.alias or name)
        yield key
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys_of(kind, key)


def wrong(model: type[BaseModel], base: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The smallest file with one wrong value at each key, and with each key's name written wrong."""
    for key in keys_of(model):
        for value in WRONG:
            table = copy.deepcopy(base)
            inside(table, [*key[:-1]])[key[-1]] = value
            yield table
        for misspelt in (key[-1].upper(), f"{key[-1]}s", key[-1].replace("e", "", 1)):
            table = copy.deepcopy(base)
            inside(table, [*key[:-1]])[misspelt] = value
            yield table


@pytest.mark.parametrize(("model", "base"), [(Job, JOB), (Cluster, CLUSTER)], ids=["job", "cluster"])
def test_a_fault_is_gone_when_its_advice_is_followed(model: type[BaseModel], base: dict[str, Any]) -> None:
    lines, useless = 0, []
    for table in wrong(model, base):
        for fault in faults(table, model):
            after = followed(table, fault)
            if after is None:
                continue
            lines += 1
            if (fault.key, fault.problem) in {(one.key, one.problem) for one in faults(after, model)}:
                useless.append(f"{toml(table)}\n{fault}")
    assert useless == []
    assert lines > 200


def test_an_item_that_is_wrong_keeps_the_items_beside_it() -> None:
    (fault,) = faults({**JOB, "args": ["--lr", 0.1]}, Job)
    after = followed({**JOB, "args": ["--lr", 0.1]}, fault)
    assert after is not None
    assert after["args"] == ["--lr", "0.1"]


def advised(tmp_path: Path, text: str, *overrides: str) -> list[Fault]:
    """Faults and warnings of a job that is planned without a container."""
    job = write_job(tmp_path, text)
    try:
        made = plan(
            config.load_job(job, cluster="local", overrides=overrides), make_lock(), make_site(containers=False)
        )
    except ConfigError as error:
        return [*error.faults]
    return [*made.warnings]


DDP = 'name = "a"\nlauncher = "ddp"\n'
MEGATRON = """
name = "m"
launcher = "megatron-lm"
[resources]
nodes = 1
gpus_per_node = 4
[env]
PROGRAM_RELEASE = "0.20"
[megatron]
num_layers = 4
hidden_size = 64
num_attention_heads = 4
train_iters = 10
lr = 1e-4
mock_data = true
tokenizer_type = "NullTokenizer"
vocab_size = 1000
"""
DEEPSPEED = """
name = "d"
launcher = "deepspeed"
script = "train.py"
[resources]
nodes = 1
gpus_per_node = 4
"""


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (f'{DDP}[slurm]\nextra = ["--no-requeue"]', "requeue = false"),
        (f'{DDP}[slurm]\nextra = ["--requeue"]', "requeue = true"),
        (f'{DDP}[slurm]\nextra = ["--bb=capacity=10TB access=striped"]', "a batch script of your own"),
        (f'{DDP}[slurm]\nextra = ["--nice 100"]', 'extra = ["--nice=100"]'),
        (
            f'{DDP}env.LD_LIBRARY_PATH = "/x:$LD_LIBRARY_PATH"',
            "setup = ['export LD_LIBRARY_PATH=\"/x:$LD_LIBRARY_PATH\"']",
        ),
        (f'{DDP}env.DATA = "$HOME/x"', 'inherit = ["HOME"]'),
        (f"{DDP}DEBUG = true", "debug = true"),
        (f'{DDP}mounts = [{{ source = "/data", target = "/usr" }}]', 'target = "/mnt/usr"'),
        (f'{DDP}mounts = [{{ source = "/data", target = "/lib/" }}]', 'target = "/mnt/lib/"'),
        (f'{DDP}mounts = [{{ source = "/data", target = "/kit/run" }}]', 'target = "/mnt/kit-run"'),
        ('name = "a"\nlancher = "ddp"', 'launcher = "ddp"'),
        ('name = "a"\nlancher = "fsdpp"', 'launcher = "fsdp"'),
        (f"{MEGATRON}tokenizer_hf_include_special_tokens = true", "remove the line"),
        (f"{MEGATRON}tokenizer_hf_include_special_tokens = false", "tokenizer_hf_no_include_special_tokens = true"),
        (f"{MEGATRON}my_flag = true", 'args = ["--my-flag"]'),
        (f"{MEGATRON}my_flag = false", "remove the line"),
        (f'{MEGATRON}my_list = ["a", "b"]', 'args = ["--my-list", "a", "b"]'),
        (f'{MEGATRON}fp8 = "hybrid"', 'fp8_format = "hybrid"'),
        (f"{MEGATRON}swiglu = 0", "swiglu = false"),
    ],
)
def test_no_advice_says_the_opposite(tmp_path: Path, text: str, hint: str) -> None:
    found = [fault.hint for fault in advised(tmp_path, text)]
    assert any(hint in one for one in found), found


def test_a_blank_in_the_projects_name_is_the_projects(tmp_path: Path) -> None:
    (tmp_path / "my project" / "clusters").mkdir(parents=True)
    cluster = (REPO / "clusters" / "local.toml").read_text()
    (tmp_path / "my project" / "clusters" / "local.toml").write_text(cluster)
    job = write_job(tmp_path / "my project", DDP)
    resolved = config.load_job(job, cluster="local")
    site = make_site(containers=False, run_dir=tmp_path / "my project" / "runs" / "a")
    with pytest.raises(ConfigError) as caught:
        plan(resolved, None, site)
    (fault,) = caught.value.faults
    assert fault.problem.startswith("the runs are in the project, and its folder 'my project' has characters")
    assert fault.hint == "mv 'my project' my-project, or set paths.runs in clusters/local.toml"


@pytest.mark.parametrize(
    "table",
    [
        "[deepspeed]\ntrain_micro_batch_size_per_gpu = 4\n[deepspeed.autotuning]\nenabled = true\n"
        "[deepspeed.autotuning.tuning_space]\nx = [1, 2]\n[deepspeed.zero_optimization]\nstage = [0, 1, 2]\n",
        "[deepspeed]\ntrain_micro_batch_size_per_gpu = [1, 2]\n[deepspeed.autotuning]\nenabled = true\n",
    ],
)
def test_lists_for_deepspeeds_autotuner_are_taken(tmp_path: Path, table: str) -> None:
    assert advised(tmp_path, DEEPSPEED + table) == []
    (fault,) = advised(tmp_path, DEEPSPEED + table.replace("enabled = true", "enabled = false"))
    assert "[" in fault.problem


def test_auto_of_the_users_own_trainer_is_a_warning(tmp_path: Path) -> None:
    table = '[deepspeed]\ntrain_micro_batch_size_per_gpu = "auto"\ngradient_clipping = "auto"\n'
    job = write_job(tmp_path, DEEPSPEED + table)
    made = plan(config.load_job(job, cluster="local"), None, make_site(containers=False))
    (said,) = made.warnings
    assert (said.key, "Hugging Face Trainer" in said.problem) == ("deepspeed.gradient_clipping", True)
    own = DEEPSPEED.replace('script = "train.py"\n', "") + table
    assert [fault.key for fault in advised(tmp_path / "own", own)] == ["deepspeed.gradient_clipping"]


def test_megatrons_fsdp_is_taken_with_the_launchers_own_variables(tmp_path: Path) -> None:
    assert advised(tmp_path, f'{MEGATRON}use_megatron_fsdp = true\nckpt_format = "fsdp_dtensor"\n') == []
