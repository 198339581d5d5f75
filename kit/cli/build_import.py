"""kit build-image, kit import-image: an image, its lock, and its file in the store."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from kit.cli import completion_candidates, image_outcome
from kit.cli.image_options import OfCluster, Store, store_of
from kit.cli.json_options import Json

if TYPE_CHECKING:
    from kit.images.build.repository_image import RepositoryOptions

Locked = Annotated[
    bool, typer.Option("--locked", help="Fail and print the reason if the result is not the image that the lock names.")
]
Relock = Annotated[
    bool,
    typer.Option(
        "--relock",
        help="Write a new lock even if the same inputs gave other bytes, or with the packages and base image of today.",
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Build from scratch: fetch the base and the packages again, and run every step of the Dockerfile again.",
    ),
]


NameOrFolder = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|FOLDER",
        help="Name of the image, which is a folder in containers/; or a folder with a Dockerfile of its own, as in "
        "kit build-image . (write ./NAME for a folder whose name could be an image's).",
        show_default=False,
        autocompletion=completion_candidates.images,
    ),
]
OwnName = Annotated[
    str, typer.Option("--name", help="Name of a folder's image in containers/.", show_default="the folder's name")
]
Dockerfile = Annotated[
    Path | None, typer.Option("--file", "-f", help="The folder's Dockerfile.", show_default="FOLDER/Dockerfile")
]
Context = Annotated[
    Path | None, typer.Option("--context", help="The folder that COPY copies from.", show_default="FOLDER")
]
Stage = Annotated[str | None, typer.Option("--target", help="The stage to build.", show_default="the last one")]
BuildArgs = Annotated[
    list[str] | None, typer.Option("--build-arg", metavar="NAME=VALUE", help="A build argument; repeatable.")
]
Network = Annotated[
    str | None, typer.Option(help="Network of a folder's RUN lines: none, default or host.", show_default="default")
]
Platform = Annotated[
    str,
    typer.Option("--platform", metavar="linux/ARCH", help="Platform of a folder's image.", show_default="the engine's"),
]


def build_image(
    name: NameOrFolder = None,
    *,
    own_name: OwnName = "",
    file: Dockerfile = None,
    context: Context = None,
    target: Stage = None,
    build_arg: BuildArgs = None,
    network: Network = None,
    platform: Platform = "",
    store: Store = None,
    cluster: OfCluster = None,
    locked: Locked = False,
    relock: Relock = False,
    no_cache: Fresh = False,
    as_json: Json = False,
) -> None:
    """Build an image, put it into the image store as a .sqsh file, and write its lock."""
    from kit import data_folders
    from kit.images.build import build
    from kit.images.build.repository_image import RepositoryOptions, write_image_toml
    from kit.images.progress import Terminal

    _must_be_platform(platform)
    project = data_folders.project()
    wanted = RepositoryOptions(
        name=own_name,
        context=context,
        file=file,
        target=target,
        network=_network(network),
        platform=platform or None,
        args=_arguments(build_arg or []),
    )
    if name is None or name in {".", ".."} or "/" in name:
        name = write_image_toml(_in_folder(wanted, name), project)
    elif wanted != RepositoryOptions():
        _refuse_for_name(name)
    order = build.BuildOrder(
        name=name,
        project=project,
        store=store_of(store, cluster),
        locked=locked,
        fresh=no_cache,
        relock=relock,
    )
    image_outcome.done(build.build(order, Terminal()), store, cluster, as_json=as_json)


def _in_folder(wanted: RepositoryOptions, folder: str | None) -> RepositoryOptions:
    """The options with the folder as the context; or, beside --context, with the folder's Dockerfile."""
    from kit.errors import UsageError

    if folder is None and not (wanted.file or wanted.context):
        raise UsageError(
            "no image to build", hint="kit build-image NAME, or kit build-image . for a folder's own Dockerfile"
        )
    file = wanted.file or (Path(folder) / "Dockerfile" if folder and wanted.context else None)
    return replace(wanted, context=wanted.context or Path(folder or ""), file=file)


def _refuse_for_name(name: str) -> NoReturn:
    from kit.errors import UsageError

    raise UsageError(
        f"{name} is an image of containers/: --name, --file, --context, --target, --build-arg, --network and --platform are for "
        "a folder",
        hint=f"write them into [build] of its image.toml; or kit build-image ./{name}",
    )


def _arguments(given: list[str]) -> dict[str, str]:
    """Values of --build-arg by name. As in Docker, a name without a value takes that of the environment."""
    from kit.errors import UsageError

    arguments = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(f"--build-arg {one}: not a build argument", hint="--build-arg NAME=VALUE")
        if not equals and name not in os.environ:
            raise UsageError(f"--build-arg {name}: {name} is not set here", hint=f"--build-arg {name}=VALUE")
        arguments[name] = value if equals else os.environ[name]
    return arguments


def _network(given: str | None) -> str | None:
    from kit.errors import UsageError

    if given not in {None, "none", "default", "host"}:
        raise UsageError(f"--network {given}: not a network", hint="--network none, --network default, --network host")
    return given


def import_image(
    source: Annotated[
        str,
        typer.Argument(
            help="docker://[USER@]REGISTRY#IMAGE[:TAG][@sha256:...], dockerd://IMAGE, podman://IMAGE, an OCI layout or "
            "archive, the tar file of a docker save (PATH:TAG if it contains several images), a root filesystem (folder or "
            "tar file), or a .sqsh file.",
            show_default=False,
        ),
    ],
    *,
    name: Annotated[str, typer.Option(help="Name of the image in containers/.", show_default="the source's name")] = "",
    platform: Annotated[
        str,
        typer.Option(
            metavar="linux/ARCH",
            help="The platform of the image, if the source has images for several platforms.",
            show_default="this machine's",
        ),
    ] = "",
    store: Store = None,
    cluster: OfCluster = None,
    locked: Locked = False,
    relock: Relock = False,
    as_json: Json = False,
) -> None:
    """Import an existing image, put it into the image store as a .sqsh file, and write its lock."""
    from kit import data_folders
    from kit.images import importing
    from kit.images.progress import Terminal

    _must_be_platform(platform)
    order = importing.ImportOrder(
        uri=source,
        name=name,
        project=data_folders.project(),
        store=store_of(store, cluster),
        locked=locked,
        relock=relock,
        platform=platform,
    )
    image_outcome.done(importing.run(order, Terminal()), store, cluster, as_json=as_json)


def _must_be_platform(platform: str) -> None:
    from kit.errors import UsageError

    if platform and not re.fullmatch(r"linux/[a-z0-9]+(/v\d+)?", platform):
        raise UsageError(f"--platform {platform}: not a platform", hint="linux/amd64, linux/arm64")
