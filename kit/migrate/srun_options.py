"""From srun's options, Pyxis' among them, to keys of a job."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from kit.errors import ConfigError
from kit.migrate import header
from kit.migrate.report import Migration, Places, UnreadError
from kit.migrate.words import is_known, shown
from kit.schema import image_choice, option_words, step_torchrun_once
from kit.schema.sbatch_sizes import Sizes
from kit.schema.wrong_value_messages import Invalid

_SHORT = {
    "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "w": "nodelist", "l": "label", "o": "output", "e": "error", "J": "job-name",
    "K": "kill-on-bad-exit", "W": "wait", "u": "unbuffered", "G": "gpus", "m": "distribution", "p": "partition", "v": "verbose",
    "t": "time", "i": "input", "A": "account", "s": "oversubscribe", "q": "qos", "Q": "quiet", "C": "constraint", "x": "exclude",
    "O": "overcommit", "D": "chdir", "L": "licenses",
}  # fmt: skip
_FLAGS = frozenset(
    (
        "label", "unbuffered", "kill-on-bad-exit", "exclusive", "exact", "overlap", "verbose", "oversubscribe",
        "no-container-mount-home", "container-mount-home", "no-container-remap-root", "container-remap-root", "container-writable",
        "container-readonly", "no-container-entrypoint", "container-entrypoint", "multi-prog", "pty", "no-kill", "quiet",
    )
)  # fmt: skip
_LOGS = "the output of each rank is in logs/ of the run folder"
_OF_JOB = "the job's own"
# Options whose value does not change what the ranks do.
_BY_THE_KIT = {
    "unbuffered": "the kit sets PYTHONUNBUFFERED=1",
    "output": _LOGS,
    "error": _LOGS,
    "open-mode": _LOGS,
    "job-name": "the kit names its steps",
    "jobid": _OF_JOB,
    "exact": "a job of the kit has one step of ranks",
    "exclusive": "a job of the kit has one step of ranks",
    "overlap": "a job of the kit has one step of ranks",
    "oversubscribe": "a job of the kit has one step of ranks",
    "verbose": "the kit's own log tells what srun does",
    "quiet": "the kit's own log tells what srun does",
    "container-name": "the kit names its containers, and removes them",
}
# Flags that say what the kit does, too.
_SAME = {
    "no-container-mount-home": "the home folder is not mounted unless container.mount_home is set",
    "container-remap-root": "container.remap_root is true by default",
    "no-container-entrypoint": "the image's ENTRYPOINT does not run unless container.entrypoint is set",
    "container-readonly": "the container's root is not writable unless container.writable is set",
}
# Options of sbatch, too: the step has what the job has.
_HEADERS = {"partition": "partition", "time": "time", "account": "account", "qos": "qos", "constraint": "constraint"}
_TRUE = {"container-writable": "writable", "container-mount-home": "mount_home", "container-entrypoint": "entrypoint"}


@dataclass(kw_only=True)
class StepOptions:
    """An srun whose options are read. nodes: of the job, or 1 for each srun of a loop over nodes."""

    job: dict[str, Any]
    sizes: Sizes
    report: Migration
    places: Places
    nodes: int


def split(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The options of an srun by long name, and the words of its program. words: without srun itself."""
    return option_words.split(words, short=_SHORT, flags=_FLAGS)


def read_options(words: Sequence[str], step: StepOptions) -> list[str]:
    """Write the options' keys; return the words of the program. UnreadError for an option without a place."""
    options, rest = split(words)
    for name, value in options:
        text = f"srun --{name}={shown(value)}" if value else f"srun --{name}"
        if name in _BY_THE_KIT:
            step.places.kit(f"{text}: {_BY_THE_KIT[name]}")
        elif name in _SAME:
            step.places.kit(f"{text}: {_SAME[name]}")
        elif name == "nodelist":
            _nodelist(text, value, step)
        elif not is_known(value):
            raise UnreadError(f"{text}: its value is known only when the script runs")
        else:
            _option(text, name, value, step)
    return rest


def _nodelist(text: str, value: str, step: StepOptions) -> None:
    if not is_known(value) or value == step.job["slurm"].get("nodelist"):
        step.places.kit(f"{text}: the ranks run on all nodes of the job")
    else:
        step.places.check(f"{text}: the ranks run on all nodes of the job; slurm.nodelist chooses them")


def _option(text: str, name: str, value: str, step: StepOptions) -> None:
    job, places = step.job, step.places
    if name == "nodes":
        if value not in (str(step.nodes), f"{step.nodes}-{step.nodes}"):
            raise UnreadError(f"{text}: the job has {step.nodes} nodes")
        places.key(f"{text}: resources.nodes")
    elif name in ("ntasks", "ntasks-per-node"):
        _tasks(text, name, value, step)
    elif name in ("kill-on-bad-exit", "wait", "no-kill"):
        _ends(text, name, value, places)
    elif name == "export":
        header.read_export(text, value, places, job)
        if value.upper() in ("NONE", "NIL"):
            raise UnreadError(f"{text}: the ranks would not get the variables that the script exports")
    else:
        _of_step(text, name, value, step)


def _of_step(text: str, name: str, value: str, step: StepOptions) -> None:
    job, places = step.job, step.places
    if name == "label":
        job["step"]["label"] = True
        places.key(f"{text}: step.label")
    elif name in ("mpi", "cpu-bind", "gpu-bind", "mem-per-gpu"):
        job["step"][name.replace("-", "_")] = value
        places.key(f"{text}: step.{name.replace('-', '_')}")
    elif name in ("cpus-per-task", "gpus", "gpus-per-node", "gpus-per-task", "gres", "mem", "cpus-per-gpu"):
        _amount(text, name, value, step)
    elif name in _HEADERS:
        _of_header(text, name, value, step)
    elif name.startswith(("container", "no-container")):
        _container(text, name, value, step)
    else:
        option = f"--{name}={value}" if value else f"--{name}"
        try:
            job["step"].setdefault("extra", []).append(step_torchrun_once.further(option))
        except Invalid as error:
            raise UnreadError(f"{text}: {error}") from None
        places.key(f"{text}: step.extra")


def _number(text: str, value: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]*", value):
        raise UnreadError(f"{text}: no whole number")
    return int(value)


def _tasks(text: str, name: str, value: str, step: StepOptions) -> None:
    each, left = divmod(_number(text, value), step.nodes) if name == "ntasks" else (_number(text, value), 0)
    if left or not each:
        raise UnreadError(f"{text}: it does not divide by {step.nodes} nodes")
    step.sizes.tasks = each
    step.places.key(f"{text}: {each} per node")


def _ends(text: str, name: str, value: str, places: Places) -> None:
    """What srun does with the other ranks when one has ended."""
    if name == "kill-on-bad-exit" and value in ("", "1"):
        places.kit(f"{text}: a rank that fails ends the others")
    elif name == "kill-on-bad-exit":
        places.check(f"{text}: with the kit a rank that fails always ends the others")
    elif name == "wait" and value == "0":
        places.kit(f"{text}: a rank that ends well ends no other")
    elif name == "wait":
        places.kit(f"{text}: a rank that ends well ends no other, at no time; one that fails ends all at once")
    else:
        places.check(f"{text}: set retry.spares, with which a run outlives a lost node")


def _amount(text: str, name: str, value: str, step: StepOptions) -> None:
    """CPUs, GPUs and memory of the step. A step without them has those of the job."""
    sizes, job = step.sizes, step.job
    if name == "gpus-per-task":
        number = _number(text, value.rpartition(":")[2])
        job["step"]["gpus_per_task"] = number
        step.places.key(f"{text}: step.gpus_per_task")
        have = job["resources"].get("gpus_per_node") or 0
        if number * sizes.tasks != have:
            step.places.check(f"{text}: with {sizes.tasks} tasks per node, and the header has {have} GPUs per node")
        return
    if name == "cpus-per-task":
        number = _number(text, value) * sizes.tasks
        if sizes.cpus is None:
            sizes.cpus = job["resources"]["cpus_per_node"] = number
            step.places.key(f"{text}: resources.cpus_per_node")
        elif number == sizes.cpus:
            step.places.kit(f"{text}: the job's CPUs, divided by its ranks")
        else:
            step.places.check(f"{text}: a rank has {sizes.cpus // sizes.tasks or 1} CPUs, its part of the job's")
        return
    count = value.rpartition(":")[2]
    have = {"gpus": sizes.gpus * step.nodes, "cpus-per-gpu": (sizes.cpus or 0) // (sizes.gpus or 1)}.get(
        name, sizes.gpus
    )
    plain = name != "mem" and count.isdigit() and int(count) == have and not value.startswith("nvme")
    if plain and (name != "gres" or value.startswith("gpu:")):
        step.places.kit(f"{text}: each step has all of the job's GPUs")
    elif name == "mem" and value == sizes.given.get("mem"):
        step.places.kit(f"{text}: the step has the job's memory")
    else:
        step.places.check(f"{text}: the ranks have all that the job asks for, which [resources] names")


def _of_header(text: str, name: str, value: str, step: StepOptions) -> None:
    table = step.job["resources"] if name == "time" else step.job["slurm"]
    if table.get(_HEADERS[name]) == value:
        step.places.kit(f"{text}: {_OF_JOB}")
    else:
        step.places.check(
            f"{text}: the step has the job's, {table.get(_HEADERS[name], 'which the header does not name')}"
        )


def _container(text: str, name: str, value: str, step: StepOptions) -> None:
    job, container = step.job, step.job["container"]
    where = f"container.{_TRUE.get(name)}"
    if name == "container-image":
        _image(value, job, step.report)
        where = f"image = {job['image']}, after the line under 'Next'"
    elif name == "container-mounts":
        job["mounts"] = [_mount(one) for one in value.split(",")]
        where = "mounts"
    elif name == "container-workdir":
        job["workdir"] = value
        where = "workdir"
    elif name == "container-env":
        container["env"] = value.split(",")
        where = "container.env"
    elif name == "no-container-remap-root":
        container["remap_root"] = False
        where = "container.remap_root"
    elif name in _TRUE:
        container[_TRUE[name]] = True
    else:
        raise UnreadError(f"{text}: no key says it")
    step.places.key(f"{text}: {where}")


def _image(value: str, job: dict[str, Any], report: Migration) -> None:
    """A name of containers/: a tag could be another image tomorrow, so `kit import-image` locks what it is today."""
    try:
        job["image"] = image_choice.image_of(value)
    except (Invalid, ConfigError):
        base = PurePosixPath(value.partition("@")[0].replace("#", "/")).name.lower()
        name = re.sub(r"[^a-z0-9._-]+", "-", base.removesuffix(".sqsh")).strip("._-") or "image"
        job["image"] = name
        is_file = value.startswith(("/", "./", "../")) or value.endswith(".sqsh")
        source = value if is_file or "://" in value else f"docker://{_with_registry(value)}"
        report.next.append(f"kit import-image '{source}' --name {name}")


def _with_registry(reference: str) -> str:
    host, slash, path = reference.partition("/")
    return f"{host}#{path}" if slash and "#" not in reference and ("." in host or ":" in host) else reference


def _mount(text: str) -> dict[str, Any]:
    source, _, rest = text.partition(":")
    target, _, flags = rest.partition(":")
    mount: dict[str, Any] = {"source": source, "target": target or source}
    return {**mount, "flags": flags.split("+")} if flags else mount
