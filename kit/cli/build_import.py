"""kit build-image, kit import-image: an image, its lock, and its file in the store."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from kit.cli import image_outcome
from kit.cli.image_options import Name, OfCluster, Store, store_of
from kit.cli.json_options import Json

Locked = Annotated[
    bool, typer.Option("--locked", help="Fail and print the reason if the result is not the image that the lock names.")
]
Relock = Annotated[bool, typer.Option("--relock", help="Write a new lock even if the same inputs gave other bytes.")]
Fresh = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Build from scratch: fetch the base and the packages again, and run every step of the Dockerfile again.",
    ),
]


def build_image(
    name: Name,
    *,
    store: Store = None,
    cluster: OfCluster = None,
    locked: Locked = False,
    relock: Relock = False,
    no_cache: Fresh = False,
    as_json: Json = False,
) -> None:
    """Build an image, put it into the image store as a .sqsh file, and write its lock."""
    from kit import data_folders
    from kit.images import build
    from kit.images.progress import Terminal

    order = build.BuildOrder(
        name=name,
        project=data_folders.project(),
        store=store_of(store, cluster),
        locked=locked,
        fresh=no_cache,
        relock=relock,
    )
    image_outcome.done(build.build(order, Terminal()), store, cluster, as_json=as_json)


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
