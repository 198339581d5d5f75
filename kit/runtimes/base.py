"""Protocol of a container runtime: it turns an srun line and a command into one argv."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kit.spec.job import ContainerOptions
from kit.spec.mount import Mount


@dataclass(frozen=True, kw_only=True)
class Container:
    """In what a step runs.

    image: absolute path of a .sqsh, or a `docker://` reference with its digest. mounts: sources are absolute.
    bin: host folder of the programs that nodes run. home: the user's home folder on the host.
    """

    image: str
    mounts: tuple[Mount, ...]
    workdir: str
    options: ContainerOptions
    bin: Path
    home: str

    @property
    def is_file(self) -> bool:
        """Whether the image is a squashfs file rather than a reference."""
        return self.image.startswith("/")


class Runtime(Protocol):
    """One module of kit/runtimes/ holds one; its name there is its name in cluster and job files.

    containerized: False for the node itself. pulls: it can start an image from a registry; else image files only.
    """

    containerized: bool
    pulls: bool

    def wrap(self, srun: Sequence[str], command: Sequence[str], container: Container) -> list[str]:
        """The argv that runs `command` in `container` on every task of `srun` (an argv that starts with 'srun')."""
        ...
