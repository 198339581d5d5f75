"""The image of a job: a folder of containers/ or a reference with a digest, and how it reaches the nodes."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, Field

from kit.schema.schema_base import NAME, ImageStage, Model
from kit.schema.wrong_value_messages import Invalid, shown

# An image is a name of containers/, or a reference with a digest: a tag alone could change during a run.
_PINNED = re.compile(r"docker://[^\s@]+(@[^\s@]+)?@sha256:[0-9a-f]{64}")


def is_reference(image: str) -> bool:
    """Whether an image is a registry reference rather than a folder of containers/."""
    return image.startswith("docker://")


def image_of(value: str) -> str:
    """The same text; Invalid, with the command that makes an image of it, if it is neither of the two."""
    if NAME.holds(value) or _PINNED.fullmatch(value):
        return value
    name = re.sub(r"[^a-z0-9._-]+", "-", PurePosixPath(value.partition("@")[0]).name.lower().removesuffix(":latest"))
    name = name.removesuffix(".sqsh").strip("._-") or "my-image"
    if value.endswith((".sqsh", ".tar", ".tar.gz", ".squashfs")) or value.startswith(("/", "./", "../", "~")):
        problem = f"{shown(value)} is a file, and a job names an image of containers/, which is locked by digest"
        raise Invalid(problem, hint=f'kit import-image {shlex.quote(value)} --name {name}, then image = "{name}"')
    problem = f"{shown(value)} is not an image of containers/; a tag can point to another image tomorrow"
    source = value if "://" in value else f"docker://{_with_registry(value)}"
    raise Invalid(problem, hint=f'kit import-image {shlex.quote(source)} --name {name}, then image = "{name}"')


def _with_registry(reference: str) -> str:
    """A reference in Enroot's form: `nvcr.io/nvidia/pytorch:24.05` is `nvcr.io#nvidia/pytorch:24.05`."""
    host, slash, path = reference.partition("/")
    return f"{host}#{path}" if slash and ("." in host or ":" in host) else reference


class ImageChoice(Model):
    """The image, and the way in which it reaches the nodes."""

    name: Annotated[str, AfterValidator(image_of)] = Field(
        description="A folder of containers/, or a reference with its digest.", examples=["train-cpu"]
    )
    stage: ImageStage | None = Field(
        default=None,
        description="shared: every node starts the image from the store. node: every node first copies the image from the "
        "store to its own disk. chain: one node reads the store, and the nodes pass the image on to each other. Default: the "
        "cluster's container.stage.",
    )
    cap_gb: float = Field(
        default=50.0,
        gt=0,
        description="Maximum size, in GB, of all copied images on a node. To make room for another, the node removes the "
        "image that was not used for the longest time.",
    )
