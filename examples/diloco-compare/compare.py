"""Compares DDP, DiLoCo and MuLoCo at the same tokens, over links of several speeds: one table and one plot.

    kit cluster up --nodes 2 --gpus-per-node 2       as root: the nodes then have their own links
    python examples/diloco-compare/compare.py --rates none 1gbit 100mbit -o docs/diloco-compare

The programs are the points of job.toml next to this file. Bytes are those that left the nodes' interfaces while the job
ran. A step's time is measured from the first record of a run to its last, so that it leaves out the start. The results
are kept in PATH.jsonl. Called again, the program continues there, and runs only what job.toml has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kit import Job, submit
from kit.api import Run
from kit.config import merge
from kit.errors import RunError, SlurmError
from kit.slurm import embedded
from kit.slurm.embedded import node_links

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run. job: digest of its settings. sent: bytes over the links. step_s: seconds of an inner step."""

    program: str
    rate: str
    job: str
    seed: int
    steps: int
    test_loss: float
    sent: int
    step_s: float


def main(arguments: Sequence[str]) -> int:
    """Run all programs, one after another. Prints the table and writes the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default="local")
    parser.add_argument("--rates", nargs="+", default=["none", "1gbit", "100mbit"], help="as tc(8) writes them")
    parser.add_argument("--steps", type=int, help="inner steps of each run; default: those of job.toml")
    parser.add_argument(
        "--limited-steps", type=int, default=120, help="of runs on a limited link, which say a step's time"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[2])
    parser.add_argument("-o", "--output", type=Path, default=Path("diloco-compare"), help="PATH.jsonl and PATH.svg")
    asked = parser.parse_args(arguments)
    cluster = embedded.find(asked.cluster)
    if cluster is None or not cluster.isolated:
        raise SlurmError(f"no cluster {asked.cluster!r} whose nodes have links", hint="as root: kit cluster up")
    written = tomllib.loads((HERE / "job.toml").read_text(encoding="utf-8"))
    points: dict[str, Any] = written.pop("sweep")["points"]
    log = asked.output.with_suffix(".jsonl")
    known = [Measured(**json.loads(line)) for line in log.read_text().splitlines()] if log.exists() else []
    found = []
    try:
        for rate in asked.rates:
            node_links.limit(cluster, None if rate == "none" else rate)
            steps, seeds = (asked.steps, asked.seeds) if rate == "none" else (asked.limited_steps, asked.seeds[:1])
            for seed in seeds:
                for name, keys in points.items():
                    job = job_of(written, keys, seed, steps)
                    like = (name, rate, digest(job))
                    one = next((one for one in known if (one.program, one.rate, one.job) == like), None)
                    found.append(one or measured(cluster, name, job, rate, log))
    finally:
        node_links.limit(cluster, None)
    print(table(found))
    draw(found, asked.output.with_suffix(".svg"))
    return 0


def job_of(written: Mapping[str, Any], keys: Mapping[str, Any], seed: int, steps: int | None) -> Job:
    """A point of the sweep as a separate job."""
    options = dict(keys["args"]) | ({"--steps": steps} if steps else {})
    args = [*written["args"], *(str(word) for pair in options.items() for word in pair)]
    rest = {key: value for key, value in keys.items() if key != "args"}
    return Job.model_validate(merge(written, {**rest, "args": args, "seed": seed}))


def digest(job: Job) -> str:
    """A digest of all settings of the job."""
    return hashlib.sha256(job.model_dump_json().encode()).hexdigest()[:12]


def measured(cluster: embedded.EmbeddedCluster, name: str, job: Job, rate: str, log: Path) -> Measured:
    """Run a job to its end, and append its results to the log."""
    before = node_links.sent(cluster)
    run = submit(job, cluster=cluster.name, folder=HERE)
    status = run.wait()
    if status.exit_code != 0:
        raise RunError(f"{name}: {status.state}", hint=f"kit logs {run.folder.name}")
    final = run.metrics()
    steps = int(final["step"])
    one = Measured(
        program=name,
        rate=rate,
        job=digest(job),
        seed=job.seed or 0,
        steps=steps,
        test_loss=final["test_loss"],
        sent=node_links.sent(cluster) - before,
        step_s=seconds_of_a_step(run),
    )
    with log.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(asdict(one)) + "\n")
    print(one, file=sys.stderr, flush=True)
    return one


def seconds_of_a_step(run: Run) -> float:
    """Seconds of a step, from the first record of a step to the last one."""
    steps = [
        (int(str(r["step"])), datetime.fromisoformat(str(r["time"]))) for r in run.records() if r["kind"] == "step"
    ]
    (first, began), (last, ended) = min(steps), max(steps)
    return (ended - began).total_seconds() / (last - first)


def table(found: Sequence[Measured]) -> str:
    """The table in Markdown, one row for each program."""
    rates = list(dict.fromkeys(one.rate for one in found))
    baseline = next(one.program for one in found)
    heads = ["program", "test loss", f"over {baseline}", "MB sent", f"{baseline} / this"]
    heads += ["ms per step" if rate == "none" else f"ms per step, {rate}" for rate in rates]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    whole = {name: [one for one in found if (one.program, one.rate) == (name, rates[0])] for name in programs(found)}
    base_loss = statistics.mean(one.test_loss for one in whole[baseline])
    base_sent = statistics.mean(one.sent for one in whole[baseline])
    for name, runs in whole.items():
        losses = [one.test_loss for one in runs]
        loss, sent = statistics.mean(losses), statistics.mean(one.sent for one in runs)
        spread = f" ± {statistics.stdev(losses):.4f}" if len(losses) > 1 else ""
        cells = [
            name,
            f"{loss:.4f}{spread}",
            f"{loss / base_loss - 1:+.2%}",
            f"{sent / 1e6:.1f}",
            f"{base_sent / sent:.1f}",
        ]
        for rate in rates:
            times = [one.step_s for one in found if (one.program, one.rate) == (name, rate)]
            cells.append(f"{1000 * statistics.median(times):.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(found: Sequence[Measured], path: Path) -> None:
    """Plot loss against bytes sent, and the time of a step at each speed of the links."""
    from matplotlib import rc_context  # noqa: PLC0415 - a table alone needs no plots
    from matplotlib.figure import Figure  # noqa: PLC0415

    rates = list(dict.fromkeys(one.rate for one in found))
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    loss, time = figure.subplots(1, 2)
    for number, name in enumerate(programs(found)):
        runs = [one for one in found if (one.program, one.rate) == (name, rates[0])]
        loss.plot([one.sent / 1e6 for one in runs], [one.test_loss for one in runs], "o", label=name)
        medians = [
            1000 * statistics.median(one.step_s for one in found if (one.program, one.rate) == (name, rate))
            for rate in rates
        ]
        time.bar([place + 0.2 * number for place in range(len(rates))], medians, width=0.2, label=name)
    loss.set(
        title="Test loss and traffic at the same tokens",
        xlabel="MB sent over the links",
        ylabel="test loss",
        xscale="log",
    )
    time.set(title="Time of an inner step", xlabel="speed of the links", ylabel="ms per step")
    time.set_xticks([place + 0.1 * (len(programs(found)) - 1) for place in range(len(rates))], rates)
    for axes in (loss, time):
        axes.grid(alpha=0.3)
    # Below both plots, where it hides no point. Both plots use the same colours.
    figure.legend(*loss.get_legend_handles_labels(), loc="outside lower center", ncols=len(programs(found)))
    with rc_context({"svg.hashsalt": "kit"}):
        figure.savefig(path, metadata={"Date": None})


def programs(found: Sequence[Measured]) -> list[str]:
    """The names of the programs, in the order of job.toml."""
    return list(dict.fromkeys(one.program for one in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
