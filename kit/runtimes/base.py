"""Protocol of a container runtime: it combines an srun line and a command into one argv."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kit.schema.mount import Mount
from kit.schema.resources_slurm_container import ContainerOptions
from kit.schema.run_paths import CONTAINER_RUN


@dataclass(frozen=True, kw_only=True)
class Container:
    """The container of a step.

    image: absolute path of a .sqsh, or a `docker://` reference with its digest. mounts: sources are absolute paths. bin: host
    folder of the programs that nodes run. home: the user's home folder on the host.
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

    def protected(self) -> tuple[Mount, ...]:
        """Mounts after which the container can only read what the node itself runs of the run folder, its bin/ and lib/.

        Otherwise a program in the container could change what the next start runs outside. They follow the run folder's own mount.
        """
        run = self.bin.parent
        if all((mount.source, mount.target) != (str(run), CONTAINER_RUN) for mount in self.mounts):
            return ()
        names = ("bin", "lib")
        return tuple(Mount(source=str(run / name), target=f"{CONTAINER_RUN}/{name}", flags=("ro",)) for name in names)


class Runtime(Protocol):
    """Each module of kit/runtimes/ holds one runtime. Cluster and job files refer to it by the module's name.

    containerized: False for the node itself. pulls: whether it can start an image from a registry; if False, only image files.
    by_srun: whether options of srun start the container; if False, a program on the node does, which needs no step of its own.
    """

    containerized: bool
    pulls: bool
    by_srun: bool

    def wrap(self, srun: Sequence[str], command: Sequence[str], container: Container) -> list[str]:
        """The argv that runs `command` in `container` in every task of `srun` (an argv that starts with 'srun')."""
        ...
