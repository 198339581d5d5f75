"""`kit prepare-data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kit.cli.json_options import Json
from kit.cli.print_json import print_json

Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="SRC…",
        help="Files, folders, or a dataset that save_to_disk wrote. The last path is DST, the folder to write.",
        show_default=False,
    ),
]
Tokenizer = Annotated[
    str,
    typer.Option("--tokenizer", metavar="WHICH", help="The tokenizer: bytes, a .json or .tiktoken file, or a folder."),
]
Separator = Annotated[
    str | None,
    typer.Option(
        "--separator",
        metavar="TOKEN",
        help="The token that follows each document. With none, no token follows.",
        show_default="the tokenizer's end of text",
    ),
]
TextKey = Annotated[
    str, typer.Option("--text-key", metavar="KEY", help="The key or column of the text in .jsonl and .parquet files.")
]
Validation = Annotated[
    float,
    typer.Option(
        "--validation", min=0, max=0.99, metavar="SHARE", help="Share of the documents that is held out for validation."
    ),
]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad", help="Leave out and count documents that cannot be read, instead of stopping at the first."
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes", min=1, metavar="N", help="Maximum number of processes.", show_default="one for each core"
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing DST, once the new one is complete.")]
Image = Annotated[
    str,
    typer.Option(
        "--image",
        help="The image in which the work runs. It needs numpy, and the packages for the tokenizer and the files.",
    ),
]
InContainer = Annotated[
    bool,
    typer.Option(
        "--container/--no-container", help="Run in the image, or without a container with the Python of --python."
    ),
]
Python = Annotated[str, typer.Option("--python", help="With --no-container: a Python that has the packages.")]
Store = Annotated[
    Path | None, typer.Option("--store", help="Folder of the image store.", show_default="the cluster's store")
]


def prepare_data(
    sources: Sources,
    *,
    tokenizer: Tokenizer = "bytes",
    separator: Separator = None,
    text_key: TextKey = "text",
    validation: Validation = 0.05,
    skip_bad: SkipBad = False,
    processes: Processes = None,
    force: Force = False,
    image: Image = "train-cpu",
    container: InContainer = True,
    python: Python = "python3",
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Tokenize text once for all runs that train on it: kit prepare-data SRC… DST."""
    from kit import data_folders, prepare_data
    from kit.cli.image_options import store_of
    from kit.errors import UsageError
    from kit.images.progress import Terminal

    *read, target = sources
    if not read:
        raise UsageError(
            f"two paths are needed, the text and the folder for the prepared data: only {target} was given",
            hint="kit prepare-data SRC… DST",
        )
    options = ["--text-key", text_key, "--validation", str(validation)]
    options += ["--separator", separator] if separator else []
    options += ["--processes", str(processes)] if processes else []
    options += [word for word, given in (("--skip-bad", skip_bad), ("--force", force)) if given]
    order = prepare_data.Preparation(
        sources=tuple(read),
        target=target,
        tokenizer=tokenizer,
        image=image,
        python=None if container else python,
        store=store_of(store),
        project=data_folders.project(),
        options=tuple(options),
    )
    summary = prepare_data.prepare_sources(order, Terminal())
    if as_json:
        print_json("prepare-data", summary)
        return
    documents, tokens = summary["documents"], summary["tokens"]
    left = "".join(f", {documents[name]:,} {name}" for name in ("empty", "bad", "mended") if documents[name])
    typer.echo(
        f"{target}  {documents['train']:,} documents with {tokens['train']:,} tokens to train on, "
        f"{documents['validation']:,} with {tokens['validation']:,} held out{left}  {summary['digest']}"
    )
