"""No container: the command runs on the node itself (modules or a virtual environment come from the job's `setup`)."""

from __future__ import annotations

from collections.abc import Sequence

from kit.runtimes.base import Container


class Bare:
    """The srun line with the command behind it."""

    containerized = False
    pulls = False

    def wrap(self, srun: Sequence[str], command: Sequence[str], container: Container) -> list[str]:
        """Return the srun line with the command: nothing is wrapped around it."""
        return [*srun, *command]


runtime = Bare()
