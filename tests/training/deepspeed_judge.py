"""python deepspeed_judge.py <TABLES: DeepSpeed itself on each, a JSON object a line: null, or why it fails. On one rank and a CPU.

A configuration is judged by deepspeed.initialize and one training step of a tiny model: what passes both would train.
"""

import json
import os
import sys
import warnings

os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "DS_ACCELERATOR": "cpu"}
os.environ.setdefault("MASTER_PORT", "29561")
warnings.simplefilter("ignore")

import deepspeed  # noqa: E402 - it asks the environment when it is imported
import torch  # noqa: E402

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a kernel that only inference uses


def failure(config: dict[str, object]) -> str | None:
    """What DeepSpeed says against a configuration."""
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 8)
    given = {} if "optimizer" in config else {"optimizer": torch.optim.AdamW(net.parameters(), lr=0.1)}
    try:
        engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config, **given)
        for _ in range(engine.gradient_accumulation_steps()):
            inputs = torch.ones(2, 8, dtype=next(engine.module.parameters()).dtype)
            engine.backward(engine(inputs).sum())
            engine.step()
    except Exception as error:  # noqa: BLE001 - any of them would end the ranks
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    for line in sys.stdin:
        print("judged: " + json.dumps(failure(json.loads(line))), flush=True)
    torch.distributed.destroy_process_group()
