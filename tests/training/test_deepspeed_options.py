"""The kit's list of DeepSpeed's keys is what DeepSpeed itself looks for."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tomllib

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
