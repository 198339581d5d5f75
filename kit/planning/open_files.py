"""Computes how many files and sockets a rank of the kit's programs has open, from the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

from kit.errors import Fault
from kit.planning.decisions import Decisions
from kit.planning.placement import RolePlacement

# Of each rank, however many there are: Python's and torch's own files, the log, the data, and connections to the node itself.
_OWN = 64
# Linux's limit for a process, if neither systemd nor the site sets another: INR_OPEN_MAX in include/uapi/linux/fs.h.
_DEFAULT_HARD_LIMIT = 4096


def needed(decisions: Decisions) -> int:
    """The files and sockets that the rank with the most has open; 0 for programs of others, whose groups are not known."""
    return max(
        (_of_role(decisions, placed) for placed in decisions.roles if placed.role.policy != "service"), default=0
    )


def _of_role(decisions: Decisions, placed: RolePlacement) -> int:
    """Each gloo group connects a rank to every other one: the training's, that of flags, and that of saves in the background.

    Rank 0 also has the store, to which every rank has a connection. NCCL's rings and trees need few.
    """
    if not decisions.computes_with_torch(placed):
        return 0
    groups = 3 if decisions.job.checkpoint.async_ or "--checkpoint-async" in decisions.job.args else 2
    return (groups + 1) * (placed.world_size - 1) + _OWN


def warnings(decisions: Decisions) -> Iterator[Fault]:
    """A warning where a rank needs more than Linux allows by itself."""
    files = needed(decisions)
    if files > _DEFAULT_HARD_LIMIT:
        yield Fault(
            key="resources.nodes",
            problem=f"a rank opens up to {files:,} files and sockets, more than Linux's own limit of {_DEFAULT_HARD_LIMIT:,}; "
            "the preflight compares it with each node's (ulimit -Hn)",
            hint="LimitNOFILE=1048576 in slurmd's unit, on every node",
        )
