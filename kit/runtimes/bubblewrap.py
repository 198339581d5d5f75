"""bubblewrap: the .sqsh is mounted, never unpacked, in a mount namespace of the task; nothing outlives the task.

For clusters without Pyxis, and for one machine. The work is done by templates/bin/bubblewrap.sh on the node.
"""

from __future__ import annotations

from collections.abc import Sequence

from kit.runtimes.base import Container
from kit.spec.run_paths import CONTAINER_RUN


class Bubblewrap:
    """Hands the container to bubblewrap.sh as plain words: three per mount, then the command."""

    containerized = True
    pulls = False

    def wrap(self, srun: Sequence[str], command: Sequence[str], container: Container) -> list[str]:
        """See Runtime."""
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
