"""Steps of a run, each an srun command line: roles, monitor, preflight, helpers. Each is a list of words, not a string."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from kit.planning import open_files
from kit.planning.decisions import Decisions
from kit.planning.placement import RolePlacement
from kit.render import quote
from kit.runtimes import Container

_INTERFACE_ENV = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
# Variables of a step's environment that differ between such roles -> name of their column.
_OWN_ENV = {"KIT_ROLE_INDEX": "index", "KIT_GPUS": "gpus"}
_MARK = re.compile("\0([a-z]+)\0")


def role_step(decisions: Decisions, placed: RolePlacement) -> list[str]:
    """The step of a role's ranks. It repeats all figures: srun ignores SLURM_CPUS_PER_TASK (docs/internals/learnt.md#slurm).

    It has no GPU option: with the job's --gpus-per-node, every rank sees all of the job's GPUs on its node and takes the one with
    its local rank. `--gpu-bind=none` should have the same effect. But with several tasks per node, Slurm 22.05 then does not set
    CUDA_VISIBLE_DEVICES, and without device cgroups two jobs on a node would share GPU 0.
    """
    srun = [
        "srun",
        f"--job-name={placed.name}",
        f"--nodes={placed.nodes}",
        f"--ntasks={placed.nodes * placed.tasks_per_node}",
        f"--ntasks-per-node={placed.tasks_per_node}",
        f"--cpus-per-task={placed.cpus_per_task}",
        f"--mpi={decisions.job.step.mpi}",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        # A rank that has ended well must not end the others: rank 0 may still write for minutes.
        "--wait=0",
        # Slurm may never end a step with a lost node, so the next step must share resources with it.
        *(["--no-kill"] if decisions.outlives else []),
        *(["--overlap"] if decisions.outlives or placed.shared else []),
        f"--output={decisions.paths.run.root}/{placed.logs}/task-%t.log",
        "--open-mode=append",
        *decisions.job.step.options(),
    ]
    return contain(decisions, placed, srun, f"{decisions.paths.inside.run}/{placed.folder}".rstrip("/") + "/worker.sh")


def monitor_step(decisions: Decisions) -> list[str]:
    """The GPU monitor on every node with ranks; empty if it is disabled."""
    monitor, run = decisions.job.monitor, decisions.paths.run
    if not monitor.enabled:
        return []
    command = [f"{run.bin}/gpu-monitor.sh", str(run.monitor), monitor.select, monitor.options, str(monitor.delay)]
    command += [",".join(monitor.query)] if monitor.query else []
    return [*start_helper("kit-monitor", decisions.allocation.nodes, f"{run.monitor}/monitor.log"), *command]


def signal_step(decisions: Decisions) -> list[str]:
    """Sends a signal only to the programs of the ranks. The batch script adds nodes, signal and the time to save."""
    return [*start_helper("kit-signal", None, "/dev/null"), f"{decisions.paths.run.bin}/signal.sh"]


def evidence_step(decisions: Decisions) -> list[str]:
    """Gathers evidence of each rank at a stall, with one task on each node. The batch script adds nodes and a folder."""
    return [*start_helper("kit-evidence", None, None), f"{decisions.paths.run.bin}/evidence.sh"]


def preflight_step(decisions: Decisions) -> list[str]:
    """The checks of every node, including spares; empty if they are disabled and there is no container."""
    checks, run = decisions.job.preflight, decisions.paths.run
    if checks.enabled:
        options = _checks(decisions)
    elif decisions.runtime.containerized:
        # A container mounts the cache folder, and its image must match its digest, so these checks always run.
        options = _checks_of_container(decisions)
    else:
        return []
    return [
        *start_helper("kit-preflight", decisions.every_node, f"{run.logs}/preflight.log"),
        f"{run.bin}/preflight.sh",
        *options,
        *(
            []
            if decisions.runtime.by_srun or not _probes(decisions)
            else ["--", *contain(decisions, decisions.main, [], *_probe(decisions))]
        ),
    ]


def _checks(decisions: Decisions) -> list[str]:
    checks, run = decisions.job.preflight, decisions.paths.run
    return [
        f"run={run.root}",
        f"cache={decisions.paths.cache}",
        f"free_kb={int(checks.free_disk_gb * 1e6)}",
        f"shm_kb={int(checks.shm_gb * 1e6)}",
        f"nofile={max(checks.nofile, open_files.needed(decisions))}",
        f"memlock={checks.memlock}",
        f"skew={int(checks.clock_skew_s)}",
        f"gpus={decisions.allocation.gpus_per_node}",
        f"userns={int(bool(decisions.pins.distinct))}",
        *_checked_images(decisions),
        *_checked_mounts(decisions),
        *_checked_interfaces(decisions),
    ]


def _checks_of_container(decisions: Decisions) -> list[str]:
    return [f"run={decisions.paths.run.root}", f"cache={decisions.paths.cache}", *_checked_images(decisions)]


def _checked_images(decisions: Decisions) -> Iterator[str]:
    again = decisions.job.preflight.verify_image
    for pin in decisions.pins.distinct:
        if pin.image.startswith("/"):
            yield f"image={pin.image}"
        if pin.lock is not None:
            yield f"size={pin.lock.size}"
            # stage.sh has just checked the copy on the node's disk. The store's file must not be read by every node.
            if pin.image == pin.stored or again:
                yield f"sha256={pin.lock.sha256}"
    if again:
        yield "verify=1"


def _checked_mounts(decisions: Decisions) -> Iterator[str]:
    """Mounts that a container needs. The run folder and the cache have their own checks."""
    known = {"tmpfs", decisions.paths.cache, str(decisions.paths.run.root)}
    for mount in decisions.paths.mounts if decisions.runtime.containerized else ():
        if mount.source not in known:
            yield f"source={mount.source}"


def _checked_interfaces(decisions: Decisions) -> Iterator[str]:
    env = {**decisions.resolved.cluster.network, **decisions.job.env}
    yield from (f"interface={env[name]}" for name in _INTERFACE_ENV if env.get(name))


def probe_step(decisions: Decisions) -> list[str]:
    """Starts the container once on every node, with one task; empty if the preflight has no such check, or does it itself."""
    if not (_probes(decisions) and decisions.runtime.by_srun):
        return []
    step = start_helper("kit-probe", decisions.every_node, f"{decisions.paths.run.logs}/preflight.log")
    return contain(decisions, decisions.main, step, *_probe(decisions))


def _probes(decisions: Decisions) -> bool:
    """Whether the preflight starts the container."""
    checks = decisions.job.preflight
    return checks.enabled and checks.container and decisions.runtime.containerized


def _probe(decisions: Decisions) -> list[str]:
    """The program that reports from inside the container that it runs."""
    image_env = f"{decisions.main.folder}/image-env.sh".lstrip("/")
    return [f"{decisions.paths.inside.run}/bin/probe.sh", decisions.job.python, image_env]


def stage_step(decisions: Decisions) -> list[str]:
    """Copies the image to every node's own disk; empty unless the job asks for it."""
    choice, pin, run = decisions.job.staged, decisions.pin, decisions.paths.run
    if choice is None or pin.lock is None:
        return []
    command = [f"{run.bin}/stage.sh", pin.stored, pin.lock.sha256, decisions.paths.stage, str(int(choice.cap_gb * 1e6))]
    return [*start_helper("kit-stage", decisions.every_node, f"{run.logs}/stage.log"), *command]


def image_chain(decisions: Decisions) -> list[str]:
    """The file in the store, and its digest, that the nodes pass on to each other; empty unless there are nodes that should."""
    choice, pin = decisions.job.staged, decisions.pin
    if choice is None or choice.stage != "chain" or pin.lock is None or decisions.every_node == 1:
        return []
    return [pin.stored, pin.lock.sha256]


def container_step(decisions: Decisions) -> list[str]:
    """Removes the container files that Pyxis unpacked, at the end; the batch script adds names. Empty under another runtime."""
    if decisions.job.container.runtime != "pyxis":
        return []
    run = decisions.paths.run
    step = start_helper("kit-container", decisions.every_node, f"{run.logs}/container.log")
    return [*step, *(["--no-kill"] if decisions.job.retry.spares else []), f"{run.bin}/container.sh"]


def shell_step(decisions: Decisions) -> list[str]:
    """An interactive shell: one task on one node, which shares the job's resources there."""
    srun = ["srun", "--pty", "--overlap", "--mem=0", "--nodes=1", "--ntasks=1", "--mpi=none", "--export=ALL"]
    inside, main = decisions.paths.inside, decisions.main
    return contain(decisions, main, srun, f"{inside.run}/bin/shell.sh", inside.workdir, *filter(None, [main.folder]))


def shell_checks(decisions: Decisions) -> list[list[str]]:
    """Steps that must succeed on every node before a shell is opened in the container: copying images, checking digests."""
    if not decisions.runtime.containerized:
        return []
    stage = stage_step(decisions)
    check = start_helper("kit-preflight", decisions.every_node, None)
    check += [f"{decisions.paths.run.bin}/preflight.sh", *_checks_of_container(decisions)]
    return [*([stage] if stage else []), check]


def contain(decisions: Decisions, placed: RolePlacement, srun: list[str], *command: str) -> list[str]:
    """A command in the container of a role."""
    container = Container(
        image=decisions.pins.find_pin(placed).image,
        mounts=decisions.paths.mounts,
        workdir=decisions.paths.inside.workdir,
        options=decisions.job.container,
        bin=decisions.paths.run.bin,
        home=decisions.site.home,
    )
    return decisions.runtime.wrap(srun, command, container)


def start_helper(name: str, nodes: int | None, output: str | None) -> list[str]:
    """One task per node that runs beside the training step and takes no memory or CPUs from it (docs/internals/learnt.md#slurm).

    output: None for srun's own.
    """
    return [
        "srun",
        f"--job-name={name}",
        "--overlap",
        "--mem=0",
        *([f"--nodes={nodes}", f"--ntasks={nodes}"] if nodes is not None else []),
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--mpi=none",
        "--export=ALL",
        *([f"--output={output}", "--open-mode=append"] if output is not None else []),
    ]


@dataclass(frozen=True, kw_only=True)
class StepGroup:
    """Steps that follow each other, and differ only in the values of `rows`.

    number: of its first step. last: of its last one. facts, env, argv: words of bash, with the names of columns where steps differ.
    columns: of a row; the first is the step's number.
    """

    number: int
    last: int
    facts: tuple[str, ...]
    env: tuple[str, ...]
    argv: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[str, ...]


@dataclass(frozen=True)
class _Form:
    """A step with marks in place of the values that differ between alike roles."""

    facts: tuple[tuple[str, str], ...]
    env: tuple[str, ...]
    argv: tuple[str, ...]


def step_groups(decisions: Decisions) -> list[StepGroup]:
    """All steps of a run's roles, in order."""
    forms = [(number, placed, _form(decisions, placed)) for number, placed in enumerate(decisions.roles)]
    groups = []
    for form, alike in groupby(forms, key=lambda one: one[2]):
        groups.append(_group(form, [(number, placed) for number, placed, _ in alike]))
    return groups


def _form(decisions: Decisions, placed: RolePlacement) -> _Form:
    general = replace(placed, name=_mark("name"))
    facts = {**general.facts(), "variable": _mark("variable"), "first": _mark("first")}
    names = [pair.partition("=")[0] for pair in placed.env()]
    env = [f"{n}={_mark(_OWN_ENV[n])}" if n in _OWN_ENV else pair for n, pair in zip(names, placed.env(), strict=True)]
    return _Form(
        facts=tuple((name, str(value)) for name, value in facts.items()),
        env=tuple(env),
        argv=tuple(role_step(decisions, general)),
    )


def _group(form: _Form, alike: Sequence[tuple[int, RolePlacement]]) -> StepGroup:
    own = [name for pair in form.env if (name := pair.partition("=")[0]) in _OWN_ENV]
    columns = ("number", "name", "first", *(_OWN_ENV[name] for name in own))
    rows = [_row(number, placed, own) for number, placed in alike]
    return StepGroup(
        number=alike[0][0],
        last=alike[-1][0],
        facts=tuple(f"[{name}]={_word(value)}" for name, value in form.facts),
        env=tuple(map(_word, form.env)),
        argv=tuple(map(_word, form.argv)),
        columns=columns,
        rows=tuple(_aligned(rows)),
    )


def _row(number: int, placed: RolePlacement, own: Sequence[str]) -> list[str]:
    env = dict(pair.split("=", 1) for pair in placed.env())
    return [quote(str(value)) for value in (number, placed.name, placed.first, *(env[name] for name in own))]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [" ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _mark(column: str) -> str:
    return f"\0{column}\0"


def _word(text: str) -> str:
    """A text as one word of bash, with a variable for each mark."""
    pieces = _MARK.split(text)
    words = [f'"${{{piece}}}"' if at % 2 else quote(piece) if piece else "" for at, piece in enumerate(pieces)]
    return "".join(words) or "''"
