"""Random faults, one run after the other, under a seed; then what was seen: leaks and wrong codes, both of which must be 0.

    python -m tests.soak --runs 50 --seed 7

The cluster's settings are drawn, too, from those of real sites. pytest does not run this: it runs as long as it is asked to,
and what it draws is another path through the fault matrix each time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit import data_folders, shell
from kit.slurm.embedded import ClusterSize, down, up
from kit.slurm.embedded import accounting as embedded_accounting
from tests.cluster.conftest import project_on
from tests.cluster.lab import Lab
from tests.cluster.test_faults import FAULTS, start


@dataclass(frozen=True)
class Seen:
    """One run: what was done to it, how long after the fault it ended, and what was wrong; empty is right."""

    what: str
    seconds: float
    wrong: str
    leaks: tuple[str, ...]


def main() -> int:
    """0 when nothing leaked and every code was the documented one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    print(f"{asked.runs} runs, seed {asked.seed}", flush=True)
    seen = []
    with laboratory(draw) as lab:
        cells = [
            (name, shape, runtime)
            for name in FAULTS
            for shape in ("srun", "torchrun")
            for runtime in runtimes(lab, shape)
        ]
        for number in range(asked.runs):
            cell, pause = draw.choice(cells), draw.uniform(0, 1.5)
            try:
                one = run(lab, *cell, pause=pause)
            except AssertionError as error:
                said = (str(error).splitlines() or [""])[-1]
                one = Seen(
                    " ".join(cell), 0.0, f"WRONG: it never came to the fault or to its end: {said} ({why(lab)})", ()
                )
                end_all(lab)
            seen.append(one)
            state = "; ".join(filter(None, [one.wrong, *one.leaks])) or "as documented"
            print(f"{number + 1:>4}  {one.what:<46} {one.seconds:5.1f} s  {state}", flush=True)
    wrong, leaks = sum(bool(s.wrong) for s in seen), sum(bool(s.leaks) for s in seen)
    for what, count in sorted(Counter(s.what.split()[0] for s in seen).items()):
        print(f"  {what:<22} {count}")
    print(f"{len(seen)} runs: {leaks} leaks, {wrong} wrong codes (seed {asked.seed})")
    return int(bool(wrong or leaks))


def why(lab: Lab) -> str:
    """What Slurm says of its nodes and of the jobs that it holds."""
    nodes = lab.slurm("sinfo", "--noheader", "--Node", "--format=%N %T %E")
    jobs = lab.slurm("squeue", "--noheader", "--format=%i %T %r %N %S")
    steps = lab.slurm("squeue", "--noheader", "--steps", "--format=%i %j %N")
    return "; ".join(" ".join(text.split()) for text in (nodes, jobs, steps))


def end_all(lab: Lab) -> None:
    """One run that hangs is one wrong run: it does not hold the nodes against the next."""
    lab.slurm("scancel", "--me", check=False)
    end = time.monotonic() + 60
    while lab.slurm("squeue", "--noheader") and time.monotonic() < end:
        time.sleep(0.5)


def runtimes(lab: Lab, shape: str) -> list[str]:
    """Those of this machine that can start ranks in this shape."""
    found = ["bubblewrap"] if shell.which("bwrap") else []
    found += ["pyxis"] if lab.cluster.has_pyxis else []
    found += ["enroot"] if shell.which("enroot") else []
    return [*found, "bare"] if shape == "srun" else found


def run(lab: Lab, name: str, shape: str, runtime: str, *, pause: float) -> Seen:
    """One run with one fault, `pause` seconds after its ranks are up."""
    fault = FAULTS[name]
    options = ["--no-container"] if runtime == "bare" else ["--set", f"container.runtime={runtime}"]
    with scratch("kit-soak-") as tools:
        made = start(lab, fault, [*options, "--set", f"shape={shape}"], tools)
        time.sleep(pause)
        with contextlib.suppress(StopIteration, ProcessLookupError):
            fault.act(lab, made)
        began = time.monotonic()
        job = lab.wait_end(made)
        took = time.monotonic() - began
    code = lab.status(made)["exit_code"]
    got = (job["JobState"], code)
    log = (made / "logs" / "batch.log").read_text(encoding="utf-8")
    wrong = "" if got == (fault.state, fault.code) else f"WRONG: {got}, not {(fault.state, fault.code)}"
    if not wrong and not re.search(fault.says, log):
        wrong = f"WRONG: the log does not name {fault.says!r}"
    return Seen(f"{name} {shape} {runtime}", took, wrong, tuple(f"LEAK: {left}" for left in lab.settled(made)))


@contextlib.contextmanager
def laboratory(draw: random.Random | None = None) -> Iterator[Lab]:
    """A cluster of two nodes and a project on it; with `draw`, one as a site might have it."""
    with scratch("kit-") as folder:
        name = f"kit-soak-{os.getpid()}"
        conf, accounting = site(draw, folder) if draw else ({}, False)
        size = ClusterSize(nodes=2, gpus_per_node=4, placeholder_gpus=True, conf=conf, accounting=accounting)
        try:
            cluster = up(name, size, folder=folder / "cluster")
            project = folder / "project"
            project.mkdir()
            yield project_on(cluster, data_folders.user_data() / "images", project)
        finally:
            down(name, folder=folder / "cluster")


def site(draw: random.Random, folder: Path) -> tuple[dict[str, str], bool]:
    """Lines of slurm.conf, and whether there is accounting: each drawn by itself, as sites combine them."""
    conf = {}
    for key in ("Prolog", "Epilog"):
        if draw.random() < 0.5:
            script = folder / key.lower()
            script.write_text("#!/bin/bash\nexec sleep 1\n", encoding="utf-8")
            script.chmod(0o755)
            conf[key] = str(script)
    # Prologs then run on all nodes before the batch script, and not before a node's first step.
    if "Prolog" in conf and draw.random() < 0.5:
        conf["PrologFlags"] = "Alloc"
    accounting = not embedded_accounting.missing_programs() and draw.random() < 0.5
    print(f"site: {', '.join(conf) or 'no settings'}, {'with' if accounting else 'no'} accounting", flush=True)
    return conf, accounting


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A folder of its own: short, for Slurm's sockets, and open to every user."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
