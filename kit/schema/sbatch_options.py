"""sbatch's options for which the job has a key. In slurm.extra they would bypass the key's checks."""

from __future__ import annotations

import re

from kit.schema.wrong_value_messages import Invalid, shown

# Keys of [slurm] with the option's own name.
_SAME = """
    account constraint error exclude exclusive licenses mail-type mail-user nodelist output partition qos requeue reservation
"""
# The option without its dashes -> the key that sets it.
KEYS = {
    **{name: f"slurm.{name.replace('-', '_')}" for name in _SAME.split()},
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"), "resources.gpus_per_node"),
    **dict.fromkeys(("ntasks", "ntasks-per-node", "ntasks-per-gpu"), "resources.ranks_per_node"),
    **dict.fromkeys(("cpus-per-task", "cpus-per-gpu"), "resources.cpus_per_node"),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), "resources.memory"),
    "nodes": "resources.nodes",
    "segment": "resources.segment",
    "switches": "resources.switches",
    "mpi": "step.mpi",
    "time": "resources.time",
    "job-name": "name",
    "no-requeue": "slurm.requeue",
    "signal": "slurm.signal",
    "no-kill": "retry.spares",
}
_REFUSED = ("array", "export", "open-mode", "wait", "wrap")
# Options whose value the key accepts unchanged, as people write them in TOML.
SAME_VALUE = {
    name.replace("-", "_"): KEYS[name]
    for name in (*_SAME.split(), "gpus", "gpus-per-node", "ntasks-per-node", "mem", "nodes", "time", "job-name")
}
# Numbers of signal(7) that people give to --signal, on all machines that Slurm runs on.
_NUMBERS = {"1": "HUP", "2": "INT", "10": "USR1", "12": "USR2", "15": "TERM"}
_FORM = re.compile(r"--([a-z][a-z-]*)(=[A-Za-z0-9_.,:@/+=\[\]&|*()%-]+)?")
_EXAMPLE = "--nice=100"


def _value_of(key: str, name: str, given: str) -> object:
    """The value to write for a job's key, from the name and the value of the sbatch option."""
    if key == "slurm.signal":
        return signal_of(given) or "USR1"
    if key == "retry.spares":
        return 1
    if key in {"slurm.requeue", "slurm.exclusive"}:
        return name != "no-requeue"
    given = given.rpartition(":")[2] if key == "resources.gpus_per_node" else given
    number = given.isdigit() and key not in {"resources.time", "resources.memory"}
    return int(given) if number else given or "value"


def signal_of(given: str) -> str | None:
    """sbatch's --signal as the key slurm.signal takes it: `B:SIGUSR2@600` -> `USR2@600`, `10` -> `USR1`. None for others."""
    found = re.fullmatch(r"([BR]{1,2}:)?(SIG)?([A-Z0-9]+)(@[0-9]+)?", given.strip().upper())
    name = _NUMBERS.get(found[3], found[3]) if found else ""
    return name + (found[4] or "") if found and name in _NUMBERS.values() else None


def _without_gpus(value: str, name: str = "gres") -> None:
    """Invalid if a value of --gres asks for GPUs: the key for their number is checked against the cluster's nodes."""
    items = value.split(",")
    gpus = [item.split(":") for item in items if item.partition(":")[0] == "gpu"]
    if not gpus:
        return
    _, *kind, count = gpus[0] if len(gpus[0]) > 1 and gpus[0][-1].isdigit() else [*gpus[0], "1"]
    others = [item for item in items if item.partition(":")[0] != "gpu"]
    lines = ["[resources]", f"gpus_per_node = {count}", *([f'gpu_type = "{kind[0]}"'] if kind else [])]
    lines += ["[slurm]", f'extra = ["--gres={",".join(others)}"]'] if others else []
    raise Invalid(
        f"--{name}: write the key resources.gpus_per_node instead, which is checked against the cluster's rules",
        hint="\n       ".join(lines),
    )


def further(option: str) -> str:
    """An option such as `--nice=100`, if no key of the job sets it; Invalid otherwise. sbatch accepts abbreviated option names."""
    match = _FORM.fullmatch(option)
    if not match:
        near = "=".join(option.split(None, 1))
        problem = f"{shown(option)} is not written as --option or --option=value, without blanks"
        if "=" in option:
            # The blank is inside the value. No other text means the same: sbatch ends an option at it.
            hint = "a batch script of your own, whose lines may have blanks: slurm.template"
            raise Invalid(problem, hint=hint)
        raise Invalid(problem, write=near if _FORM.fullmatch(near) else _EXAMPLE)
    name, value = match[1], match[2] or ""
    if name == "gres":
        _without_gpus(value[1:])
        return option
    if ":" in value and name in {"gpus", "gpus-per-node"}:
        _without_gpus(f"gpu:{value[1:]}", name)
    for own, key in KEYS.items():
        if own.startswith(name):
            raise Invalid(
                f"--{match[1]}: write the key {key} instead, which is checked against the cluster's rules",
                at=tuple(key.split(".")),
                write=_value_of(key, own, value[1:]),
            )
    if name.startswith("container"):
        raise Invalid(f"--{name} would put the batch script itself into a container", hint='image = "train-cpu"')
    if any(own.startswith(name) for own in _REFUSED):
        raise Invalid(f"--{name} is set by the kit", hint="remove the line")
    return option
