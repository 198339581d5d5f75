"""What all models share: frozen, no unknown keys, and the patterns of values that end up in scripts and options."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Model(BaseModel):
    """A frozen table. An unknown key is a fault, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("a NUL byte cannot stand in an argument or an environment variable; remove it")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate has no UTF-8 form; write the character itself") from None
    return value


# Text that reaches a process byte for byte: whatever execve(2) can carry.
Text = Annotated[str, AfterValidator(_no_nul)]

# An identifier of the kit: file name, run name, image name. Lower case, as OCI repository names are.
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$", examples=["digits-ddp"])]

# A value on an `#SBATCH` line. sbatch splits these lines at blanks and reads `#` as a comment, so neither can stand here,
# and a newline would become the next script line (performance-notes, "Faults").
SbatchWord = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:@/+=\[\]&|*()%-]*$")]

EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]

# sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds].
TimeLimit = Annotated[
    str,
    Field(
        pattern=r"^(\d+|\d+:\d{1,2}|\d+:\d{1,2}:\d{1,2}|\d+-\d{1,2}(:\d{1,2}){0,2})$",
        examples=["00:30:00", "2-00:00:00"],
    ),
]

# sbatch(1), --mem: a number with an optional unit; 0 means all of the node's memory.
Memory = Annotated[str, Field(pattern=r"^\d+[KMGT]?$", examples=["64G", "0"])]

# Where Pyxis's grammar has no escape (field-notes 1): `,` splits mounts, `:` splits fields, and the target stands inside a
# double-quoted shell string on the node.
_MOUNT_REFUSED = {
    ",": "Pyxis splits mounts at ','",
    ":": "Pyxis splits a mount's fields at ':'",
    "$": "the node's shell would expand it",
    "`": "the node's shell would run it",
    '"': "it would end the node's quoted string",
    "\\": "the node's shell would take it as an escape",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def mountable(path: str) -> str:
    """`path` itself when Pyxis, Enroot and bubblewrap can all carry it; ValueError with the reason otherwise."""
    for character, why in _MOUNT_REFUSED.items():
        if character in path:
            raise ValueError(
                f"{character!r} cannot stand in a mounted path: {why}, and there is no escape; rename or link the folder"
            )
    if _CONTROL.search(path):
        raise ValueError("a newline or control character cannot stand in a mounted path; rename or link the folder")
    return _no_nul(path)


def mount_target(path: str) -> str:
    """A mount's place in the container: absolute, without `..`, and `mountable`."""
    if not path.startswith("/"):
        raise ValueError("a target is an absolute path in the container, such as /data")
    if ".." in path.split("/"):
        raise ValueError("a target may not climb with '..'")
    if path.rstrip("/") == "":
        raise ValueError("the container's root cannot be mounted over; name a folder, such as /data")
    return mountable(path)


MountSource = Annotated[str, AfterValidator(mountable)]
MountTarget = Annotated[str, AfterValidator(mount_target)]
