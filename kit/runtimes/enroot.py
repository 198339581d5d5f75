"""Enroot without Pyxis: every task starts the .sqsh itself."""

from __future__ import annotations

from collections.abc import Sequence

from kit.runtimes.base import Container
from kit.schema.mount import Mount
from kit.schema.run_paths import CONTAINER_RUN


def mount_option(mount: Mount) -> str:
    """The value of `enroot start --mount`: fstab fields joined by ':'. Enroot creates a target that the image lacks."""
    flags = ["x-create=dir"] if mount.source == "tmpfs" else ["x-create=auto", "rbind"]
    return f"{mount.source}:{mount.target}:{','.join([*flags, *mount.flags])}"


class Enroot:
    """Runs `enroot start`, which mounts the .sqsh with squashfuse.

    The image's own rc script is skipped unless `entrypoint` is set.
    """

    containerized = True
    pulls = False
    by_srun = False

    def wrap(self, srun: Sequence[str], command: Sequence[str], container: Container) -> list[str]:
        """The srun line, then enroot.sh with the container's options, then the command."""
        choice = container.options
        start = [f"{container.bin}/enroot.sh"]
        start += ["--root"] if choice.remap_root else []
        start += ["--rw"] if choice.writable else []
        start += [] if choice.entrypoint else [f"--rc={container.bin}/enroot-rc.sh"]
        start += [f"--mount={mount_option(m)}" for m in (*container.mounts, *container.protected())]
        start += [f"--mount={container.home}:{container.home}:x-create=dir,rbind"] if choice.mount_home else []
        start += [f"--env={name}" for name in choice.env]
        return [*srun, *start, container.image, f"{CONTAINER_RUN}/bin/unignore.sh", *command]


runtime = Enroot()
