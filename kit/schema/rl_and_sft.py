"""`[rl]` and `[sft]`: one description of a run of several programs.

Shared keys are copied to the sub-tables (kit/frameworks/rl.py).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from kit.schema.schema_base import Model, Name, Text

_SUB_TABLE = "Options of the role with this name. They win over the shared keys."


class Wandb(Model):
    """Weights & Biases: one run for each role, or one for all roles if the programs support it."""

    project: Text | None = Field(default=None, description="The W&B project.")
    entity: Text | None = Field(default=None, description="The user or team that owns the project.")
    group: Text | None = Field(default=None, description="The group of the W&B runs.")
    name: Text | None = Field(
        default=None,
        description="Name of the W&B run. If each role has its own run, the role's name is added: 'digits' becomes "
        "'digits-trainer'.",
    )
    offline: bool | None = Field(default=None, description="true: log into the run folder, without a network.")


class Parallel(Model):
    """The parallel layout of the inference servers on their GPUs."""

    tp: int = Field(default=1, ge=1, description="Number of GPUs that share one copy of the model (tensor parallel).")
    dp: int | None = Field(
        default=None,
        ge=1,
        description="Number of copies of the model over all servers; default: one for every `tp` GPUs.",
    )
    replicas: int | None = Field(
        default=None,
        ge=1,
        description="Number of sets of inference nodes; must divide the number of these nodes. The copies of the model in "
        "a set share their experts (wide expert parallel). Default: each node is a set.",
    )


class Servers(Model):
    """Inference servers that do one half of the work: prefill reads the prompts, decode writes the completions."""

    nodes: int = Field(default=1, ge=1, description="Number of nodes with these servers.")
    replicas: int = Field(
        default=1,
        ge=1,
        description="Number of sets of these nodes; must divide the number of nodes. The servers of a set share their "
        "experts.",
    )
    options: dict[str, Any] = Field(
        default={}, description="Options of these servers. They win over those of [rl.inference]."
    )


class Sft(Model):
    """Supervised fine-tuning: the trainer, and with `eval` the servers and programs that evaluate its weights."""

    programs: Name = Field(
        default="reference", description="The programs of the roles: a set in the launcher's [programs]."
    )
    num_train_nodes: int = Field(default=1, ge=1, description="Number of nodes of the trainer.")
    num_infer_nodes: int = Field(
        default=1, ge=1, description="Number of nodes with inference servers, if `eval` is set."
    )
    num_train_gpus: int | None = Field(
        default=None,
        ge=1,
        description="Number of GPUs of the trainer. With this key or num_infer_gpus, trainer and servers share one node, "
        "and the default is 1.",
    )
    num_infer_gpus: int | None = Field(
        default=None,
        ge=1,
        description="Number of GPUs of the servers. With this key or num_train_gpus, trainer and servers share one node, "
        "and the default is 1.",
    )
    gpus_per_node: int | None = Field(
        default=None,
        ge=0,
        description="GPUs on each node. Default: as for resources.gpus_per_node; on one shared node, the GPUs of trainer "
        "and servers together.",
    )
    nodes_per_fsdp_group: int | None = Field(
        default=None,
        ge=1,
        description="Number of nodes over which one copy of the model is sharded; must divide num_train_nodes.",
    )
    model: Text | None = Field(
        default=None, description="The model to start from: a checkpoint, or a name that the programs know."
    )
    tokenizer: Text | None = Field(default=None, description="The tokenizer; default: the model's own, if it has one.")
    data: Text | None = Field(
        default=None,
        description="A .jsonl file with chats ([sft]) or problems ([rl]), by its path as the programs see it.",
    )
    chat_template: Text | None = Field(
        default=None, description="The chat template: chatml, llama3, bytes, or a file; default: the tokenizer's own."
    )
    validation: float | None = Field(
        default=None, gt=0, lt=1, description="Share of the data that is held out for validation."
    )
    skip_bad: bool | None = Field(
        default=None, description="true: skip data that cannot be read. Default: such data ends the program."
    )
    seq_len: int | None = Field(default=None, ge=1, description="Longest sequence, in tokens.")
    max_steps: int | None = Field(
        default=None,
        ge=1,
        description="Number of optimizer steps. In [rl], the orchestrator makes a batch for each of them.",
    )
    output_dir: Text | None = Field(
        default=None,
        description="Folder for the output of the programs; default: the run folder, or its outputs/ with prime-rl.",
    )
    log_level: Text | None = Field(
        default=None, description="Log level of the programs, for their own option of this name."
    )
    wandb: Wandb | None = None
    hub_offline: bool = Field(default=False, description="Keep the Hugging Face libraries off the network.")
    weight_broadcast: Literal["filesystem", "nccl"] | None = Field(
        default=None, description="The way in which weights reach the servers that evaluate; default: filesystem."
    )
    parallel: Parallel = Field(default_factory=Parallel)
    eval: dict[str, Any] = Field(default={}, description="Evaluation during the training: the programs' own options.")
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

    num_infer_nodes: int = Field(default=1, ge=1, description="Number of nodes with inference servers.")
    orchestrator_on: Literal["trainer", "inference"] = Field(
        default="trainer", description="The orchestrator and its environments run on the first node of this role."
    )
    prefill: Servers | None = Field(
        default=None,
        description="Servers that only prefill. `prefill` and `decode` together replace num_infer_nodes.",
    )
    decode: Servers | None = Field(
        default=None, description="Servers that only decode. `decode` is used together with `prefill`."
    )
    max_async_level: int | None = Field(
        default=None,
        ge=0,
        description="Maximum number of versions by which the servers' weights may be behind the trainer's.",
    )
    temperature: float | None = Field(default=None, gt=0, description="Temperature of the sampled completions.")
    reward: Text | None = Field(
        default=None,
        description="The reward function, as FILE.py:FUNCTION. It is called with prompt, completion and problem. It needs "
        "`data`.",
    )
    reward_timeout: float | None = Field(
        default=None, gt=0, description="Time limit, in seconds, for one call of the reward function; default: 120."
    )
    max_tokens: int | None = Field(default=None, ge=1, description="Longest completion, in tokens.")
    weight_broadcast: Literal["filesystem", "nccl"] = Field(
        default="filesystem", description="The way in which weights reach the servers. On CPUs, 'nccl' uses gloo."
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
