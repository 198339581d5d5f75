"""No container: the command runs on the node itself. Modules or a virtual environment come from the job's `setup`."""

from __future__ import annotations

from collections.abc import Sequence

from kit.runtimes.base import Container


class Bare:
    """Appends the command to the srun line."""

    containerized = False
    pulls = False
    by_srun = False

    def wrap(self, srun: Sequence[str], command: Sequence[str], container: Container) -> list[str]:
        """Return the srun line followed by the command, without a container."""
        return [*srun, *command]


runtime = Bare()
