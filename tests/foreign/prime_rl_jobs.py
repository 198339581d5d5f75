"""prime-rl's own configurations as jobs of the kit: where each of their keys goes (docs/guides/rl.md has the table)."""

from __future__ import annotations

import copy
from typing import Any

Table = dict[str, Any]


def job_of(given: Table, kind: str) -> Table:
    """The job that starts what a configuration for `rl`, `sft` or `inference` asks for. Raises InexpressibleError."""
    left = copy.deepcopy(given)
    for router in (left.get("router"), left.get("inference", {}).get("router")):
        if router and router.get("type") == "llm-d":
            raise InexpressibleError("the llm-d router: no role starts its Envoy and endpoint picker")
    if kind not in {"rl", "sft"}:
        raise InexpressibleError(
            "inference alone" if kind == "inference" else "evaluation alone, of a model that is served elsewhere"
        )
    # What the kit does itself: the queue, the run folder, resuming.
    for key in ("slurm", "resume", "clean", "run", "output_dir"):
        left.pop(key, None)
    job: Table = {"name": "theirs", "launcher": kind, "image": "prime-rl", "checkpoint": {}}
    if env := left.pop("env_vars", None):
        job["env"] = env
    table = _rl(left, job) if kind == "rl" else _sft(left, job)
    if left:
        raise AssertionError(f"nowhere to go: {left}")
    return {**job, kind: {"programs": "prime-rl", **table}}


class InexpressibleError(Exception):
    """No job of the kit starts it."""


def _rl(left: Table, job: Table) -> Table:
    table: Table = {role: left.pop(role, {}) for role in ("trainer", "orchestrator", "inference")}
    trainer, orchestrator, inference = (table[role] for role in ("trainer", "orchestrator", "inference"))
    table |= _moved(left, ("seq_len", "max_steps"))
    table |= _shared(left, [trainer, orchestrator], job)
    if model := left.pop("model", None):
        table["model"] = model.pop("name")
        for role in (trainer, orchestrator):
            role.setdefault("model", {}).update(copy.deepcopy(model))
    broadcast = left.pop("weight_broadcast", {})
    table["weight_broadcast"] = broadcast.pop("type", "filesystem" if "lora" in trainer.get("model", {}) else "nccl")
    broadcast.pop("port", None)  # the kit finds one that is free
    if broadcast:
        trainer["weight_broadcast"], orchestrator["weight_broadcast"] = dict(broadcast), dict(broadcast)
    vllm = inference.get("vllm", {})
    parallel = {"tp": vllm.pop("tensor_parallel_size", 1)}
    apart = inference.pop("deployment", {})
    layout = left.pop("deployment", {})
    if layout.get("type") == "multi_node":
        replicas = layout.get("num_infer_replicas", 1)
        table |= {"num_train_nodes": layout["num_train_nodes"], "gpus_per_node": layout.get("gpus_per_node", 8)}
        if apart:
            table |= _apart(apart, replicas, job)
        else:
            table["num_infer_nodes"] = layout["num_infer_nodes"] * replicas
            parallel["replicas"] = replicas
    else:
        table["num_train_gpus"] = layout.get("num_train_gpus", 1)
        table["num_infer_gpus"] = layout.get("num_infer_gpus", 1)
    vllm.pop("data_parallel_size", None)  # follows from the GPUs and tp
    return {**table, "parallel": parallel}


def _apart(given: Table, replicas: int, job: Table) -> Table:
    found = {}
    for role in ("prefill", "decode"):
        sets = given.get(f"num_{role}_replicas", 1) * replicas
        found[role] = {"nodes": given[f"{role}_nodes_per_replica"] * sets, "replicas": sets}
        found[role]["options"] = {"vllm": given.get(f"{role}_vllm_overrides", {})}
        if env := given.get(f"{role}_env_vars"):
            job.setdefault("roles", {})[role] = {"env": env}
    return found


def _sft(left: Table, job: Table) -> Table:
    trainer: Table = {}
    table = {**_moved(left, ("max_steps", "eval", "inference")), "trainer": trainer}
    table |= _shared(left, [trainer], job)
    table["model"] = left["model"].pop("name")
    if "seq_len" in left.get("data", {}):
        table["seq_len"] = left["data"].pop("seq_len")
    layout = left.pop("deployment", {})
    if table.get("eval"):
        table |= {"num_train_gpus": layout["num_train_gpus"], "num_infer_gpus": layout["num_infer_gpus"]}
        table["weight_broadcast"] = left.pop("weight_broadcast", {}).get("type", "nccl")
    else:
        table["gpus_per_node"] = layout.get("num_train_gpus", 1)
    trainer |= left
    left.clear()
    return table


def _moved(left: Table, keys: tuple[str, ...]) -> Table:
    return {key: left.pop(key) for key in keys if key in left}


def _shared(left: Table, roles: list[Table], job: Table) -> Table:
    """What flows into several programs. roles: first the trainer, which has no monitor of Prime's."""
    found: Table = {}
    if "level" in (log := left.pop("log", {})):
        found["log_level"] = log["level"]
    monitors = left.pop("monitors", {})
    if "wandb" in monitors:
        found["wandb"] = monitors.pop("wandb")
    if monitors:
        roles[-1].setdefault("monitors", {}).update(monitors)
    if "ckpt" in left:
        for role in roles:
            role.setdefault("ckpt", {})
        for theirs, ours in (("interval", "every"), ("keep_last", "keep")):
            if theirs in left["ckpt"]:
                job["checkpoint"][ours] = left["ckpt"].pop(theirs)
        roles[0]["ckpt"].update(left.pop("ckpt"))
    return found
