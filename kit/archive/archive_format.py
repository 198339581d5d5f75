"""The format of an exported run: a tar whose first member, kit-run.json, lists all others with size and sha256.

    kit-run.json            ArchiveIndex
    run/…                   files of the run folder
    snapshot/listing        the tree of the workspace, in the form of kit/snapshots/tree_listing.py
    snapshot/objects/…      the content of its files, by sha256
    image/<sha256>.sqsh     the images, if they were asked for

It has only regular files: links of the workspace are lines of its listing.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from kit.schema.image import Sha256
from kit.schema.schema_base import Model

INDEX, RUN, LISTING, OBJECTS, IMAGE = "kit-run.json", "run/", "snapshot/listing", "snapshot/objects/", "image/"

# A listing of 100,000 files has about 15 MB, and their digests in an index have the same size.
MOST_INDEX, MOST_MEMBERS = 64 << 20, 300_000
_WORD = r"[A-Za-z0-9_@+,=~-][A-Za-z0-9._@+,=~-]*"
_PATHS = re.compile(
    rf"{RUN}(?:{_WORD}/)*{_WORD}|{LISTING}|{OBJECTS}[0-9a-f]{{64}}|{IMAGE}[0-9a-f]{{64}}\.sqsh", re.ASCII
)
_RUN_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}", re.ASCII)


def is_path(name: str) -> bool:
    """Whether a member may have this name: a path that stays inside the folder, without hidden parts."""
    return len(name) <= 1024 and _PATHS.fullmatch(name) is not None


def _path(name: str) -> str:
    if not is_path(name):
        raise ValueError("not the name of a file of an exported run")
    return name


def _run_id(name: str) -> str:
    if not _RUN_ID.fullmatch(name):
        raise ValueError("not the id of a run")
    return name


class ArchiveMember(Model):
    """One file. size in bytes."""

    size: Annotated[int, Field(ge=0)]
    sha256: Sha256
    program: bool = Field(default=False, description="Whether it has its x bit.")


class ArchiveIndex(Model):
    """The contents of an archive."""

    form: Literal[1] = 1
    kit: str
    run_id: Annotated[str, AfterValidator(_run_id)]
    cluster: str
    exported_at: datetime
    members: Annotated[dict[Annotated[str, AfterValidator(_path)], ArchiveMember], Field(max_length=MOST_MEMBERS)]
