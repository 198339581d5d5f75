"""sbatch's options that a key of the job stands for: as further options they would pass by what is checked."""

from __future__ import annotations

import re

_ALL = "the kit sets it, or it would put the batch script into the container"
# Keys of [slurm] that have the option's own name.
_SAME = """
    account constraint error exclude exclusive licenses mail-type mail-user nodelist output partition qos requeue reservation
"""
# The option without its dashes, and the key in its place.
_KEYS = {
    **{name: f"slurm.{name.replace('-', '_')}" for name in _SAME.split()},
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), "resources.gpus_per_node"),
    **dict.fromkeys(("ntasks", "ntasks-per-node", "ntasks-per-gpu"), "resources.ranks_per_node"),
    **dict.fromkeys(("cpus-per-task", "cpus-per-gpu"), "resources.cpus_per_node"),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), "resources.memory"),
    "nodes": "resources.nodes",
    "time": "resources.time",
    "job-name": "name",
    "no-requeue": "slurm.requeue",
    "signal": "slurm.lead",
    "no-kill": "retry.spares",
}
_REFUSED = ("array", "export", "open-mode", "wrap")


def further(option: str) -> str:
    """`--nice=100`, when it is one that no key stands for; ValueError otherwise. sbatch takes the start of a name for the name."""
    found = re.fullmatch(r"--([a-z][a-z-]*)(=[A-Za-z0-9_.,:@/+=\[\]&|*()%-]+)?", option)
    if not found:
        raise ValueError(f"{option!r} is not of the form --option or --option=value without blanks")
    name, value = found[1], found[2] or ""
    if name == "gres" and "gpu" in value:
        name = "gpus-per-node"
    for own, key in _KEYS.items():
        if own.startswith(name):
            raise ValueError(f"{key} in the place of --{found[1]}: it is checked against the cluster's rules")
    if name.startswith("container") or any(own.startswith(name) for own in _REFUSED):
        raise ValueError(f"--{name} cannot stand here: {_ALL}")
    return option
