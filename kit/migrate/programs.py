"""From the words after srun, or of a launcher itself, to launcher, program and args of a job."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from kit.migrate.report import Places, UnreadError
from kit.migrate.words import MARK, is_known, shown
from kit.schema import option_words
from kit.schema.sbatch_sizes import Sizes

_PYTHON = re.compile(r"(.*/)?python[0-9.]*")
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_TORCHRUN_FLAGS = frozenset({"standalone", "no-python", "no_python", "module", "m", "use-env", "use_env"})
_ACCELERATE_ENV = {"mixed_precision": "ACCELERATE_MIXED_PRECISION", "dynamo_backend": "ACCELERATE_DYNAMO_BACKEND"}
# Options by which the processes of several nodes find each other: the kit's own take their place, whatever their value.
_MEETING = frozenset(
    (
        "rdzv_id", "rdzv_endpoint", "master_addr", "master_port", "main_process_ip", "main_process_port", "hostfile", "multi_gpu",
        "same_network", "no_ssh", "force_multi", "use_env",
    )
)  # fmt: skip
_THIS_NODE = ("localhost", "127.0.0.1", "0.0.0.0", "::1")
_OTHERS = ("mpirun", "mpiexec", "ray", "singularity", "apptainer", "enroot", "docker", "podman", "composer", "sbatch")
# Options of Python -> the variable that does the same.
_PYTHON_ENV = {"-O": ("PYTHONOPTIMIZE", "1"), "-OO": ("PYTHONOPTIMIZE", "2"), "-B": ("PYTHONDONTWRITEBYTECODE", "1")}


@dataclass(kw_only=True)
class ProgramStart:
    """A program that is started. in_step: by srun, once per task. folder: where, relative to the script or absolute."""

    job: dict[str, Any]
    sizes: Sizes
    places: Places
    in_step: bool
    folder: str = ""

    def path(self, text: str) -> str:
        """A program's path as the job file takes it."""
        return f"{self.folder.rstrip('/')}/{text.removeprefix('./')}" if self.folder and text[:1] != "/" else text


def set_program(words: Sequence[str], start: ProgramStart) -> None:  # noqa: PLR0911 - one answer for each launcher
    """Write launcher, program, args and ranks_per_node into the job. UnreadError if they have no place."""
    rest = list(words)
    if not rest or not is_known(rest[0]):
        raise UnreadError("the program's name is known only when the script runs")
    name = PurePath(rest[0]).name
    if _PYTHON.fullmatch(rest[0]):
        after = _python_options(rest[1:], start)
        if after[:1] == ["-m"] and len(after) > 1 and after[1] in _TORCHRUN_MODULES:
            return _torchrun(after[2:], start, python=rest[0], adds_rank=after[1].endswith("launch"))
        if after[:2] == ["-m", "accelerate.commands.launch"]:
            return _accelerate(after[2:], start, python=rest[0])
        return _python(rest[0], after, start)
    if name == "torchrun":
        return _torchrun(rest[1:], start)
    if name == "accelerate" and rest[1:2] == ["launch"]:
        return _accelerate(rest[2:], start)
    if name == "deepspeed":
        return _deepspeed(rest[1:], start)
    if name in _OTHERS:
        raise UnreadError(f"kit migrate does not read {name}")
    start.job["launcher"] = "srun" if start.in_step else "python"
    start.job["command"] = _known(rest)
    _ranks(start, start.sizes.tasks if start.in_step else 1)
    return _one_node(start, "command")


def _python_options(words: list[str], start: ProgramStart) -> list[str]:
    after = list(words)
    while after and (after[0] == "-u" or after[0] in _PYTHON_ENV):
        option = after.pop(0)
        if option == "-u":
            start.places.kit("-u: the kit sets PYTHONUNBUFFERED=1")
        else:
            name, value = _PYTHON_ENV[option]
            start.job["env"][name] = value
            start.places.key(f"{option}: env.{name}")
    return after


def _known(words: Sequence[str]) -> list[str]:
    for place, word in enumerate(words):
        if not is_known(word):
            before = shown(words[place - 1]) if place else ""
            raise UnreadError(
                f"{shown(word)}, after {before!r}, is known only when the script runs, and nothing expands args"
            )
    return list(words)


def _ranks(start: ProgramStart, number: int) -> None:
    start.job["resources"]["ranks_per_node"] = number


def _one_node(start: ProgramStart, where: str) -> None:
    """Without srun a program runs once, on the first node."""
    others = start.job["resources"]["nodes"] - 1
    launcher = f"launcher {start.job['launcher']}"
    start.places.key(f"{launcher}, {where}")
    if not start.in_step:
        start.job["resources"]["nodes"] = 1
        if others:
            start.places.check(f"{launcher}: the program uses one node, and {others} of the script's are not asked for")


def _program(words: Sequence[str], start: ProgramStart, *, python: str, module: bool = False) -> str:
    known = _known(words)
    job = start.job
    if not known:
        raise UnreadError("no program is named")
    if PurePath(python).name != "python3" or "/" in python:
        job["python"] = python
    if module or known[0] == "-m":
        known = known[0 if module else 1 :]
        if not known:
            raise UnreadError("no program is named")
        job["module"], job["args"] = known[0], known[1:]
        return "module and args"
    if known[0].startswith("-"):
        raise UnreadError(f"kit migrate does not read Python's option {known[0]}")
    if not known[0].endswith(".py"):
        job.pop("python", None)
        job["command"] = [python, "-u", start.path(known[0]), *known[1:]]
        return "command"
    job["script"], job["args"] = start.path(known[0]), known[1:]
    return "script and args"


def _python(python: str, after: Sequence[str], start: ProgramStart) -> None:
    start.job["launcher"] = "srun" if start.in_step else "python"
    where = _program(after, start, python=python)
    _ranks(start, start.sizes.tasks if start.in_step else 1)
    _one_node(start, where)


def _options(words: Sequence[str], flags: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Options by name, with _ for -."""
    found, rest = option_words.split(words, short={}, flags=flags)
    return {name.replace("-", "_"): value for name, value in found}, rest


def _agrees(start: ProgramStart, option: str, value: str, expected: int) -> None:
    """An option whose number the job decides. UnreadError if it is another."""
    text = f"--{option}={shown(value)}"
    if not is_known(value):
        start.places.check(f"{text}: known only when the script runs; the job has {expected}")
    elif value not in (str(expected), f"{expected}:{expected}"):
        raise UnreadError(f"{text}: the job has {expected}")
    else:
        start.places.kit(f"{text}: as the job has it")


def _meets(start: ProgramStart, name: str, value: str, *, nodes: int) -> bool:
    """Whether the kit's rendezvous replaces an option. UnreadError if it makes another world than the job's."""
    text = f"--{name}={shown(value)}" if value else f"--{name}"
    alone = (
        nodes > 1
        and value.partition(":")[0] in _THIS_NODE
        and name in ("rdzv_endpoint", "master_addr", "main_process_ip")
    )
    if alone or (name == "standalone" and nodes > 1):
        raise UnreadError(f"{text}: each of the {nodes} nodes would train alone, and a job of the kit is one world")
    if name in ("node_rank", "machine_rank"):
        if is_known(value) and (nodes > 1 or value != "0"):
            raise UnreadError(f"{text}: all nodes would have the same number")
        start.places.kit(f"{text}: Slurm's number of the node")
    elif name in _MEETING or name == "standalone":
        start.places.kit(f"{text}: the ranks meet at the job's first node, at a port that is free")
    elif name == "rdzv_backend":
        if value not in ("c10d", "static"):
            raise UnreadError(f"{text}: the kit's rendezvous is static or c10d")
        if nodes > 1:
            start.job["rendezvous"] = value
        places = start.places.key if nodes > 1 else start.places.kit
        places(f"{text}: rendezvous" + ("" if nodes > 1 else ": one node needs none"))
    elif name == "rdzv_conf":
        start.places.check(f"{text}: no key says it; the kit's and torch's own limits apply")
    else:
        return False
    return True


def _one_task(start: ProgramStart, launcher: str) -> int:
    """The number of nodes on which a launcher runs. UnreadError if srun starts it several times on a node."""
    if start.in_step and start.sizes.tasks != 1:
        raise UnreadError(f"srun starts {launcher} {start.sizes.tasks} times on each node: it needs one task per node")
    return start.sizes.nodes if start.in_step else 1


def _needs(options: dict[str, str], name: str, nodes: int, launcher: str) -> None:
    if name not in options and nodes > 1:
        raise UnreadError(f"{launcher} without --{name} on {nodes} nodes: each of them would train alone")


def _torchrun(words: Sequence[str], start: ProgramStart, *, python: str = "python3", adds_rank: bool = False) -> None:
    options, rest = _options(words, _TORCHRUN_FLAGS)
    module = "m" in options or "module" in options
    start.job["launcher"] = "torchrun"
    nodes = _one_task(start, "torchrun")
    for name, value in options.items():
        if name == "nnodes":
            _agrees(start, name, value, nodes)
        elif name not in ("m", "module", "no_python", "nproc_per_node") and not _meets(start, name, value, nodes=nodes):
            _torchrun_option(name, value, start)
    _needs(options, "nnodes", nodes, "torchrun")
    number = options.get("nproc_per_node", "1")
    _ranks(start, _processes(number, start.sizes))
    start.places.key(f"--nproc_per_node={shown(number)}: resources.ranks_per_node")
    if adds_rank and "use_env" not in options:
        start.job["rank_args"] = {"--local-rank": "LOCAL_RANK"}
        start.places.check("torch.distributed.launch: rank_args has --local-rank; torch before 2.0 writes --local_rank")
    if "no_python" in options:
        start.job["command"] = _known(rest)
        return _one_node(start, "command")
    return _one_node(start, _program(rest, start, python=python, module=module))


def _torchrun_option(name: str, value: str, start: ProgramStart) -> None:
    text = f"--{name}={shown(value)}"
    if not is_known(value):
        raise UnreadError(f"torchrun {text}: its value is known only when the script runs")
    if name == "max_restarts" and value.isdigit():
        if int(value):
            start.job["torchrun"]["max_restarts"] = int(value)
        start.places.key(f"{text}: torchrun.max_restarts")
    elif name in ("tee", "log_dir"):
        start.job["torchrun"][name] = value
        start.places.key(f"{text}: torchrun.{name}")
    elif name == "local_ranks_filter" and re.fullmatch(r"[0-9]+(,[0-9]+)*", value):
        start.job["torchrun"][name] = [int(one) for one in value.split(",")]
        start.places.key(f"{text}: torchrun.{name}")
    else:
        raise UnreadError(f"torchrun {text}: no key says it")


def _processes(value: str, sizes: Sizes) -> int:
    if not is_known(value):
        raise UnreadError(f"{shown(value)}: the number of processes per node is known only when the script runs")
    if value in ("gpu", "auto"):
        if not sizes.gpus:
            raise UnreadError(f"--nproc_per_node={value}, and the header asks for no GPUs")
        return sizes.gpus
    if not re.fullmatch(r"[1-9][0-9]*", value):
        raise UnreadError(f"{value}: no number of processes per node")
    return int(value)


def _accelerate(words: Sequence[str], start: ProgramStart, *, python: str = "python3") -> None:
    options, rest = _options(words, {"multi_gpu", "same_network", "m", "module", "cpu", "use_deepspeed", "use_fsdp"})
    start.job["launcher"] = "accelerate"
    nodes = _one_task(start, "accelerate")
    total = options.get("num_processes", str(max(start.sizes.gpus, 1) * nodes))
    each, left = divmod(int(total), nodes) if total.isdigit() else (0, 0)
    if left or not each:
        raise UnreadError(f"--num_processes={shown(total)}: no number of processes per node")
    for name, value in options.items():
        if name in _ACCELERATE_ENV and value and MARK not in value:
            start.job["env"][_ACCELERATE_ENV[name]] = value
            start.places.key(f"--{name}={value}: env.{_ACCELERATE_ENV[name]}")
        elif name == "num_machines":
            _agrees(start, name, value, nodes)
        elif name == "num_processes":
            start.places.key(f"--{name}={value}: {each} per node")
        elif name not in ("m", "module") and not _meets(start, name, value, nodes=nodes):
            raise UnreadError(f"accelerate launch --{name}={shown(value)}: no key says it: put what it sets into [env]")
    _needs(options, "num_machines", nodes, "accelerate launch")
    _ranks(start, each)
    where = _program(rest, start, python=python, module="m" in options or "module" in options)
    _one_node(start, where)


def _deepspeed(words: Sequence[str], start: ProgramStart) -> None:
    options, rest = _options(words, {"no_ssh", "force_multi", "module", "no_python", "no_local_rank"})
    if start.in_step:
        raise UnreadError("srun starts deepspeed, which starts ranks on other nodes by ssh, on every node")
    several = start.sizes.nodes if "hostfile" in options else 1
    for name, value in options.items():
        if name == "num_nodes":
            _agrees(start, name, value, several)
        elif name not in ("module", "no_local_rank", "num_gpus") and not _meets(start, name, value, nodes=1):
            raise UnreadError(f"deepspeed --{name}={shown(value)}: no key says it")
    start.job["launcher"] = "deepspeed"
    given = options.get("num_gpus", str(max(start.sizes.gpus, 1)))
    _ranks(start, _processes(given, start.sizes))
    start.places.key(f"--num_gpus={given}: resources.ranks_per_node")
    if "no_local_rank" not in options and "module" not in options:
        # deepspeed adds the option, unless --no_local_rank is given.
        start.job["rank_args"] = {"--local_rank": "LOCAL_RANK"}
        start.places.key("deepspeed: rank_args, because deepspeed adds --local_rank")
    where = _program(rest, start, python="python3", module="module" in options)
    start.in_step = several > 1
    _one_node(start, where)
