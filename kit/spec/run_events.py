"""Events of a run: the lines of state/events.jsonl, which templates/lib/events.sh appends."""

from __future__ import annotations

from collections.abc import Mapping

# Keys of every line.
COMMON: Mapping[str, str] = {
    "time": "local time with its offset",
    "epoch": "seconds since 1970, with microseconds",
    "event": "name of the event",
    "job_id": "Slurm's number of the job",
    "restart": "how often Slurm has queued the job again",
    "attempt": "KIT_RESTART_COUNT: how often the ranks have been started before",
}
# Event name -> its meaning, and its further keys.
EVENTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "start": (
        "the batch script began; Slurm 23.02 and later tell when the nodes were allocated",
        ("nodes", "allocated"),
    ),
    "phase": ("a part of the run began: image, preflight, once, teardown", ("name",)),
    "image": (
        "the nodes have passed the image on to each other; bytes that were read from the image store, and seconds",
        ("nodes", "store_bytes", "seconds"),
    ),
    "attempt": ("the ranks are about to start", ("nodes", "master", "spare")),
    "role": ("a role was started", ("role", "start")),
    "ready": ("a role answered its ready check", ("role",)),
    "restart": ("a role ended and was started again", ("role", "exit_code")),
    "lost": ("a role ended and is not started again; the others continue", ("role", "exit_code")),
    "resumed": (
        "the program continues from a checkpoint; source: memory, neighbour (memory of other nodes), or file",
        ("step", "source"),
    ),
    "memory-off": ("the nodes lack the memory for checkpoints in memory, and none are made", ("why",)),
    "stall": (
        "ranks stand still",
        ("number", "rule", "role", "rank", "node", "step", "phase", "idle", "waiting", "count"),
    ),
    "progress": ("the ranks continue after a stall", ("number", "step")),
    "signal": ("the batch script got a signal", ("name",)),
    "requeue": ("the job goes back to the queue", ("exit_code",)),
    "end": ("the batch script ends", ("exit_code",)),
}
