"""The kit's list of DeepSpeed's keys is what DeepSpeed itself looks for, and its verdicts are DeepSpeed's."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kit.frameworks import deepspeed

# A configuration that notes every key that it is asked for; and the fields of the tables that DeepSpeed has models of.
PROGRAM = """
import json
from deepspeed.runtime import precision_config as precision
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.zero import config, offload_config as offload

asked = set()

class Asked(dict):
    def __contains__(self, key):
        asked.add(key)
        return super().__contains__(key)
    def __getitem__(self, key):
        asked.add(key)
        return super().__getitem__(key)
    def get(self, key, otherwise=None):
        asked.add(key)
        return super().get(key, otherwise)
    def keys(self):
        return self
    def __copy__(self):
        return self

DeepSpeedConfig(Asked(train_batch_size=1, train_micro_batch_size_per_gpu=1))
models = {
    "deepspeed.zero_optimization": config.DeepSpeedZeroConfig,
    "deepspeed.zero_optimization.offload_param": offload.DeepSpeedZeroOffloadParamConfig,
    "deepspeed.zero_optimization.offload_optimizer": offload.DeepSpeedZeroOffloadOptimizerConfig,
    "deepspeed.fp16": precision.DeepSpeedFP16Config,
    "deepspeed.bf16": precision.DeepSpeedBF16Config,
}
names = {
    table: sorted({name for key, field in model.model_fields.items() for name in (key, field.alias) if name})
    for table, model in models.items()
}
print(json.dumps({"deepspeed": sorted(asked), **names}))
"""


@pytest.mark.smoke
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed (make training)")
def test_the_list_is_deepspeeds_own() -> None:
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    own = json.loads(done.stdout.splitlines()[-1])
    assert own == tomllib.loads(deepspeed.OPTIONS.read_text(encoding="utf-8"))


ADAM = {"type": "AdamW", "params": {"lr": 0.1, "torch_adam": True}}
ON_ONE = {"train_micro_batch_size_per_gpu": 1, "zero_force_ds_cpu_optimizer": False}


def adam(**params: object) -> dict[str, Any]:
    return {"optimizer": {"type": "AdamW", "params": {**ADAM["params"], **params}}}  # type: ignore[dict-item]


def warm(**params: object) -> dict[str, Any]:
    return {"optimizer": ADAM, "scheduler": {"type": "WarmupLR", "params": params}}


def zero(**keys: object) -> dict[str, Any]:
    return {"zero_optimization": keys}


# Table -> why the kit may refuse what DeepSpeed takes; "" where both must say the same.
JUDGED: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    (zero(stage=2), ""),
    (zero(stage=3), ""),
    (zero(stage="auto"), ""),
    (zero(stage=2, reduce_bucket_size="auto"), ""),
    (zero(stage=3, stage3_prefetch_bucket_size="auto", stage3_param_persistence_threshold="auto"), ""),
    (zero(stage=2, overlap_comm="auto", allgather_partitions="auto"), ""),
    (zero(stage=3, offload_param={"device": "auto"}), ""),
    (zero(stage=3, offload_param={"device": "cpu", "pin_memory": "auto"}), ""),
    ({"bf16": {"enabled": "auto"}}, ""),
    ({"fp16": {"enabled": "auto"}}, ""),
    ({"fp16": {"enabled": False, "loss_scale": "auto"}}, ""),
    ({"bf16": {"enabled": True}, **zero(stage=3)}, ""),
    ({"gradient_clipping": "auto"}, ""),
    ({"steps_per_print": "auto"}, ""),
    ({"wall_clock_breakdown": "auto"}, ""),
    ({"gradient_predivide_factor": "auto"}, ""),
    ({"communication_data_type": "auto"}, ""),
    ({"data_types": {"grad_accum_dtype": "auto"}}, ""),
    ({"flops_profiler": {"enabled": "auto"}}, ""),
    ({"prescale_gradients": "auto"}, "the text counts as true"),
    ({"dump_state": "auto"}, "the text counts as true"),
    (adam(), ""),
    (adam(lr="auto"), ""),
    (adam(weight_decay="auto"), ""),
    (adam(betas="auto"), ""),
    ({"optimizer": {"type": "auto", "params": {"lr": 0.1}}}, ""),
    (warm(warmup_min_lr=0, warmup_max_lr=0.1, warmup_num_steps=2), ""),
    (warm(warmup_min_lr=0, warmup_max_lr="auto", warmup_num_steps=2), ""),
    (warm(warmup_num_steps="auto"), ""),
    (zero(stage=4), ""),
    (zero(stage=2, reduce_bukcet_size=5), ""),
    (zero(stage=2, offload_param={"device": "cpu"}), "only stage 3 shards parameters: the key has no effect"),
    (zero(stage=0, offload_optimizer={"device": "cpu"}), "stage 0 shards no optimizer: the key has no effect"),
    ({"zero_optimisation": {"stage": 2}}, "an unknown table has no effect"),
    ({"gradient_cliping": 1.0}, "an unknown key has no effect"),
    ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ""),
    ({"train_batch_size": 3, "train_micro_batch_size_per_gpu": 2}, ""),
    ({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}, ""),
    ({"train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, ""),
    ({"train_batch_size": "auto"}, ""),
    ({"train_micro_batch_size_per_gpu": 0}, ""),
]


@pytest.mark.smoke
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed (make training)")
def test_the_kit_refuses_what_deepspeed_refuses(free_port: Any) -> None:
    """Each table is put to the kit and, completed where the kit takes it, to deepspeed.initialize and one step of training."""
    tables = [{**ON_ONE, **table} for table, _ in JUDGED]
    refused = [bool([*deepspeed.broken(table, 1)]) for table in tables]
    lines = [
        json.dumps(table if no else deepspeed.completed(table, 1)) for table, no in zip(tables, refused, strict=True)
    ]
    program = str(Path(__file__).with_name("deepspeed_judge.py"))
    env = {**os.environ, "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        [sys.executable, program], input="\n".join(lines), env=env, capture_output=True, text=True, check=True
    )
    said = [line.removeprefix("judged: ") for line in done.stdout.splitlines() if line.startswith("judged: ")]
    differ = [
        (table, no, verdict)
        for (table, why), no, verdict in zip(JUDGED, refused, said, strict=True)
        if no != (verdict != "null" or bool(why))
    ]
    assert differ == []
