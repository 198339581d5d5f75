"""Reads the model's shape from the options of the kit's own GPT programs, without starting them.

Defaults are read from the source of the programs. There is no result if an option takes the shape from elsewhere: a model of
Hugging Face, a --config file, data with an unknown vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from kit.data_folders import packaged
from kit.errors import UsageError
from kit.frameworks import launcher_program_options
from kit.frameworks.launcher_program_options import Default
from kit.model_size import ModelShape
from kit.planning.plan import Plan
from kit.slurm import embedded

Kind = Literal["ddp", "fsdp"]
# Launcher -> its GPT program.
_PROGRAMS: Mapping[str, tuple[str, Kind]] = {"ddp": ("train_gpt.py", "ddp"), "fsdp": ("train.py", "fsdp")}
_NUMBERS = ("layers", "heads", "dim", "context", "steps", "batch-size", "accumulate", "replicate", "eval-every")
# Options that take the model or its tokens from a place that is not read here. --compile changes the memory of the program.
_UNKNOWN = frozenset({"config", "init-from", "data", "tokenizer", "vocabulary", "attend", "compile"})
_FLAGS = frozenset({"recompute", "cpu-offload", "keep-gathered", "checkpoint-async"})
# By default the programs train on text with bytes as tokens.
_BYTES = 256


@dataclass(frozen=True, kw_only=True)
class GptTraining:
    """A training: the model, and one rank's part of each step.

    tokens: in a micro-batch of one rank. accumulate: micro-batches in a step. copies: of a sharded model. every: steps between
    checkpoints; 0: only at the end.
    """

    kind: Kind
    shape: ModelShape
    ranks: int
    tokens: int
    accumulate: int
    steps: int
    every: int
    eval_every: int
    precision: str
    copies: int = 1
    recompute: bool = False
    offload: bool = False
    on_gpu: bool = False

    @property
    def shards(self) -> int:
        """The number of ranks that share one copy of the model."""
        return self.ranks // self.copies if self.kind == "fsdp" else 1

    @property
    def flops(self) -> float:
        """Floating-point operations of a rank in a step: 6 N + 12 L D T per token (PaLM, arXiv 2204.02311, appendix B)."""
        weights = self.shape.parameters - self.shape.embedding
        each = 6 * weights + 12 * self.shape.layers * self.shape.dim * self.shape.context
        return float(each * self.tokens * self.accumulate)


def of_plan(plan: Plan) -> GptTraining | None:
    """The training of a plan; None for any other program, or if the options do not give the model's shape."""
    job = plan.job
    if plan.roles and not plan.roles[0].plain:
        return None
    script = job.script or plan.decisions.resolved.launcher.script
    if not job.is_launchers:
        return None
    every = job.checkpoint.every or 0
    return read_training(
        job.launcher,
        str(script),
        (*job.args, *plan.decisions.extra.args),
        ranks=plan.allocation.world_size,
        every=every,
        gpus=has_gpus(plan),
    )


def has_gpus(made: Plan) -> bool:
    """Whether the ranks find GPUs. Those of an embedded cluster may exist only as names; then they compute on CPUs."""
    if made.allocation.gpus_per_node == 0:
        return False
    running = embedded.find(made.cluster) if made.decisions.resolved.cluster.embedded else None
    return running is None or not running.has_placeholders


def read_training(
    launcher: str, script: str, args: Sequence[str], *, ranks: int, every: int, gpus: bool
) -> GptTraining | None:
    """The training of a launcher's program with these options.

    every: checkpoint.every of the job. gpus: whether its nodes have GPUs.
    """
    name, kind = _PROGRAMS.get(launcher, ("", "ddp"))
    options = _options(args)
    if PurePath(script).name != name or options is None or _UNKNOWN & options.keys():
        return None
    default = _defaults(launcher)
    try:
        # Only the program of FSDP has --replicate.
        number = {key: int(options.get(key, default.get(f"--{key}", 1))) for key in _NUMBERS}
        every = int(options.get("checkpoint-every", every))
        shape = ModelShape(
            layers=number["layers"],
            dim=number["dim"],
            heads=number["heads"],
            vocab=_BYTES,
            context=number["context"],
        )
    except (ValueError, UsageError):
        return None  # the program itself reports this error better
    share = ranks * number["accumulate"]
    if share <= 0 or number["batch-size"] % share or ranks % number["replicate"]:
        return None
    return GptTraining(
        kind=kind,
        shape=shape,
        ranks=ranks,
        tokens=number["batch-size"] // share * number["context"],
        accumulate=number["accumulate"],
        steps=number["steps"],
        every=every,
        eval_every=number["eval-every"],
        precision=options.get("precision", str(default["--precision"])),
        copies=number["replicate"],
        recompute="recompute" in options,
        offload="cpu-offload" in options,
        on_gpu=gpus and options.get("device", "auto") != "cpu",
    )


def read_default_keep() -> int:
    """The number of checkpoints that the kit's programs keep by default; it is the same in all."""
    return int(_defaults("ddp")["--checkpoint-keep"])


def _defaults(launcher: str) -> Mapping[str, Default]:
    return launcher_program_options.read_defaults(packaged() / "launchers" / launcher / _PROGRAMS[launcher][0])


def _options(args: Sequence[str]) -> dict[str, str] | None:
    """Option -> its value; the last one counts. None if there are words that are not options."""
    options: dict[str, Any] = {}
    words = list(args)
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            return None
        if not equals and name not in _FLAGS and words and not words[0].startswith("--"):
            value = words.pop(0)
        options[name] = value
    return options
