"""Measures many jobs at once, and one job from the command line: the kit against sbatch, submitit, torchx and NeMo-Run.

    python -m benchmarks sweeps [--rounds 5] [--jobs 200] [--points 1000] [--many 10000]

Needs Slurm on this machine. submitit, torchx and NeMo-Run come from benchmarks/requirements*.txt into venvs of their own. All
jobs are submitted held and then cancelled, so nothing runs. The tools run in turn, and the figures are medians of whole processes.
"""

from __future__ import annotations

import argparse
import compileall
import getpass
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks._common import ROOT, Goal, project, report
from benchmarks.large import cost
from kit import shell
from kit.slurm import client
from kit.slurm.embedded import ClusterSize, down, up
from kit.sweeps import prepare

PEERS, NEMO_RUNS = ROOT / ".bench-venv", ROOT / ".bench-nemo-run"
NAME = "bench-sweeps"
TIMEOUT_S = 600


JOB = """\
name = "bench"
launcher = "ddp"
script = "train.py"
[resources]
nodes = 1
gpus_per_node = 0
time = "00:10:00"
[slurm]
extra = ["--hold"]
"""

# submitit's loop and its array. Both pickle the call, write a script and run sbatch. The whole process is timed.
SUBMITIT = """\
import sys, submitit
def point(seed):
    return seed
executor = submitit.SlurmExecutor(folder=sys.argv[2])
executor.update_parameters(
    job_name="bench", time=10, nodes=1, ntasks_per_node=1, use_srun=False, additional_parameters={"hold": True}
)
if sys.argv[1] == "array":
    executor.map_array(point, list(range(int(sys.argv[3]))))
else:
    for seed in range(int(sys.argv[3])):
        executor.submit(point, seed)
"""

# The script that submitit would give to sbatch for one job. It has no command line, so this is the shortest program that prints it.
SUBMITIT_DRY = """\
import submitit
executor = submitit.SlurmExecutor(folder="logs")
executor.update_parameters(job_name="bench", time=10, nodes=2, ntasks_per_node=2)
print(executor._make_submission_file_text("python3 train.py", "1"))
"""

# NeMo-Run's guide of its Slurm executor, on the login node. Its dry run prints the script.
NEMO_RUN = """\
import nemo_run as run
executor = run.SlurmExecutor(
    account="bench", partition="bench", nodes=2, ntasks_per_node=2, time="00:10:00", packager=run.Packager(),
    tunnel=run.LocalTunnel(job_dir="nemo-run"),
)
with run.Experiment("bench") as experiment:
    experiment.add(run.Script("train.py", entrypoint="python3"), executor=executor, name="bench")
    experiment.dryrun()
"""

TORCHX_JOB = ("dist.ddp", "-j", "2x2", "--script", "train.py")

LOOP = '#!/bin/bash\nfor ((i = 0; i < $1; i++)); do sbatch --parsable --hold "$2" "$i" || exit 1; done\n'
SCRIPT = (
    "#!/bin/bash\n#SBATCH --job-name=bench --nodes=1 --time=10 --output=/dev/null\nexec python3 train.py --seed $1\n"
)


def main(arguments: Sequence[str]) -> int:
    """Print the tables. Returns 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks sweeps", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--many", type=int, default=10_000)
    options = parser.parse_args(arguments)
    install_peers()
    # An installed package has its bytecode. The checkout of a user who forbids writing bytecode has none.
    compileall.compile_dir(ROOT / "kit", quiet=1)
    with bench() as folder:
        goals = [*rendering(folder, options.points), *command_line(folder, options.rounds)]
        goals += submission(folder, options.jobs, options.rounds, options.many)
    return report(goals)


def install_peers() -> None:
    """Install the other tools into venvs, at the versions of benchmarks/requirements*.txt."""
    for venv, name in ((PEERS, "requirements.txt"), (NEMO_RUNS, "requirements-nemo-run.txt")):
        wanted, stamp = ROOT / "benchmarks" / name, venv / name
        if stamp.is_file() and stamp.read_text() == wanted.read_text():
            continue
        shell.run([sys.executable, "-m", "venv", "--clear", str(venv)], timeout=TIMEOUT_S)
        shell.run([str(venv / "bin/pip"), "install", "--quiet", "-r", str(wanted)], timeout=TIMEOUT_S)
        compileall.compile_dir(venv, quiet=1)
        stamp.write_text(wanted.read_text())


@contextmanager
def bench() -> Iterator[Path]:
    """A project with one job, and the files that the other tools need."""
    with project(NAME, "embedded = true\n[node]\ncpus = 8\n", JOB) as folder:
        (folder / "train.py").write_text("print('trained')\n")
        programs = {"submitit_jobs.py": SUBMITIT, "submitit_dry.py": SUBMITIT_DRY, "nemo_run_dry.py": NEMO_RUN}
        for program, text in programs.items():
            (folder / program).write_text(text)
        for script, text in (("loop.sh", LOOP), ("job.sh", SCRIPT)):
            (folder / script).write_text(text)
            (folder / script).chmod(0o755)
        yield folder


def sweep_of(folder: Path, points: int) -> Path:
    """The job with a sweep of `points` points."""
    job = folder / "sweep.toml"
    job.write_text(f"{JOB}[sweep.grid]\nargs.--seed = {list(range(points))}\n")
    return job


def rendering(folder: Path, points: int) -> list[Goal]:
    """Expand, check and plan every point, and write the arrays' scripts, in this process."""
    job = sweep_of(folder, points)
    began = time.perf_counter()
    made = prepare.prepare_sweep(job, cluster=NAME, containers=False)
    arrays = made.arrays()
    took = time.perf_counter() - began
    assert len(made.points) == points
    return [Goal(name=f"{points:,} points rendered and checked, {len(arrays)} arrays", value=took, unit="s", bound=2.0)]


def command_line(folder: Path, rounds: int) -> list[Goal]:
    """One job's script on stdout, as whole processes: wall time divided by that of a bare Python."""
    python, peers = sys.executable, PEERS / "bin"
    render = [str(Path(python).parent / "kit"), "render", "--no-container", "--cluster", NAME]
    ways: dict[str, list[str]] = {
        "bare": [python, "-c", "pass"],
        "kit": render,
        "torchx": [str(peers / "torchx"), "run", "--scheduler", "slurm", "--dryrun", *TORCHX_JOB],
        "nemo_run": [str(NEMO_RUNS / "bin/python"), "nemo_run_dry.py"],
        "submitit": [str(peers / "python"), "submitit_dry.py"],
    }

    took = in_turn({name: partial(_timed, argv, folder) for name, argv in ways.items()}, 2 * rounds)
    bare = took["bare"]
    return [
        Goal(name="bare Python, start and end", value=1000 * bare, unit="ms"),
        Goal(name="`kit render` / bare Python", value=took["kit"] / bare),
        Goal(name="`torchx run --dryrun` / bare Python", value=took["torchx"] / bare),
        Goal(name="NeMo-Run's dry run / bare Python", value=took["nemo_run"] / bare),
        Goal(name="submitit's script of one job / bare Python", value=took["submitit"] / bare),
        Goal(
            name="`kit render` / `torchx run --dryrun`",
            value=took["kit"] / took["torchx"],
            bound=1.0,
        ),
        Goal(
            name="`kit render` / NeMo-Run's dry run",
            value=took["kit"] / took["nemo_run"],
            bound=1.0,
        ),
    ]


def submission(folder: Path, jobs: int, rounds: int, many: int) -> list[Goal]:
    """Seconds from the start of the command to its end, when all jobs are in the queue."""
    try:
        # Slurm's default of 10,000 jobs is used up by the last array of --many, with the jobs that were just cancelled.
        cluster = up(NAME, ClusterSize(nodes=1, conf={"MaxJobCount": str(10_000 + 2 * many)}))
        env = client.environment(cluster.env())
        job = sweep_of(folder, jobs)
        kit, theirs = str(Path(sys.executable).parent / "kit"), [str(PEERS / "bin/python"), "submitit_jobs.py"]
        ways: dict[str, list[str]] = {
            "kit": [kit, "sweep", str(job), "--no-container", "--cluster", NAME],
            "one": ["sbatch", "--parsable", "--hold", f"--array=0-{jobs - 1}", "job.sh"],
            "loop": ["./loop.sh", str(jobs), "job.sh"],
            "map_array": [*theirs, "array", "theirs", str(jobs)],
            "submit": [*theirs, "loop", "theirs", str(jobs)],
        }
        took = in_turn({name: partial(_sent, argv, folder, env, jobs) for name, argv in ways.items()}, rounds)
        large = cost(folder, kit, "sweep", str(sweep_of(folder, many)), "--no-container", "--cluster", NAME)
    finally:
        down(NAME)
    names = {
        "one": "one sbatch of an array, nothing else",
        "loop": "a loop of sbatch calls",
        "map_array": "submitit, map_array",
        "submit": "submitit, a loop of submit()",
    }
    return [
        Goal(name=f"{jobs} jobs: `kit sweep`", value=took["kit"], unit="s"),
        *(Goal(name=f"{jobs} jobs: {text}", value=took[name], unit="s") for name, text in names.items()),
        Goal(name="`kit sweep` / a loop of sbatch calls", value=took["kit"] / took["loop"], bound=1.0),
        Goal(name="`kit sweep` / map_array", value=took["kit"] / took["map_array"], bound=1.0),
        Goal(name="`kit sweep` / a loop of submit()", value=took["kit"] / took["submit"], bound=1.0),
        Goal(name=f"{many:,} jobs: `kit sweep`", value=large.wall_s, unit="s", bound=5.0),
        Goal(name=f"{many:,} jobs: `kit sweep`, processor", value=large.cpu_s, unit="s"),
        Goal(name=f"{many:,} jobs: `kit sweep`, peak", value=large.peak_mb, unit="MB", bound=300.0),
    ]


def in_turn(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median seconds of each tool. A round runs each once; the first round does not count."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            seconds = way()
            if number:
                took[name].append(seconds)
    return {name: statistics.median(values) for name, values in took.items()}


def _timed(argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None) -> float:
    began = time.perf_counter()
    shell.run(argv, cwd=folder, env=env, timeout=TIMEOUT_S)
    return time.perf_counter() - began


def _sent(argv: Sequence[str], folder: Path, env: Mapping[str, str], jobs: int) -> float:
    """Seconds of a submission, which must have worked. Empties the queue again."""
    took = _timed(argv, folder, env)
    queued = shell.run(["squeue", "--noheader", "--array", "--format=%i"], env=env).stdout.splitlines()
    assert len(queued) == jobs, f"{argv[0]}: {len(queued)} of {jobs} jobs are in the queue"
    shell.run(["scancel", f"--user={getpass.getuser()}"], env=env)
    while shell.run(["squeue", "--noheader", "--format=%i"], env=env).stdout:
        time.sleep(0.1)
    return took
