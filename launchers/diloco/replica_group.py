"""This replica group's id, the folder of its files, and the checkpoint that it starts from.

Read here: REPLICA_GROUP_ID and NUM_REPLICA_GROUPS. RANK, WORLD_SIZE and MASTER_* are those within the group.

    RUN_DIR/replica-0/          metrics.jsonl, profile/ and state/ of group 0
    CHECKPOINT_DIR/replica-0/   its checkpoints, as in lib/checkpoint.py; at.json in each holds the position in the run.
                                Their numbers count inner and outer steps, so that no two states have the same number
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, cast

import torch.distributed as dist
from lib import checkpoint
from lib.ranks import Ranks

AT = "at.json"  # in each checkpoint: outer, step, committed, flushed (see outer.py), and the number of groups


@dataclasses.dataclass(frozen=True)
class ReplicaGroup:
    """A replica group. Its id counts from 0."""

    id: int  # REPLICA_GROUP_ID
    count: int  # NUM_REPLICA_GROUPS: of the whole training, alive or not

    @property
    def folder(self) -> str:
        return f"replica-{self.id}"

    def everywhere(self, world: Ranks) -> Ranks:
        """This rank's number among the ranks of all groups, and their count, for dividing the data. Groups have equal sizes."""
        # Group g has the places g * size to (g + 1) * size - 1. While a group is dead, nobody reads its places.
        rank, world_size = self.id * world.ddp_world_size + world.ddp_rank, self.count * world.ddp_world_size
        return dataclasses.replace(world, ddp_rank=rank, ddp_world_size=world_size)  # its process groups stay


def from_environment() -> ReplicaGroup:
    """The group that the environment names. Without one: the only group."""
    # `or`: a variable that is set but empty counts as not set.
    group = ReplicaGroup(int(os.environ.get("REPLICA_GROUP_ID") or 0), int(os.environ.get("NUM_REPLICA_GROUPS") or 1))
    if not 0 <= group.id < group.count:
        raise SystemExit(f"REPLICA_GROUP_ID {group.id} is not among NUM_REPLICA_GROUPS {group.count} (0 is the first).")
    return group


def agreed(value: Any, world: Ranks) -> Any:
    """The first rank's value, on all ranks of the group."""
    box = [value]
    # A collective of this group's ranks, over gloo: it works in host memory, beside the collectives on GPUs.
    dist.broadcast_object_list(box, src=0, group=world.control)
    return box[0]


def newest(folder: Path, group: ReplicaGroup, world: Ranks, saves: checkpoint.Checkpoints) -> Path | None:
    """The checkpoint to start from: a sound one of the latest outer step. Of equal ones, this group's own."""
    best = saves.newest()  # a collective: the ranks check its files together
    # Rank 0 alone compares: on shared storage another rank may see older content, and choose otherwise.
    reached = _outer_step(best) if best and world.is_main_process else -1
    others = [path for path in folder.glob("replica-*/step-*") if path.parent.name != group.folder]
    further = {path: step for path in others if (step := _outer_step(path)) > reached} if world.is_main_process else {}
    # The furthest first; where that one is damaged, the next. fault() is a collective, too: all ranks try the same ones.
    for path in agreed(sorted(further, key=lambda path: further[path], reverse=True), world):
        if saves.fault(path) is None:
            return cast("Path", path)
    return best


def _outer_step(folder: Path) -> int:
    """The outer step of a checkpoint; -1 where it cannot be read. Its group may remove it at any time."""
    try:
        # Outer steps, not inner ones: all groups share the state after an outer step, and a group's own inner steps count less.
        return int(json.loads((folder / AT).read_text())["outer"])
    except (OSError, ValueError, KeyError):
        return -1


def furthest(folder: Path) -> dict[str, Any] | None:
    """The position of the furthest group at its newest checkpoint (at.json); None where there is no checkpoint."""
    found = []
    # `latest` names a checkpoint that is complete. A collective is not possible: other groups may be gone.
    for pointer in folder.glob("replica-*/latest"):
        try:
            found.append(json.loads((pointer.parent / pointer.read_text().strip() / AT).read_text()))
        except (OSError, ValueError):
            continue  # being replaced, or damaged: use another group's
    return max(found, key=lambda at: at["outer"], default=None)
