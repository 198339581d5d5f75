"""`kit convert-checkpoint` and `kit checkpoint-size`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from kit.frameworks.sizes import Bytes, Shape

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def convert_checkpoint(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC", help="A checkpoint, the folder that they are saved in, or a run folder.", show_default=False
        ),
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The .pt file or folder to make.", show_default=False)],
    *,
    to: Annotated[
        Literal["pytorch", "huggingface"], typer.Option("--to", help="One .pt file, or a folder for transformers.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace DST, once the new one is whole.")] = False,
    image: Annotated[
        str, typer.Option("--image", help="The image to convert in: it needs torch, and safetensors for huggingface.")
    ] = "frameworks-cpu",
    container: Annotated[
        bool, typer.Option("--container/--no-container", help="In the image, or with --python.")
    ] = True,
    python: Annotated[str, typer.Option("--python", help="Without a container: a python that has torch.")] = "python3",
    heads: Annotated[
        int | None, typer.Option("--heads", min=1, help="Attention heads.", show_default="the checkpoint's")
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", min=1, help="Longest sequence.", show_default="the checkpoint's")
    ] = None,
    norm_eps: Annotated[
        float | None, typer.Option("--norm-eps", help="Of RMSNorm.", show_default="the framework's")
    ] = None,
    rope_base: Annotated[
        float | None, typer.Option("--rope-base", help="Of rotary positions.", show_default="the framework's")
    ] = None,
    shard_mb: Annotated[
        int, typer.Option("--shard-size", min=1, metavar="MB", help="Of a .safetensors file, at most.")
    ] = 1000,
    store: Annotated[
        Path | None,
        typer.Option("--store", help="The image store.", show_default="KIT_STORE, else the user's data folder"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Turn a sharded checkpoint (torch's, megatron's) into one .pt file or a Hugging Face folder."""
    from kit import resources
    from kit.images import store as image_store
    from kit.images.progress import Terminal
    from kit.runs import convert

    given = {"--heads": heads, "--context": context, "--norm-eps": norm_eps, "--rope-base": rope_base}
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    order = convert.Order(
        source=source,
        target=target,
        to=to,
        image=image,
        python=None if container else python,
        store=store.absolute() if store else image_store.default(),
        project=resources.project(),
        force=force,
        options=(*options, "--shard-size", str(shard_mb * 10**6)),
    )
    made = convert.convert(order, Terminal())
    if as_json:
        typer.echo(json.dumps(made, indent=2))
    else:
        typer.echo(f"{made['target']}  {made['tensors']} tensors, {made['bytes'] / 1e6:.1f} MB, from {made['source']}")


def checkpoint_size(
    *,
    layers: Annotated[int | None, typer.Option("--layers", min=1)] = None,
    dim: Annotated[int | None, typer.Option("--dim", min=1, help="Width of the model.")] = None,
    heads: Annotated[int | None, typer.Option("--heads", min=1)] = None,
    kv_heads: Annotated[int | None, typer.Option("--kv-heads", min=1, show_default="as many as --heads")] = None,
    head_dim: Annotated[int | None, typer.Option("--head-dim", min=1, show_default="dim / heads")] = None,
    ffn: Annotated[
        int | None, typer.Option("--ffn", min=1, help="Width of the feed-forward part.", show_default="4 x dim")
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option("--vocabulary", min=1, help="Tokens; 256 in the reference programs.")
    ] = None,
    tied: Annotated[
        bool | None, typer.Option("--tied/--untied", help="Embedding and output share weights.", show_default="untied")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A Hugging Face config.json that says the above.")
    ] = None,
    precision: Annotated[Literal["fp32", "bf16"], typer.Option("--precision", help="Of the stored weights.")] = "fp32",
    optimizer: Annotated[Literal["adam", "sgd", "none"], typer.Option("--optimizer")] = "adam",
    distributed_optimizer: Annotated[bool, typer.Option("--distributed-optimizer", help="Megatron's.")] = False,
    tp: Annotated[int, typer.Option("--tp", min=1, help="Tensor parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option("--pp", min=1, help="Pipeline stages.")] = 1,
    dp: Annotated[int, typer.Option("--dp", min=1, help="Data parallel ranks.")] = 1,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Checkpoints kept: [checkpoint] keep.")] = 3,
    compare: Annotated[Path | None, typer.Option("--compare", help="A checkpoint on disk to compare with.")] = None,
    as_json: Json = False,
) -> None:
    """Predict what a checkpoint of a model of the Llama family weighs."""
    from kit.frameworks import sizes
    from kit.runs import checkpoint_size as sizing

    shape = sizing.shape(
        {
            "layers": layers,
            "dim": dim,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "feed_forward": ffn,
            "vocabulary": vocabulary,
            "tied": tied,
        },
        config,
    )
    layout = sizes.Layout(tp=tp, pp=pp, dp=dp, distributed_optimizer=distributed_optimizer)
    predicted = sizes.of(shape.parameters, precision, optimizer, distributed_optimizer=distributed_optimizer)
    facts = _facts(shape, predicted, keep)
    if tp * pp * dp > 1:
        facts["largest_rank"] = sizes.largest_share(shape, precision, optimizer, layout)
    if compare is not None:
        found = sizing.on_disk(compare)
        expected = predicted.weights if found.weights_only else predicted.total
        facts["compare"] = {
            "path": str(found.path),
            "files": found.files,
            "on_disk": found.size,
            "predicted": expected,
            "difference": found.size - expected,
        }
    typer.echo(json.dumps(facts, indent=2)) if as_json else _print(facts)


def _facts(shape: Shape, predicted: Bytes, keep: int) -> dict[str, Any]:
    return {
        "parameters": shape.parameters,
        "weights": predicted.weights,
        "master": predicted.master,
        "moments": predicted.moments,
        "total": predicted.total,
        # One more than is kept: the oldest goes when the newest is whole.
        "disk": predicted.total * (keep + 1),
    }


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
