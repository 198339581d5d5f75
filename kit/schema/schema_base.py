"""Base of all models: frozen, no unknown keys; patterns of values that end up in scripts and options."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

from kit.schema.wrong_value_messages import Form, Invalid

RuntimeName = Literal["auto", "pyxis", "enroot", "bubblewrap", "bare"]
ImageStage = Literal["shared", "node", "chain"]


class Model(BaseModel):
    """A frozen table. An unknown key is a fault and is never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise Invalid("no argument or environment variable can hold a NUL byte", write=value.replace("\0", ""))
    try:
        value.encode()
    except UnicodeEncodeError:
        whole = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        raise Invalid("half of a surrogate pair has no UTF-8 form: write the character itself", write=whole) from None
    return value


# Text that a process gets unchanged: everything that execve(2) can pass.
Text = Annotated[str, AfterValidator(_no_nul)]


def _as_name(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("._-")[:64]


# An identifier of the kit: file name, run name, image name. Lower case, as in OCI repository names.
NAME = Form(
    pattern=r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?",
    what="a name",
    how="lower-case letters and digits, with . _ - between them, 64 at most",
    example="digits-ddp",
    nearest=_as_name,
)
Name = Annotated[str, NAME]

# A value on an `#SBATCH` line. sbatch splits these lines at blanks and reads `#` as a comment, so a value cannot contain them. A
# newline would start another line of the script (docs/internals/learnt.md#slurm).
SbatchWord = Annotated[
    str,
    Form(
        pattern=r"[A-Za-z0-9][A-Za-z0-9_.,:@/+=\[\]&|*()%-]*",
        what="a value for sbatch",
        how="one word without blanks, quotes or #, since sbatch splits its header lines at blanks",
        example="gpu",
        nearest=lambda text: text.replace(" ", "_"),
    ),
]

EnvName = Annotated[
    str,
    Form(
        pattern=r"[A-Za-z_][A-Za-z0-9_]*",
        what="the name of an environment variable",
        how="letters, digits and _, and no digit first",
        example="MY_VARIABLE",
        nearest=lambda text: re.sub(r"\W", "_", text.lstrip("$"), flags=re.ASCII),
    ),
]

# The name of a variable, or a pattern: `NCCL_*` for all that begin so. A name such as `BASH_FUNC_module%%` is that of a function
# that bash exports.
EnvPattern = Annotated[
    str,
    Form(
        pattern=r"[A-Za-z_][A-Za-z0-9_]*\*?|BASH_FUNC_[A-Za-z0-9_]+%%",
        what="the name of an environment variable, or a pattern of names",
        how="letters, digits and _, no digit first, and perhaps * at the end",
        example="NCCL_*",
        nearest=lambda text: (
            re.sub(r"\W", "_", text.lstrip("$").rstrip("*"), flags=re.ASCII) + "*" * text.endswith("*")
        ),
    ),
]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def _as_time(text: str) -> str | None:
    """`1d`, `36h`, `90 min` in Slurm's form."""
    parts = re.findall(r"([0-9]+)\s*([smhdw])[a-z]*", text.lower())
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    if not seconds:
        return None
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


# sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes[:seconds].
TimeLimit = Annotated[
    str,
    Form(
        pattern=r"([0-9]+|[0-9]+:[0-9]{1,2}|[0-9]+:[0-9]{1,2}:[0-9]{1,2}|[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2})",
        what="a time limit",
        how="Slurm's are minutes, hours:minutes:seconds, or days-hours:minutes:seconds",
        example="2-00:00:00",
        nearest=_as_time,
    ),
]


def _as_memory(text: str) -> str | None:
    """`64gb`, `64 GiB` in Slurm's form."""
    found = re.fullmatch(r"\s*([0-9]+)\s*([kmgt])i?b?\s*", text.lower())
    return found[1] + found[2].upper() if found else None


# sbatch(1), --mem: a number with an optional unit; 0 means all of the node's memory.
Memory = Annotated[
    str,
    Form(
        pattern=r"[0-9]+[KMGT]?",
        what="an amount of memory",
        how="write a whole number and K, M, G or T (M where none is given); 0 means all memory of the node",
        example="64G",
        nearest=_as_memory,
    ),
]

# A file name relative to a folder, without blanks that a script would have to quote, and not an option.
FileName = Annotated[
    str,
    Form(
        pattern=r"[A-Za-z0-9_][A-Za-z0-9_./-]*",
        what="a relative path",
        how="letters, digits and _ . / -, with a letter, a digit or _ first",
        example="train.py",
    ),
]

ContainerPath = Annotated[
    str,
    Form(
        pattern=r"/[^\x00-\x1f]*",
        what="an absolute path",
        how="it starts with / and names a folder as the ranks see it",
        example="/workspace",
        nearest=lambda text: f"/{text}",
    ),
]

# Characters that Pyxis's grammar cannot escape (docs/internals/learnt.md#pyxis): `,` splits mounts, `:` splits fields. The target
# is inside a double-quoted shell string on the node.
_MOUNT_REFUSED = {
    ",": "Pyxis splits mounts at ','",
    ":": "Pyxis splits a mount's fields at ':'",
    "`": "the node's shell would run it",
    '"': "it would end the node's quoted string",
    "\\": "the node's shell would take it as an escape",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def mountable(path: str) -> str:
    """Return `path` if Pyxis, Enroot and bubblewrap can all handle it; Invalid with the reason otherwise."""
    if "$" in path:
        written = re.sub(r"\$\{?(HOME|USER)\}?", lambda found: f"{{{found[1].lower()}}}", path)
        raise Invalid(
            "a mounted path cannot hold '$': no variable is expanded in it; write the folder's own name",
            write=re.sub(r"^\$\{?\w+\}?|[$]", "/scratch", written),
        )
    for character, why in _MOUNT_REFUSED.items():
        if character in path:
            raise Invalid(
                f"a mounted path cannot hold {character!r}: {why}, and there is no escape; rename the folder, or link to it",
                write=re.sub(r"[,:$`\"\\]", "_", path),
            )
    if _CONTROL.search(path):
        raise Invalid(
            "a mounted path cannot hold a newline or a control character; rename the folder, or link to it",
            write=_CONTROL.sub("_", path),
        )
    return _no_nul(path)


def mount_target(path: str) -> str:
    """A mount's path in the container: absolute, without `..`, and `mountable`."""
    if not path.startswith("/"):
        raise Invalid("a target is an absolute path in the container", write=f"/{path}")
    if ".." in path.split("/"):
        raise Invalid("a target is written without '..'", write="/data")
    if path.rstrip("/") == "":
        raise Invalid("nothing can be mounted over the container's root", write="/data")
    return mountable(path)


MountSource = Annotated[str, AfterValidator(mountable)]
MountTarget = Annotated[str, AfterValidator(mount_target)]


def interfaces(env: dict[str, str]) -> dict[str, str]:
    """An environment with network interfaces that Gloo can find; Invalid otherwise."""
    named = env.get("GLOO_SOCKET_IFNAME", "")
    if named.startswith(("^", "=")):
        problem = f"Gloo takes names of interfaces, and cannot read {named!r}: only NCCL reads ^ and ="
        raise Invalid(problem, key=("GLOO_SOCKET_IFNAME",), write=named.lstrip("^=") or "eth0")
    return env
