"""`[rl]` and `[sft]`: one description of a run of several programs.

Shared keys are copied to the sub-tables (kit/frameworks/rl.py).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from kit.spec.schema_base import Model, Name, Text

_SUB_TABLE = "Options of this program; they win over the shared ones."


class Wandb(Model):
    """Weights & Biases: one run for each role, or one for all roles if the programs support it."""

    project: Text | None = Field(default=None, description="The project there.")
    entity: Text | None = Field(default=None, description="The user or team that owns the project.")
    group: Text | None = Field(default=None, description="The group of the runs.")
    name: Text | None = Field(
        default=None,
        description="Where each role has a run of its own, it adds its name: 'digits' is 'digits-trainer'.",
    )
    offline: bool | None = Field(default=None, description="Log into the run folder, without a network.")


class Parallel(Model):
    """How the inference servers use their GPUs."""

    tp: int = Field(default=1, ge=1, description="GPUs that share a copy of the model (tensor parallel).")
    dp: int | None = Field(
        default=None, ge=1, description="Copies of the model over all servers; default: as many as the GPUs hold."
    )


class Sft(Model):
    """Supervised fine-tuning: the trainer alone."""

    programs: Name = Field(default="reference", description="Whose programs: a set of the launcher's [programs].")
    num_train_nodes: int = Field(default=1, ge=1, description="Nodes of the trainer.")
    gpus_per_node: int | None = Field(
        default=None, ge=0, description="GPUs used on each node; default: all that the cluster's nodes have."
    )
    nodes_per_fsdp_group: int | None = Field(
        default=None,
        ge=1,
        description="Nodes that share one copy of the model in shards; must divide num_train_nodes.",
    )
    model: Text | None = Field(
        default=None, description="What to start from: a checkpoint, or a name that the programs know."
    )
    tokenizer: Text | None = Field(default=None, description="Default: the model's, where it has one.")
    data: Text | None = Field(
        default=None, description="Chats to learn from, or problems to be rewarded for: .jsonl, as the programs see it."
    )
    chat_template: Text | None = Field(
        default=None, description="chatml, llama3, bytes, or a file; default: the tokenizer's own."
    )
    validation: float | None = Field(default=None, gt=0, lt=1, description="Share of the data that is held out.")
    skip_bad: bool | None = Field(default=None, description="Leave out data that cannot be read; default: it ends.")
    seq_len: int | None = Field(default=None, ge=1, description="Longest sequence, in tokens.")
    max_steps: int | None = Field(default=None, ge=1, description="Optimizer steps, or batches.")
    output_dir: Text | None = Field(default=None, description="Where the programs write; default: the run folder.")
    log_level: Text | None = Field(
        default=None, description="How much the programs log: their own option of this name."
    )
    wandb: Wandb | None = None
    hub_offline: bool = Field(default=False, description="Keep the Hugging Face libraries off the network.")
    trainer: dict[str, Any] = Field(default={}, description=_SUB_TABLE)

    def shared(self) -> dict[str, Any]:
        """Shared values for the programs' own options: dotted name -> value, of all keys that are set."""
        # An option gets the first value that is passed to it. So the tokenizer comes before the model, which is its default.
        named = ("tokenizer", "model", "data", "chat_template", "validation", "skip_bad", "seq_len", "max_steps")
        found: dict[str, Any] = {name: getattr(self, name) for name in (*named, "output_dir", "log_level")}
        found |= {f"wandb.{k}": v for k, v in self.wandb.model_dump().items()} if self.wandb else {}
        return {name: value for name, value in found.items() if value is not None}

    def tables(self) -> dict[str, dict[str, Any]]:
        """The sub-tables by role."""
        return {"trainer": self.trainer}


class Rl(Sft):
    """Reinforcement learning: a trainer, an orchestrator, inference servers."""

    num_infer_nodes: int = Field(default=1, ge=1, description="Nodes with an inference server each.")
    max_async_level: int | None = Field(
        default=None, ge=0, description="Versions that the sampling policy may be behind the trainer's."
    )
    temperature: float | None = Field(default=None, gt=0, description="Of the sampled completions.")
    reward: Text | None = Field(
        default=None, description="FILE.py:FUNCTION, called with prompt, completion and problem; with data."
    )
    reward_timeout: float | None = Field(
        default=None, gt=0, description="Seconds for one call of the reward function; default: 120."
    )
    max_tokens: int | None = Field(default=None, ge=1, description="Longest completion.")
    weight_broadcast: Literal["filesystem", "nccl"] = Field(
        default="filesystem", description="How weights reach the servers; nccl is gloo on CPUs."
    )
    parallel: Parallel = Field(default_factory=Parallel)
    orchestrator: dict[str, Any] = Field(default={}, description=_SUB_TABLE)
    inference: dict[str, Any] = Field(default={}, description=_SUB_TABLE)

    def shared(self) -> dict[str, Any]:
        """The same, with the keys that only several programs share."""
        named = ("max_async_level", "temperature", "weight_broadcast", "reward", "reward_timeout", "max_tokens")
        values = {name: getattr(self, name) for name in named}
        return {**super().shared(), **{name: value for name, value in values.items() if value is not None}}

    def tables(self) -> dict[str, dict[str, Any]]:
        """The sub-tables by role."""
        return {"trainer": self.trainer, "orchestrator": self.orchestrator, "inference": self.inference}
