"""Measures what the kit's own scripts cost a run, against the same work without them, on an embedded cluster of four nodes.

    python -m benchmarks runs [--rounds 15]

Needs Slurm on this machine and the image train-cpu in the store. Pairs run in turn inside one job, so that a machine whose
speed drifts favours neither. The figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks._common import ROOT, Goal, project, report
from kit import data_folders, shell
from kit.images import image_lock
from kit.slurm import client
from kit.slurm.embedded import ClusterSize, EmbeddedCluster, down, up

NAME, NODES = "bench", 4
PROFILE = "embedded = true\n[node]\ncpus = 8\ngpus = 1\n"
JOB = """\
name = "bench"
launcher = "ddp"
script = "program.py"
shape = "srun"
python = "/usr/bin/python3"
[resources]
nodes = 2
gpus_per_node = 1
ranks_per_node = 2
[container]
runtime = "bare"
"""


# One round is one pair: first the bare command, then the kit's. bash measures the times, in seconds.
PAIRS = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=2 --output={out}.log
cd {run}
export KIT_MASTER_ADDR=127.0.0.1 KIT_MASTER_PORT=20000 KIT_RESTART_COUNT=0 KIT_FAILURES=failures-0/train-0
mkdir -p {run}/state/failures-0/train-0
for ((i = 0; i < {rounds}; i++)); do
    for kind in bare kit; do
        if [[ $kind == bare ]]; then words=({bare}); else words=({kit}); fi
        s=$EPOCHREALTIME
        srun --mpi=none --cpus-per-task=2 --ntasks={tasks} --nodes=2 --output=/dev/null "${{words[@]}}" || exit 1
        printf '%s %s\\n' "$kind" "$(bc <<<"$EPOCHREALTIME - $s")" >>{out}
    done
done
"""

DIES_ONCE = """\
import os, pathlib, signal, time
run, attempt = pathlib.Path(os.environ["KIT_RUN_DIR"]), os.environ["KIT_RESTART_COUNT"]
if os.environ["RANK"] == "1":
    (run / f"time-{attempt}").write_text(str(time.time()))
    if attempt == "0":
        os.kill(os.getpid(), signal.SIGKILL)
time.sleep(2)
"""

# Repeats a fixed piece of arithmetic for some seconds. A monitor could slow down the median piece.
STEPS = """\
import statistics, sys, time
def step():
    began = time.perf_counter()
    sum(i * i for i in range(200_000))
    return time.perf_counter() - began
end = time.time() + 3
times = []
while time.time() < end:
    times.append(step())
print(sys.argv[1], statistics.median(times))
"""

# One round is again one pair, and either of the two may be first. The monitor and the heartbeat are those of the run.
MONITORED = """\
#!/bin/bash
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=2 --output={out}.log
KIT_RUN_DIR={run}
source {run}/lib/log.sh
source {run}/lib/loops.sh
source {run}/lib/heartbeat.sh
KIT_HEARTBEAT=1
for ((i = 0; i < {rounds}; i++)); do
    kinds=(bare kit)
    ((i % 2)) && kinds=(kit bare)
    for kind in "${{kinds[@]}}"; do
        if [[ $kind == kit ]]; then
            heartbeat::before_ranks
            {monitor} &
            sleep 2
        fi
        srun --overlap --mem=0 --ntasks=1 --cpus-per-task=1 --mpi=none python3 {steps} "$kind" >>{out} || exit 1
        if [[ $kind == kit ]]; then
            heartbeat::stopped
            scancel "$(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format='%i %j' | awk '/ kit-monitor$/ {{ print $1 }}')"
            wait
        fi
    done
done
"""

MONITOR = '#!/bin/bash\ncase "$1" in --list-gpus) echo "GPU 0: x";; dmon) while true; do echo "0 1 2 3"; sleep 1; done;; esac\n'


class Bench:
    """A project on the benchmark's cluster."""

    def __init__(self, cluster: EmbeddedCluster, project: Path, rounds: int) -> None:
        self.cluster, self.project, self.rounds = cluster, project, rounds
        self.env = client.environment(cluster.env())

    def submit(self, program: str, *sets: str, env: dict[str, str] | None = None) -> Path:
        """Run a program as a job on the nodes themselves, and return its run folder. ToolError when it fails."""
        (self.project / "program.py").write_text(program)
        words = [word for text in sets for word in ("--set", text)]
        argv = [sys.executable, "-m", "kit", "submit", "--cluster", NAME, "--wait", *words]
        return Path(shell.run(argv, cwd=self.project, env={**self.env, **(env or {})}).stdout.splitlines()[0])

    def pairs(self, run: Path, *, bare: str, kit: str, tasks: int) -> dict[str, list[float]]:
        """Seconds of srun around two commands, which run in turn."""
        return self.measured(PAIRS, run=run, bare=bare, kit=kit, tasks=tasks)

    def measured(self, script: str, **words: object) -> dict[str, list[float]]:
        """Run a batch script that writes `bare FIGURE` and `kit FIGURE` lines to `{out}`."""
        out, path = self.project / "pairs", self.project / "pairs.sh"
        out.unlink(missing_ok=True)
        path.write_text(script.format(out=out, rounds=self.rounds, **words))
        shell.run(["sbatch", "--wait", str(path)], env=self.env)
        found: dict[str, list[float]] = {"bare": [], "kit": []}
        for line in out.read_text().splitlines():
            kind, figure = line.split()
            found[kind].append(float(figure))
        return found


def main(arguments: Sequence[str]) -> int:
    """Print the table. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks runs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    with bench(options.rounds) as on:
        goals = [*prologue(on), *restart(on), *monitors(on), *preflight(on)]
    return report(goals)


@contextmanager
def bench(rounds: int) -> Iterator[Bench]:
    """The cluster, and a project whose job asks for two ranks on each of two nodes."""
    with project(NAME, PROFILE, JOB) as folder:
        try:
            yield Bench(up(NAME, ClusterSize(nodes=NODES, gpus_per_node=1, placeholder_gpus=True)), folder, rounds)
        finally:
            down(NAME)


def prologue(on: Bench) -> list[Goal]:
    """Compare worker.sh and rank.sh around `true` with `true`, and the container around `true` with mount and chroot."""
    run = on.submit("")
    (run / "program.sh").write_text("readonly -a KIT_PROGRAM=(true)\nreadonly -a KIT_PROGRAM_ENV=()\n")
    ranks = on.pairs(run, bare="true", kit=f"{run}/worker.sh", tasks=4)
    added = statistics.median(b - a for a, b in zip(ranks["bare"], ranks["kit"], strict=True))
    locked = image_lock.read_lock(ROOT / "containers/train-cpu/image.lock")
    image = data_folders.user_data() / "images/sha256" / f"{locked.sha256}.sqsh"
    floor = on.project / "floor.sh"
    floor.write_text(
        '#!/bin/bash\n[[ -n "$1" ]] || exec unshare --mount --propagation private "$0" in\n'
        f"mount -t squashfs -o loop,ro {image} /mnt && exec chroot /mnt true\n"
    )
    floor.chmod(0o755)
    inside = f"{run}/bin/bubblewrap.sh --image={image} --workdir=/ --remap-root --mount {run} /kit/run rw -- /bin/true"
    started = on.pairs(run, bare=str(floor), kit=inside, tasks=2)
    over = statistics.median(b - a for a, b in zip(started["bare"], started["kit"], strict=True))
    return [
        Goal(name="worker prologue a rank, beyond bare srun", value=1000 * added, bound=30, unit="ms"),
        Goal(name="container start (bubblewrap), beyond mount + chroot", value=1000 * over, bound=200, unit="ms"),
    ]


def restart(on: Bench) -> list[Goal]:
    """Seconds from the kill of a rank to the start of its successor."""
    took = []
    for _ in range(5):
        run = on.submit(DIES_ONCE, "retry.in_allocation=1")
        died, came = (float((run / f"time-{attempt}").read_text()) for attempt in (0, 1))
        took.append(came - died)
    return [Goal(name="rank death to restarted rank", value=statistics.median(took), bound=1.0, unit="s")]


def monitors(on: Bench) -> list[Goal]:
    """The median step with the monitors, divided by the median step without, in pairs of one job."""
    tool = on.project / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(MONITOR)
    tool.chmod(0o755)
    run = on.submit("", "resources.nodes=1", "resources.ranks_per_node=1")
    steps = on.project / "steps.py"
    steps.write_text(STEPS)
    words = [f"PATH={tool.parent}:$PATH", "srun", "--job-name=kit-monitor", "--overlap", "--mem=0", "--ntasks=1"]
    words += ["--mpi=none", f"{run}/bin/gpu-monitor.sh", f"{run}/monitor", "pumt", "DT", "1"]
    took = on.measured(MONITORED, run=run, steps=steps, monitor=" ".join(words))
    ratio = statistics.median(b / a for a, b in zip(took["bare"], took["kit"], strict=True))
    return [Goal(name="step beside the monitors / without, paired", value=ratio, bound=1.005, unit="")]


def preflight(on: Bench) -> list[Goal]:
    """Seconds from the start of the batch script to the first attempt, on four nodes, with the container probe."""
    sets = ("resources.nodes=4", "image=train-cpu", "container.runtime=bubblewrap", "python=python3")
    took = []
    for _ in range(3):
        run = on.submit("", *sets)
        events = [json.loads(line) for line in (run / "state/events.jsonl").read_text().splitlines()]
        at = {e["event"]: float(e["epoch"]) for e in events}
        took.append(at["attempt"] - at["start"])
    return [Goal(name="preflight on 4 nodes", value=statistics.median(took), bound=2.0, unit="s")]
