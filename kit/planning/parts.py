"""Parts of a run: features with files of their own, which are in a run only if a key of its job asks for them.

The batch script has the functions of the parts in KIT_PARTS, and calls them by phase (templates/lib/parts.sh). A new part is an
entry of PARTS, and its files in templates/.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from kit.planning import site_shell, steps
from kit.planning.decisions import Decisions
from kit.render import absent_names, library_names, plain, program_names, stand_in


@dataclass(frozen=True, kw_only=True)
class Part:
    """A feature of a run.

    name: that of its functions, and of lib/NAME.sh where it has phases. asked_by: the key of the job that asks for the part, as a
    word for the head of the batch script; None where no key does. files: names in templates/, all of which only the part needs.
    phases: whether the batch script calls it.
    """

    name: str
    asked_by: Callable[[Decisions], str | None]
    files: tuple[str, ...]
    phases: bool = True


def parts_of(made: Decisions) -> tuple[Part, ...]:
    """The parts of this run, in the order in which the batch script calls them."""
    return tuple(part for part in PARTS if made.resolved.template is not None or part.asked_by(made) is not None)


def called_parts(made: Decisions) -> list[tuple[str, str]]:
    """The parts that the batch script calls, each with the key that asked for it."""
    return [(part.name, key) for part in PARTS if part.phases and (key := part.asked_by(made)) is not None]


def file_names(made: Decisions) -> tuple[str, ...]:
    """Names in templates/ of the programs and libraries of this run, sorted by folder.

    A batch script from the user's own template may call anything, so its run has the files of all parts.
    """
    unused = {name for part in PARTS for name in part.files}
    unused -= {name for part in parts_of(made) for name in part.files}
    return tuple(name for name in (*program_names(), *library_names()) if name not in unused)


def texts(made: Decisions) -> dict[str, str]:
    """Name -> text of all files in the run's bin/ and lib/, with the stand-ins for modules that this run does not have."""
    found = {name: plain(name) for name in file_names(made)}
    found |= {f"lib/site/{part.name}.sh": part.text for part in made.resolved.site_parts}
    absent = {f"lib/{name}": stand_in(name) for name in absent_names()}
    return found | {name: text for name, text in absent.items() if name not in found}


def code_digest(made: Decisions) -> str:
    """The sha256 of the run's bin/ and lib/, as batch.sh computes it: of sha256sum's output for their files, sorted by name."""
    lines = (f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n" for name, text in sorted(texts(made).items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _image_chain(made: Decisions) -> str | None:
    return "image.stage" if steps.image_chain(made) else None


def _hot_pages(made: Decisions) -> str | None:
    # Which of several images a process has is not known.
    pins = made.pins.distinct
    return "image" if len(pins) == 1 and pins[0].image.startswith("/") and pins[0].digest else None


def _warm_ranks(made: Decisions) -> str | None:
    return "retry.warm" if made.job.retry.warm else None


def _memory_checkpoints(made: Decisions) -> str | None:
    return "checkpoint.memory_every" if made.job.checkpoint.memory_every else None


def _once(made: Decisions) -> str | None:
    return next((f"{table}.lines" for table in made.job.lines), None)


def _notices(made: Decisions) -> str | None:
    return "notify" if made.job.notify.by == "batch" and made.job.notify.on else None


def _staging(made: Decisions) -> str | None:
    return "image.stage" if steps.stage_step(made) else None


def _preflight(made: Decisions) -> str | None:
    return "preflight" if steps.preflight_step(made) else None


def _monitor(made: Decisions) -> str | None:
    # memory.sh removes the reports of killed ranks, too.
    return "monitor" if made.job.monitor.enabled or made.job.checkpoint.memory_every else None


def _observed_ranks(made: Decisions) -> str | None:
    # Most runs have no [watch]: what their programs report, and Slurm, is enough for them.
    return "watch" if made.job.is_watched and made.job.monitor.enabled else None


def _all_reduce(made: Decisions) -> str | None:
    return "preflight.all_reduce_s" if made.job.preflight.all_reduce_s else None


def _ready(made: Decisions) -> str | None:
    return "roles" if any(placed.role.ready for placed in made.roles) else None


def _chain(made: Decisions) -> str | None:
    return "chain" if made.job.chain else None


def _torchrun_rank(made: Decisions) -> str | None:
    return "torchrun" if made.job.torchrun.options() else None


def _rotate(made: Decisions) -> str | None:
    return "rerun --rotate" if made.site.node_order else None


def _site_parts(made: Decisions) -> str | None:
    return f"parts.folder of cluster {made.resolved.cluster_name}" if made.resolved.site_parts else None


def _container(made: Decisions) -> str | None:
    return "container.runtime" if made.runtime.containerized else None


def _runtime(*names: str) -> Callable[[Decisions], str | None]:
    return lambda made: "container.runtime" if made.job.container.runtime in names else None


PARTS = (
    Part(name="notices", asked_by=_notices, files=("lib/notices.sh",)),
    Part(
        name="image_chain",
        asked_by=_image_chain,
        files=(
            "lib/image_chain.sh",
            *(
                f"lib/image_{name}.py"
                for name in ("blocks", "chain", "coordinator", "node", "orders", "sender", "share", "taker")
            ),
        ),
    ),
    Part(name="once", asked_by=_once, files=("bin/once.sh", "lib/once.sh")),
    Part(
        name="warm_ranks",
        asked_by=_warm_ranks,
        files=(
            "lib/warm_ranks.sh",
            "lib/kit_keep.py",
            *(
                f"lib/warm_{name}.py"
                for name in ("child", "client", "held", "imports", "meeting", "program", "ranks", "request")
            ),
        ),
    ),
    Part(
        name="memory_checkpoints",
        asked_by=_memory_checkpoints,
        files=(
            "bin/memory.sh",
            "lib/memory_checkpoints.sh",
            *(f"lib/kit_memory{name}.py" for name in ("", "_files", "_state", "_transfer")),
        ),
    ),
    Part(
        name="hot_pages",
        asked_by=_hot_pages,
        files=("bin/read-ahead.sh", "lib/hot_pages.sh", "lib/hot_pages.py", "lib/squashfs_image.py"),
    ),
    Part(
        name="observed_ranks",
        asked_by=_observed_ranks,
        files=(
            "bin/sample-ranks.sh",
            "lib/observed_ranks.sh",
            "lib/rank_samples.awk",
            "lib/recorder_variables.sh",
        ),
    ),
    Part(name="site_parts", asked_by=_site_parts, files=("lib/site_parts.sh",)),
    Part(name="staging", asked_by=_staging, files=("bin/stage.sh",), phases=False),
    Part(name="preflight", asked_by=_preflight, files=("bin/preflight.sh", "bin/probe.sh"), phases=False),
    Part(name="monitor", asked_by=_monitor, files=("bin/gpu-monitor.sh", "lib/rank_progress.sh"), phases=False),
    Part(name="all_reduce", asked_by=_all_reduce, files=("bin/all_reduce.py",), phases=False),
    Part(name="ready", asked_by=_ready, files=("bin/ready.sh",), phases=False),
    Part(name="chain", asked_by=_chain, files=("lib/chain.sh",), phases=False),
    Part(name="rotate", asked_by=_rotate, files=("lib/rank_numbers.py",), phases=False),
    Part(name="torchrun_rank", asked_by=_torchrun_rank, files=("bin/torchrun-rank.sh",), phases=False),
    Part(name="site_shell", asked_by=site_shell.asked_by, files=("lib/site_shell.sh",), phases=False),
    Part(name="image_mount", asked_by=_container, files=("lib/image_mount.sh",), phases=False),
    Part(
        name="fuse_daemon",
        asked_by=_runtime("pyxis", "enroot"),
        files=("lib/fuse_daemon.sh", "lib/fuse_path.sh", "bin/fuse/fuse-overlayfs", "bin/fuse/squashfuse"),
        phases=False,
    ),
    Part(name="bubblewrap", asked_by=_runtime("bubblewrap"), files=("bin/bubblewrap.sh",), phases=False),
    Part(name="enroot", asked_by=_runtime("enroot"), files=("bin/enroot.sh", "bin/enroot-rc.sh"), phases=False),
    Part(name="pyxis", asked_by=_runtime("pyxis"), files=("bin/container.sh",), phases=False),
)
