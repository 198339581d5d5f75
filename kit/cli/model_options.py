"""The options that describe a model, shared by all commands that count one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer


def _options(
    *,
    layers: Annotated[int | None, typer.Option(min=1, help="Number of transformer layers.")] = None,
    dim: Annotated[int | None, typer.Option(min=1, help="Width of the residual stream.")] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Number of attention heads.")] = None,
    vocab: Annotated[int | None, typer.Option(min=1, help="Number of tokens in the vocabulary.")] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Number of tokens in a sequence.", show_default="2048")
    ] = None,
    ffn: Annotated[
        int | None, typer.Option(min=1, help="Width of the feed-forward block.", show_default="4 x dim")
    ] = None,
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="Number of key-value heads.", show_default="as many as heads")
    ] = None,
    head_dim: Annotated[
        int | None, typer.Option(min=1, help="Width of an attention head.", show_default="dim / heads")
    ] = None,
    gated: Annotated[
        bool | None,
        typer.Option(
            "--gated/--no-gated",
            help="The feed-forward block has three matrices (SwiGLU, as in the Llama family), or two.",
            show_default="gated",
        ),
    ] = None,
    tied: Annotated[
        bool | None,
        typer.Option(
            "--tied/--untied",
            help="The input and output embeddings share their weights, or not.",
            show_default="untied",
        ),
    ] = None,
    biases: Annotated[
        bool | None,
        typer.Option(
            "--biases/--no-biases",
            help="Linear layers and norms have biases (as in GPT-2 and GPT-NeoX), or not.",
            show_default="no biases",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A Hugging Face config.json from which to read the values above.", show_default=False),
    ] = None,
) -> None:
    """Holds the options: only its signature is used."""


def with_shape(command: Callable[..., None]) -> Callable[..., None]:
    """A command with these options before its own. It gets them as one argument, `shape`."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        from kit.model_size import shape_of

        own = {name: value for name, value in given.items() if name not in described}
        said = {name: given[name] for name in described if name != "config"}
        command(shape=shape_of(said, given["config"]), **own)

    described = inspect.signature(_options).parameters
    own_options = [
        parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "shape"
    ]
    # ModelShape is imported only for types, so that nothing heavy is loaded before a command runs.
    hints = get_type_hints(command, localns={"ModelShape": object}, include_extras=True)
    hints |= get_type_hints(_options, include_extras=True)
    together = [
        parameter.replace(annotation=hints[parameter.name]) for parameter in (*described.values(), *own_options)
    ]
    run.__dict__["__signature__"] = inspect.Signature(together)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in together}
    return run
