"""Mount: a path of the host that a container sees. `mounts/<name>.toml` maps logical names to paths on one cluster."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, RootModel, model_validator

from kit.schema.schema_base import Model, MountSource, MountTarget, Name
from kit.schema.wrong_value_messages import Invalid

# mount(8) flags that Enroot's fstab and Pyxis's grammar both accept (docs/internals/learnt.md#pyxis).
Flag = Literal[
    "ro", "rw", "nosuid", "nodev", "noexec", "private", "rprivate", "slave", "rslave", "shared", "rshared"
]  # fmt: skip

# Folders without which no program of an image starts. What is inside them may be mounted over.
OF_THE_IMAGE = frozenset({"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev"})


class Mount(Model):
    """One bind mount, or a tmpfs.

    source may contain {project} {job} {run} {user} {home} {data}. A relative source starts at the job file's folder.
    """

    source: MountSource = Field(description="Folder or file on the node, or 'tmpfs'.", examples=["/data"])
    target: MountTarget = Field(description="Absolute path in the container.", examples=["/data"])
    flags: tuple[Flag, ...] = Field(default=(), description="Flags of mount(8). Without 'ro', the mount is read-write.")

    @model_validator(mode="after")
    def _possible(self) -> Mount:
        if self.target.rstrip("/") in OF_THE_IMAGE:
            problem = f"a container whose {self.target} is another folder cannot start: the image's programs are there"
            raise Invalid(problem, key=("target",), write=f"/mnt{self.target}")
        if {"ro", "rw"} <= set(self.flags):
            kept = tuple(flag for flag in self.flags if flag != "rw")
            raise Invalid("'ro' and 'rw' contradict each other", key=("flags",), write=kept)
        return self

    @property
    def read_only(self) -> bool:
        """Whether the container can only read it."""
        return "ro" in self.flags


def _not_docker_text(value: Any) -> Any:
    """Refuse `SOURCE:TARGET[:FLAGS]`, as `docker run --volume` takes it, with the table that says the same."""
    if not isinstance(value, str) or "/" not in value:
        return value
    source, _, rest = value.partition(":")
    target, _, words = rest.partition(":")
    table: dict[str, Any] = {"source": source, "target": target or source}
    if flags := [word for word in words.split(",") if word in get_args(Flag)]:
        table["flags"] = flags
    raise Invalid(f"{value!r} is not a name of the mount set; a path needs a table with source and target", write=table)


# In a job: a name from the cluster's mount set, or a mount of the job's own.
JobMount = Annotated[Name | Mount, BeforeValidator(_not_docker_text)]


class MountSet(RootModel[dict[Name, Mount]]):
    """Logical mount name -> its mount on this cluster."""
