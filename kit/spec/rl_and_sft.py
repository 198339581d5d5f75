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
    replicas: int | None = Field(
        default=None,
        ge=1,
        description="Sets of inference nodes, where the copies of a set share their experts (wide expert parallel); "
        "must divide the nodes. Default: each node is one.",
    )


class Servers(Model):
    """Inference servers that do one half of the work: prefill reads the prompts, decode writes the completions."""

    nodes: int = Field(default=1, ge=1, description="Nodes of these servers.")
    replicas: int = Field(
        default=1, ge=1, description="Sets of these nodes that share their experts; must divide them."
    )
    options: dict[str, Any] = Field(default={}, description="Options of these servers, over those of [rl.inference].")


class Sft(Model):
    """Supervised fine-tuning: the trainer, and with `eval` the servers and programs that evaluate its weights."""

    programs: Name = Field(default="reference", description="Whose programs: a set of the launcher's [programs].")
    num_train_nodes: int = Field(default=1, ge=1, description="Nodes of the trainer.")
    num_infer_nodes: int = Field(default=1, ge=1, description="Nodes with inference servers, where eval asks for them.")
    num_train_gpus: int | None = Field(
        default=None,
        ge=1,
        description="GPUs of the trainer, where it shares one node with the servers; with num_infer_gpus.",
    )
    num_infer_gpus: int | None = Field(
        default=None, ge=1, description="GPUs of the servers on that node; with num_train_gpus."
    )
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
    weight_broadcast: Literal["filesystem", "nccl"] | None = Field(
        default=None, description="How weights reach the servers that evaluate; default: filesystem."
    )
    parallel: Parallel = Field(default_factory=Parallel)
    eval: dict[str, Any] = Field(default={}, description="What to evaluate while it trains: the programs' own options.")
    trainer: dict[str, Any] = Field(default={}, description=_SUB_TABLE)
    evals: dict[str, Any] = Field(default={}, description=_SUB_TABLE)
    inference: dict[str, Any] = Field(default={}, description=_SUB_TABLE)

    @property
    def one_node(self) -> bool:
        """Whether trainer and servers share one node, each with GPUs of its own."""
        return self.num_train_gpus is not None or self.num_infer_gpus is not None

    def servers(self) -> dict[str, Servers]:
        """The roles that have inference servers."""
        asked = Servers(nodes=self.num_infer_nodes, replicas=self.parallel.replicas or self.num_infer_nodes)
        return {"inference": asked} if self.eval else {}

    def shared(self) -> dict[str, Any]:
        """Shared values for the programs' own options: dotted name -> value, of all keys that are set."""
        # An option gets the first value that is passed to it. So the tokenizer comes before the model, which is its default.
        named = ("tokenizer", "model", "data", "chat_template", "validation", "skip_bad", "seq_len", "max_steps")
        other = ("output_dir", "log_level", "weight_broadcast")
        found: dict[str, Any] = {name: getattr(self, name) for name in (*named, *other)}
        found["eval"] = self.eval or None
        found |= {f"wandb.{k}": v for k, v in self.wandb.model_dump().items()} if self.wandb else {}
        return {name: value for name, value in found.items() if value is not None}

    def tables(self) -> dict[str, dict[str, Any]]:
        """The sub-tables by role."""
        return {"trainer": self.trainer, "evals": self.evals, "inference": self.inference}


class Rl(Sft):
    """Reinforcement learning: a trainer, an orchestrator, inference servers."""

    num_infer_nodes: int = Field(default=1, ge=1, description="Nodes with inference servers.")
    orchestrator_on: Literal["trainer", "inference"] = Field(
        default="trainer", description="On whose first node the orchestrator and its environments run."
    )
    prefill: Servers | None = Field(
        default=None, description="Servers that prefill, apart from those that decode: instead of num_infer_nodes."
    )
    decode: Servers | None = Field(default=None, description="Servers that decode; with prefill.")
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
    orchestrator: dict[str, Any] = Field(default={}, description=_SUB_TABLE)

    def servers(self) -> dict[str, Servers]:
        """See Sft."""
        if self.prefill or self.decode:
            return {"prefill": self.prefill or Servers(), "decode": self.decode or Servers()}
        return {
            "inference": Servers(nodes=self.num_infer_nodes, replicas=self.parallel.replicas or self.num_infer_nodes)
        }

    def shared(self) -> dict[str, Any]:
        """The same, with the keys that only several programs share."""
        named = ("max_async_level", "temperature", "reward", "reward_timeout", "max_tokens")
        values = {name: getattr(self, name) for name in named}
        return {**super().shared(), **{name: value for name, value in values.items() if value is not None}}

    def tables(self) -> dict[str, dict[str, Any]]:
        """The sub-tables by role."""
        own = {name: one.options for name, one in (("prefill", self.prefill), ("decode", self.decode)) if one}
        own |= {"evals": self.evals} if self.evals else {}
        return {"trainer": self.trainer, "orchestrator": self.orchestrator, "inference": self.inference, **own}
