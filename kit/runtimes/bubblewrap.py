"""bubblewrap: mounts the .sqsh in the task's own mount namespace without unpacking it. The mount ends with the task.

It is for clusters without Pyxis, and for a single machine. templates/parts/bubblewrap/bin/bubblewrap.sh does the work on the node.
"""

from __future__ import annotations

from collections.abc import Sequence

from kit.runtimes.base import Container
from kit.schema.run_paths import CONTAINER_RUN


class Bubblewrap:
    """Passes the container to bubblewrap.sh as options, `--mount` with three words each, then the command."""

    containerized = True
    pulls = False
    by_srun = False

    def wrap(self, srun: Sequence[str], command: Sequence[str], container: Container) -> list[str]:
        """The srun line, then bubblewrap.sh with the container's options, then the command."""
        choice = container.options
        words = [f"--image={container.image}", f"--workdir={container.workdir}"]
        words += ["--writable"] if choice.writable else []
        words += ["--remap-root"] if choice.remap_root else []
        words += [f"--capability={name}" for name in choice.capabilities]
        words += [f"--keep-env={name}" for name in choice.env]
        for mount in container.mounts:
            words += ["--mount", mount.source, mount.target, "ro" if mount.read_only else "rw"]
        if choice.mount_home:
            words += ["--mount", container.home, container.home, "rw"]
        return [*srun, f"{container.bin}/bubblewrap.sh", *words, "--", f"{CONTAINER_RUN}/bin/unignore.sh", *command]


runtime = Bubblewrap()
