"""Compares the forecast of `kit submit` with the runs that follow: memory of a rank, seconds from start to end, checkpoint bytes.

    python -m benchmarks forecast [--python .train-venv/bin/python] [--shapes 20]

Twenty trainings of the kit's own GPT programs run on an embedded cluster without a container. Their shapes differ from those that
the arithmetic's constants come from. Each runs twice: first with few steps, with its memory forecast by arithmetic alone, then with
more steps, with its time forecast from the first run. A model that cannot fit is refused, and one that may not fit causes a
warning. Needs Slurm and a python with torch. The time is forecast as a figure where the steps of the first run were steady, else as
a span. The table shows how many of each there are, how far off the figures are, and how many spans hold. On a busy machine, most
are spans.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks._common import ROOT, Goal, project, report
from kit.errors import ConfigError
from kit.forecast import submit_forecast
from kit.hosts import status
from kit.record import metrics as reported
from kit.record import run_facts
from kit.slurm import embedded
from kit.submission import prepare_run, submit
from kit.submission.catch_up import queue
from kit.submission.prepare_run import Prepared

_NAME = "forecast"
_FEW, _MORE = 10, 20
_JOB = """
name = "{name}"
launcher = "{launcher}"
{script}
python = "{python}"
args = {args}
[resources]
nodes = 1
ranks_per_node = {ranks}
cpus_per_node = {ranks}
[checkpoint]
every = 10
"""
# launcher, ranks, layers, width, heads, context, sequences per step, more options.
_SHAPES: list[tuple[str, int, int, int, int, int, int, tuple[str, ...]]] = [
    ("ddp", 1, 2, 64, 2, 64, 4, ()),
    ("ddp", 1, 5, 96, 3, 128, 16, ()),
    ("ddp", 1, 10, 96, 4, 192, 12, ()),
    ("ddp", 1, 3, 192, 6, 256, 12, ()),
    ("ddp", 1, 6, 320, 5, 96, 6, ()),
    ("ddp", 1, 2, 640, 10, 64, 4, ()),
    ("ddp", 1, 5, 576, 8, 32, 2, ()),
    ("ddp", 1, 12, 448, 7, 32, 2, ()),
    ("ddp", 1, 7, 128, 4, 512, 8, ()),
    ("ddp", 1, 3, 128, 4, 256, 48, ("--accumulate", "2")),
    ("ddp", 1, 6, 192, 4, 256, 8, ("--precision", "bf16")),
    ("ddp", 2, 4, 160, 4, 256, 16, ()),
    ("ddp", 2, 3, 448, 8, 64, 4, ()),
    ("ddp", 2, 9, 128, 4, 128, 16, ()),
    ("fsdp", 1, 4, 192, 4, 256, 12, ()),
    ("fsdp", 1, 6, 512, 8, 32, 2, ()),
    ("fsdp", 2, 8, 448, 8, 32, 4, ()),
    ("fsdp", 2, 5, 160, 4, 256, 16, ()),
    ("fsdp", 2, 4, 768, 12, 32, 2, ()),
    ("fsdp", 1, 6, 192, 4, 256, 12, ("--recompute",)),
]
_CLUSTER = "embedded = true\n[node]\ncpus = 8\n"


def main(options: Sequence[str]) -> int:
    """Return 1 when a figure is more than 10 % off, or a job that cannot fit is submitted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", type=Path, default=ROOT / ".train-venv/bin/python")
    parser.add_argument("--shapes", type=int, default=len(_SHAPES))
    asked = parser.parse_args(options)
    found: list[_Off] = []
    embedded.up(
        _NAME, embedded.ClusterSize(nodes=1, gpus_per_node=0, cpus_per_node=8), pyxis="none", say=lambda _: None
    )
    try:
        with project(_NAME, _CLUSTER) as folder:
            print("| training | memory, MB | time, s | checkpoint, MB |\n|---|---|---|---|")
            for number, shape in enumerate(_SHAPES[: asked.shapes]):
                found.append(_compare(folder, f"shape-{number}", shape, asked.python))
            refused = _refused(folder, asked.python)
    finally:
        embedded.down(_NAME)
    figures, spans = (
        [one.time for one in found if one.span_held is None],
        [one for one in found if one.span_held is not None],
    )
    columns = {"memory": [one.memory for one in found], "checkpoint": [one.checkpoint for one in found]}
    if figures:
        columns["time, where a figure was given"] = figures
    goals = []
    for name, column in columns.items():
        goals.append(Goal(name=f"{name}, median off by", value=100 * median(column), unit="%"))
        goals.append(Goal(name=f"{name}, most off by", value=100 * max(column), unit="%", bound=10))
    goals.append(Goal(name="times with a figure", value=len(figures)))
    goals.append(Goal(name="times with a span", value=len(spans)))
    goals.append(Goal(name="spans that held", value=sum(one.span_held is True for one in spans)))
    goals.append(Goal(name="overfull: refused, warned of", value=refused, bound=2, at_least=True))
    return report(goals)


@dataclass(frozen=True, kw_only=True)
class _Off:
    """Relative errors of the forecast. span_held: whether the time was within the forecast span; None where it was a figure."""

    memory: float
    time: float
    checkpoint: float
    span_held: bool | None


def _compare(
    folder: Path, name: str, shape: tuple[str, int, int, int, int, int, int, tuple[str, ...]], python: Path
) -> _Off:
    """Relative errors of memory, time and checkpoint size."""
    first = _prepared(folder, name, shape, python, _FEW)
    by_arithmetic = submit_forecast.look(first).fit
    _run(first)
    second = _prepared(folder, name, shape, python, _MORE)
    seen = submit_forecast.look(second)
    run_dir = _run(second)
    memory = max(int(one["memory_bytes"]) for one in reported.records(run_dir) if one.get("kind") == "step")
    took = _took(run_dir)
    saved = sum(
        path.stat().st_size for path in (run_dir / "checkpoints" / "step-00000020").rglob("*") if path.is_file()
    )
    assert by_arithmetic
    assert seen.duration
    assert seen.checkpoint
    forecast = (by_arithmetic.rank, seen.duration.whole, seen.checkpoint)
    off = [abs(told / was - 1) for told, was in zip(forecast, (memory, took, saved), strict=True)]
    cells = (
        f"{told / unit:,.0f} : {was / unit:,.0f}, {100 * (told / was - 1):+.1f} %"
        for told, was, unit in zip(forecast, (memory, took, saved), (1e6, 1, 1e6), strict=True)
    )
    launcher, ranks, layers, dim, _, context, batch, more = shape
    words = f"{launcher}, {ranks} x {layers} layers of {dim}, {batch} x {context} tokens {' '.join(more)}"
    between = seen.duration.between
    span = f" ({between[0]:,.0f} to {between[1]:,.0f})" if between else ""
    print(f"| {words} | {' | '.join(cells)} |{span}", flush=True)
    held = between[0] <= took <= between[1] if between else None
    return _Off(memory=off[0], time=off[1], checkpoint=off[2], span_held=held)


def _prepared(
    folder: Path,
    name: str,
    shape: tuple[str, int, int, int, int, int, int, tuple[str, ...]],
    python: Path,
    steps: int,
) -> Prepared:
    launcher, ranks, layers, dim, heads, context, batch, more = shape
    values: Mapping[str, object] = {
        "layers": layers, "dim": dim, "heads": heads, "context": context, "batch-size": batch, "steps": steps,
        "test-windows": 8, "log-every": 1,
    }  # fmt: skip
    words = [word for key, value in values.items() for word in (f"--{key}", str(value))]
    args = [*words, *more]
    script = 'script = "/kit/run/code/train_gpt.py"' if launcher == "ddp" else ""
    path = folder / f"{name}.toml"
    path.write_text(_JOB.format(name=name, launcher=launcher, script=script, python=python, args=args, ranks=ranks))
    return prepare_run.prepare_job(path, cluster=_NAME, overrides=[], containers=False)


def _run(ready: Prepared) -> Path:
    submit.submit(ready)
    ended = status.wait(ready.plan.run_dir, queue=queue(), on_poll=lambda _: None)
    if ended.state != "COMPLETED":
        raise SystemExit(
            f"{ready.plan.run_dir}: {ended.state}\n{(ready.plan.run_dir / 'logs/rank-0.log').read_text()[-2000:]}"
        )
    return ready.plan.run_dir


def _took(run_dir: Path) -> float:
    """Seconds from the start of the batch script to its end."""
    at = {str(one["event"]): float(str(one["epoch"])) for one in run_facts.events(run_dir)}
    return at["end"] - at["start"]


def _refused(folder: Path, python: Path) -> float:
    """How many of two jobs that are too large are found: one that cannot fit, and one that may not fit."""
    limit = "resources.memory='2000M'"
    found = 0
    for shape, certain in ((("ddp", 2, 24, 1024, 16, 64, 2, ()), True), (("ddp", 1, 8, 256, 4, 512, 16, ()), False)):
        ready = _prepared(folder, "overfull", shape, python, _FEW)
        ready = prepare_run.prepare_job(ready.job_file, cluster=_NAME, overrides=[limit], containers=False)
        seen = submit_forecast.look(ready)
        try:
            submit_forecast.refuse(seen)
            found += not certain and len(submit_forecast.warnings(seen)) > 0
        except ConfigError as error:
            print(error.message, file=sys.stderr)
            found += certain
    return float(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
