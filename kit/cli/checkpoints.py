"""`kit convert-checkpoint` and `kit checkpoint-size`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kit.cli.json_options import Json
from kit.cli.model_options import with_shape
from kit.cli.print_json import print_json

if TYPE_CHECKING:
    from kit.model_size import ModelShape

Source = Annotated[
    Path,
    typer.Argument(metavar="SRC", help="A checkpoint, a folder of checkpoints, or a run folder.", show_default=False),
]
Target = Annotated[Path, typer.Argument(metavar="DST", help="The .pt file or the folder to write.", show_default=False)]
To = Annotated[
    Literal["pytorch", "huggingface"],
    typer.Option("--to", help="pytorch: one .pt file. huggingface: a folder for transformers."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing DST, once the new one is complete.")]
Image = Annotated[
    str,
    typer.Option(
        "--image", help="The image in which the conversion runs. It needs torch, and safetensors for --to huggingface."
    ),
]
InContainer = Annotated[
    bool,
    typer.Option(
        "--container/--no-container", help="Run in the image, or without a container with the Python of --python."
    ),
]
Python = Annotated[str, typer.Option("--python", help="With --no-container: a Python that has torch.")]
Store = Annotated[
    Path | None,
    typer.Option("--store", help="Folder of the image store.", show_default="the cluster's store"),
]
ShardSize = Annotated[
    int, typer.Option("--shard-size", min=1, metavar="MB", help="Maximum size of one .safetensors file, in MB.")
]
# Facts that a checkpoint may not contain.
SavedHeads = Annotated[
    int | None, typer.Option("--heads", min=1, help="Number of attention heads.", show_default="the checkpoint's value")
]
Context = Annotated[
    int | None,
    typer.Option(
        "--context", min=1, help="Length of the longest sequence, in tokens.", show_default="the checkpoint's value"
    ),
]
NormEps = Annotated[
    float | None, typer.Option("--norm-eps", help="Epsilon of RMSNorm.", show_default="the framework's value")
]
RopeBase = Annotated[
    float | None,
    typer.Option(
        "--rope-base", help="Base of the rotary position embedding (RoPE).", show_default="the framework's value"
    ),
]

# Options for training and keeping checkpoints.
Precision = Annotated[Literal["fp32", "bf16"], typer.Option("--precision", help="Precision of the stored weights.")]
Optimizer = Annotated[
    Literal["adam", "sgd", "none"],
    typer.Option("--optimizer", help="Optimizer whose state is saved with the weights. none: weights alone."),
]
DistributedOptimizer = Annotated[
    bool, typer.Option("--distributed-optimizer", help="The training uses Megatron's distributed optimizer.")
]
Tp = Annotated[int, typer.Option("--tp", min=1, help="Number of tensor-parallel ranks.")]
Pp = Annotated[int, typer.Option("--pp", min=1, help="Number of pipeline stages.")]
Dp = Annotated[int, typer.Option("--dp", min=1, help="Number of data-parallel ranks.")]
Keep = Annotated[
    int, typer.Option("--keep", min=1, help="Number of checkpoints that a run keeps: checkpoint.keep of the job.")
]
Compare = Annotated[Path | None, typer.Option("--compare", help="A checkpoint on disk to compare with.")]


def convert_checkpoint(
    source: Source,
    target: Target,
    *,
    to: To,
    force: Force = False,
    image: Image = "frameworks-cpu",
    container: InContainer = True,
    python: Python = "python3",
    heads: SavedHeads = None,
    context: Context = None,
    norm_eps: NormEps = None,
    rope_base: RopeBase = None,
    shard_mb: ShardSize = 1000,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Convert a sharded checkpoint of PyTorch or Megatron to one PyTorch file or to a Hugging Face folder."""
    from kit import data_folders
    from kit.checkpoints import convert
    from kit.cli.image_options import store_of
    from kit.images.progress import Terminal

    given = {"--heads": heads, "--context": context, "--norm-eps": norm_eps, "--rope-base": rope_base}
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    order = convert.Conversion(
        source=source,
        target=target,
        to=to,
        image=image,
        python=None if container else python,
        store=store_of(store),
        project=data_folders.project(),
        force=force,
        options=(*options, "--shard-size", str(shard_mb * 10**6)),
    )
    made = convert.convert(order, Terminal())
    if as_json:
        print_json("convert-checkpoint", made)
    else:
        typer.echo(f"{made['target']}  {made['tensors']} tensors, {made['bytes'] / 1e6:.1f} MB, from {made['source']}")


@with_shape
def checkpoint_size(
    *,
    shape: ModelShape,
    precision: Precision = "fp32",
    optimizer: Optimizer = "adam",
    distributed_optimizer: DistributedOptimizer = False,
    tp: Tp = 1,
    pp: Pp = 1,
    dp: Dp = 1,
    keep: Keep = 3,
    compare: Compare = None,
    as_json: Json = False,
) -> None:
    """Predict the size of a model's checkpoint."""
    from kit.checkpoints import size
    from kit.model_size import Parallelism

    parallel = Parallelism(tp=tp, pp=pp, dp=dp, distributed_optimizer=distributed_optimizer)
    facts = size.facts(shape, parallel, precision, optimizer, keep=keep, compare=compare)
    print_json("checkpoint-size", facts) if as_json else _print(facts)


def _print(facts: dict[str, Any]) -> None:
    typer.echo(f"parameters     {facts['parameters']:>20,}")
    for name, what in (
        ("weights", "weights"),
        ("master", "float32 copy"),
        ("moments", "optimizer"),
        ("total", "checkpoint"),
        ("largest_rank", "largest rank"),
        ("disk", "while training"),
    ):
        if name in facts:
            typer.echo(f"{what:<15}{facts[name]:>20,} bytes  {facts[name] / 1e9:10.3f} GB")
    if "compare" in facts:
        found = facts["compare"]
        percent = 100 * found["difference"] / found["predicted"]
        typer.echo(
            f"{'on disk':<15}{found['on_disk']:>20,} bytes  {found['on_disk'] / 1e9:10.3f} GB  {percent:+.2f} %  {found['path']}"
        )
