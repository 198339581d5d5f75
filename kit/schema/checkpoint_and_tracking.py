"""Tables that the kit passes to the training program: checkpoints, traces, trackers, and the frameworks' own tables."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from kit.schema.schema_base import ContainerPath, Model, Text
from kit.schema.wrong_value_messages import Form, Invalid, shown

Steps = Annotated[
    str,
    Form(
        pattern=r"[0-9]+(-[0-9]+)?",
        what="a step or a span of steps",
        how="a number, or two with - between them",
        example="10-12",
        nearest=lambda text: "-".join(text.replace(":", "-").replace("..", "-").split()),
    ),
]


class Checkpoint(Model):
    """Every program gets these values as KIT_CHECKPOINT_*. The launchers' own training programs read them."""

    every: int | None = Field(
        default=None,
        ge=0,
        description="Steps between checkpoints; with DiLoCo, outer steps. 0: at the end of each epoch, or of the run.",
    )
    keep: int | None = Field(default=None, ge=1, description="Number of checkpoints to keep. Older ones are removed.")
    async_: bool | None = Field(default=None, alias="async", description="Write checkpoints in the background.")
    memory_every: int | None = Field(
        default=None,
        ge=1,
        description="Steps between checkpoints in the nodes' memory, for restarts in the same allocation. Default: no such "
        "checkpoints.",
    )
    dir: ContainerPath | None = Field(
        default=None,
        description="Folder of the checkpoints, as the ranks see it; default: checkpoints/ in the run folder.",
    )

    def env(self) -> dict[str, str]:
        """The environment variables with these values."""
        flags = {None: None, True: "1", False: "0"}
        asked = {
            "KIT_CHECKPOINT_EVERY": self.every,
            "KIT_CHECKPOINT_KEEP": self.keep,
            "KIT_CHECKPOINT_ASYNC": flags[self.async_],
            "KIT_CHECKPOINT_MEMORY_EVERY": self.memory_every,
            "KIT_CHECKPOINT_DIR": self.dir,
        }
        return {name: str(value) for name, value in asked.items() if value is not None}


class Profile(Model):
    """A torch profiler trace of some steps on some ranks, in the run folder."""

    steps: Steps | None = Field(default=None, description="Steps to trace, such as '10-12'. Default: no trace.")
    ranks: tuple[int, ...] = Field(default=(0,), description="Ranks that write a trace.")

    def env(self) -> dict[str, str]:
        """The environment variables with these values."""
        if self.steps is None:
            return {}
        return {"KIT_PROFILE_STEPS": self.steps, "KIT_PROFILE_RANKS": ",".join(map(str, self.ranks))}


class WandB(Model):
    """A run at Weights & Biases. Its API key is a secret: name WANDB_API_KEY under `[secrets]`."""

    project: Text = Field(description="The W&B project.")
    entity: Text | None = Field(default=None, description="The user or team that owns the project.")
    mode: Literal["online", "offline"] = Field(
        default="online", description="offline: write files into the run folder, for a later `wandb sync`."
    )


class Metrics(Model):
    """Trackers in addition to metrics.jsonl. TensorBoard and Weights & Biases show all starts of a run as one run."""

    tensorboard: bool = Field(default=False, description="Write event files into tensorboard/ of the run folder.")
    wandb: WandB | None = Field(
        default=None, description="A run at Weights & Biases, with the same id as the kit's run."
    )

    def env(self, *, run_id: str, run_dir: str) -> dict[str, str]:
        """The variables that the kit's programs, and a program's own wandb.init(), read. run_dir: as the ranks see it."""
        env = {"KIT_TENSORBOARD": "1"} if self.tensorboard else {}
        if self.wandb is None:
            return env
        entity = {"WANDB_ENTITY": self.wandb.entity} if self.wandb.entity else {}
        return {
            **env,
            "KIT_WANDB": "1",
            "WANDB_PROJECT": self.wandb.project,
            **entity,
            "WANDB_MODE": self.wandb.mode,
            "WANDB_DIR": run_dir,
            "WANDB_RUN_ID": run_id,
            "WANDB_RESUME": "allow",
        }

    @property
    def packages(self) -> tuple[str, ...]:
        """The Python packages that the kit's own programs need for these trackers."""
        return (*(["tensorboard"] if self.tensorboard else []), *(["wandb"] if self.wandb else []))


class MegatronArguments(Model):
    """Megatron-LM's options. The kit checks those listed here against each other. For all others it checks only the name and the
    type of the value.

    A key becomes an option of pretrain_gpt.py: `num_layers = 24` is `--num-layers 24`, true gives the bare option, a list gives its
    values.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    num_layers: int = Field(ge=1, description="Number of layers.")
    hidden_size: int = Field(ge=1, description="Width of the model.")
    num_attention_heads: int = Field(ge=1, description="Number of attention heads.")
    ffn_hidden_size: int | None = Field(default=None, ge=1, description="Feed-forward width; default: 4 x hidden_size.")
    num_query_groups: int | None = Field(
        default=None, ge=1, description="Number of key-value heads in grouped-query attention."
    )
    seq_length: int = Field(default=1024, ge=1, description="Tokens in a sequence.")
    max_position_embeddings: int | None = Field(
        default=None, ge=1, description="Number of positions; default: seq_length."
    )
    tensor_model_parallel_size: int = Field(default=1, ge=1, description="Number of tensor parallel ranks.")
    pipeline_model_parallel_size: int = Field(default=1, ge=1, description="Number of pipeline stages.")
    context_parallel_size: int = Field(default=1, ge=1, description="Number of context parallel ranks.")
    expert_model_parallel_size: int = Field(default=1, ge=1, description="Number of expert parallel ranks.")
    num_experts: int | None = Field(default=None, ge=1, description="Number of experts in a layer.")
    sequence_parallel: bool = Field(default=False, description="Sequence parallelism; needs tensor parallel ranks.")
    micro_batch_size: int = Field(default=1, ge=1, description="Sequences in one forward pass.")
    global_batch_size: int = Field(default=8, ge=1, description="Sequences in one optimizer step, over all ranks.")

    @model_validator(mode="after")
    def _plain_values(self) -> MegatronArguments:
        for key, value in (self.model_extra or {}).items():
            items = value if isinstance(value, list) else [value]
            if not all(isinstance(item, str | int | float | bool) for item in items):
                problem = (
                    f"{shown(value)} cannot be an option: it takes text, a number, true or false, or a list of them"
                )
                raise Invalid(problem, key=(key,), hint=f'{key} = "value"')
        return self

    def options(self) -> dict[str, Any]:
        """All options that are given or have a default, the checked ones first."""
        named = {k: v for k, v in self.model_dump(exclude_none=True).items() if k in type(self).model_fields}
        return {**named, **(self.model_extra or {})}
