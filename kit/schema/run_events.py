"""Events of a run: the lines of state/events.jsonl, which templates/core/lib/events.sh appends."""

from __future__ import annotations

from collections.abc import Mapping

# Keys of every line.
COMMON: Mapping[str, str] = {
    "time": "local time, with its offset from UTC",
    "epoch": "seconds since 1970, with microseconds",
    "event": "name of the event",
    "job_id": "Slurm job id",
    "restart": "how often Slurm has requeued the job",
    "attempt": "how often the ranks of the job were started before; KIT_RESTART_COUNT, unless the job has roles",
}
# Event name -> its meaning, and its further keys.
EVENTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "start": (
        "the batch script began; `allocated` is the time of the allocation (from Slurm 23.02 on)",
        ("nodes", "allocated"),
    ),
    "phase": ("a phase of the run began: image, preflight, once or teardown", ("name",)),
    "image": (
        "the nodes have copied the image from node to node; the keys give the bytes read from the image store and the seconds",
        ("nodes", "store_bytes", "seconds"),
    ),
    "attempt": ("the ranks are started next", ("nodes", "master", "spare")),
    "role": ("a role was started", ("role", "start")),
    "ready": ("a role passed its ready check", ("role",)),
    "restart": ("a role ended and was started again", ("role", "exit_code")),
    "lost": ("a role ended and is not started again; the other roles continue", ("role", "exit_code")),
    "resumed": (
        "the program continues from a checkpoint; `source` is memory, neighbour (the memory of other nodes) or file",
        ("step", "source"),
    ),
    "memory-off": ("no checkpoints in memory are made; `why` gives the reason, such as too little memory", ("why",)),
    "stall": (
        "ranks stopped making progress",
        ("number", "rule", "role", "rank", "node", "step", "phase", "idle", "waiting", "count"),
    ),
    "unwatched": (
        "another user has made the folder for the reports of the ranks on a node: a stall there is not found",
        ("node", "owner"),
    ),
    "progress": ("the ranks make progress again after a stall", ("number", "step")),
    "signal": ("the batch script received a signal", ("name",)),
    "requeue": ("the job goes back to the queue", ("exit_code",)),
    "end": ("the batch script ended", ("exit_code",)),
}
