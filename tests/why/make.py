"""Makes the run folders of the cases: `python -m tests.why.make --torch PYTHON [CASE…]`, on a cluster of its own.

Each case is a job that ends in its way on a real Slurm. What `kit why` reads of its run folder is kept, with the names of this
machine replaced, and slurm.json: what Slurm said of the job.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from kit import data_folders
from kit.images import image_lock
from kit.slurm import client
from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab
from tests.support import REPO
from tests.why.case import Case
from tests.why.cases import CASES

HERE = Path(__file__).parent
CONF = {
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "PartitionName": "urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP",
}
NODES = 4
# What `kit why` reads; the rest of a run folder is scripts.
KEPT = (
    "manifest.json",
    "state/events.jsonl",
    "state/cancelled*",
    "state/failures-*/*/*",
    "state/stall-*/rank-*.txt",
    "state/preflight/*.failed",
    "logs/**/*.log",
    "monitor/*.progress",
)
_MOST_BYTES = 24_000


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Maker:
    """Runs cases on one cluster, each in a project folder of its own."""

    def __init__(self, lab: Lab, python: str) -> None:
        self.lab, self.python = lab, python
        for name, options in (("short", "MaxTime=5"), ("closed", "State=DOWN")):
            lab.slurm("scontrol", "create", f"PartitionName={name}", "Nodes=ALL", *options.split())

    def write(self, name: str, case: Case) -> Lab:
        """The case's job file, in a project beside the lab's own."""
        project = self.lab.project / "cases" / name
        shutil.copytree(self.lab.project / "clusters", project / "clusters")
        (project / ".git").mkdir()
        python = "" if "python =" in case.job else f'python = "{self.python if case.torch else "/usr/bin/python3"}"\n'
        job = case.job.replace("NODE2", f"{self.lab.cluster.name}-2")
        top, tables = _split(job)
        if "preflight" not in tables:
            tables += "[preflight]\nfree_disk_gb = 0\n"
        text = (
            f'name = "why"\nlauncher = "ddp"\nscript = "program.py"\nshape = "srun"\n{python}{top}{_one_rank(tables)}'
        )
        (project / "job.toml").write_text(text, encoding="utf-8")
        (project / "program.py").write_text(case.program, encoding="utf-8")
        return Lab(project, self.lab.cluster, self.lab.env)

    def submit(self, lab: Lab, case: Case, *more: str, env: dict[str, str] | None = None) -> Path:
        return lab.submit(*case.options, *more, env=env)

    # ---- what is done to a job ----

    def up(self, lab: Lab, case: Case) -> Path:
        run = self.submit(lab, case)
        lab.wait(lambda: "up" in _text(run / "logs/rank-0.log"), run)
        return run

    def stall(self, lab: Lab, case: Case) -> Path:
        """Until the collector has written a look at ranks that have stood still for longer than any limit of theirs."""
        run = self.up(lab, case)
        time.sleep(45)
        return run

    def evidence(self, lab: Lab, case: Case) -> Path:
        """Until every rank has given its evidence of a stall."""
        run = self.up(lab, case)
        lab.wait(lambda: len(list(run.glob("state/stall-1/rank-*.txt"))) == 2, run, seconds=90)
        time.sleep(5)
        return run

    def cancel(self, lab: Lab, case: Case) -> Path:
        run = self.up(lab, case)
        lab.kit("cancel", run.name)
        return run

    def cancel_waiting(self, lab: Lab, case: Case) -> Path:
        run = self.submit(lab, case)
        lab.kit("cancel", run.name)
        return run

    def scancel(self, lab: Lab, case: Case) -> Path:
        run = self.up(lab, case)
        lab.slurm("scancel", lab.job(run)["JobId"])
        return run

    def out_of_time(self, lab: Lab, case: Case) -> Path:
        run = self.up(lab, case)
        lab.slurm("scontrol", "update", f"JobId={lab.job(run)['JobId']}", "EndTime=now+5")
        return run

    def lead(self, lab: Lab, case: Case) -> Path:
        run = self.up(lab, case)
        lab.slurm("scancel", "--batch", "--signal=USR1", lab.job(run)["JobId"])
        return run

    def preempt(self, lab: Lab, case: Case) -> Path:
        run = self.up(lab, case)
        urgent = self.fill(partition="urgent")
        with suppress(AssertionError):
            lab.wait(lambda: lab.job(run)["JobState"] == "PREEMPTED", run, seconds=40)
        self.end(*urgent)
        return run

    def lose_node(self, lab: Lab, case: Case) -> Path:
        run = self.up(lab, case)
        node = lab.job(run)["NodeList"]
        lab.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        lab.wait_end(run)
        return run

    def kill_batch(self, lab: Lab, case: Case) -> Path:
        run = self.up(lab, case)
        os.kill(lab.batch(run).pid, signal.SIGKILL)
        return run

    def kill_srun(self, lab: Lab, case: Case) -> Path:
        run = self.up(lab, case)
        os.kill(lab.srun(run).pid, signal.SIGKILL)
        return run

    def wait_requeue(self, lab: Lab, case: Case) -> Path:
        run = self.submit(lab, case)
        lab.wait(
            lambda: '"requeue"' in _text(run / "state/events.jsonl") and lab.job(run)["JobState"] == "PENDING", run
        )
        return run

    def wait_pending(self, lab: Lab, case: Case) -> Path:
        run = self.submit(lab, case)
        self.settle(lab, run)
        return run

    def wait_behind(self, lab: Lab, case: Case) -> Path:
        self.fill()
        return self.wait_pending(lab, case)

    def wait_behind_two(self, lab: Lab, case: Case) -> Path:
        self.fill()
        self.fill(wait=False)
        run = self.submit(lab, case)
        lab.wait(lambda: lab.job(run)["Reason"] == "Priority", run)
        return run

    def after(self, lab: Lab, case: Case) -> Path:
        (first,) = self.fill(nodes=1)
        run = self.submit(lab, case, "--after", first)
        self.settle(lab, run)
        return run

    def after_failed(self, lab: Lab, case: Case) -> Path:
        (first,) = self.fill(nodes=1)
        run = self.submit(lab, case, "--after", first)
        self.end(first)
        return run

    def after_failed_kept(self, lab: Lab, case: Case) -> Path:
        (first,) = self.fill(nodes=1)
        run = self.submit(lab, case, "--set", f'slurm.extra=["--dependency=afterok:{first}"]')
        self.end(first)
        lab.wait(lambda: lab.job(run)["Reason"] == "DependencyNeverSatisfied", run)
        return run

    def hold(self, lab: Lab, case: Case) -> Path:
        run = self.submit(lab, case)
        lab.slurm("scontrol", "hold", lab.job(run)["JobId"])
        lab.slurm("scontrol", "update", f"JobId={lab.job(run)['JobId']}", "Priority=0")
        self.settle(lab, run)
        return run

    def drain(self, lab: Lab, case: Case) -> Path:
        lab.slurm("scontrol", "update", f"NodeName={lab.cluster.name}-2", "State=DRAIN", "Reason=test")
        run = self.submit(lab, case)
        lab.wait(lambda: lab.job(run)["Reason"] not in {"None", "Priority", "Resources"}, run)
        return run

    def wrong_image(self, lab: Lab, case: Case) -> Path:
        """The image is replaced once the job is in the queue, in a store of the case's own."""
        store = lab.project / "store"
        digest = image_lock.read(REPO / "containers/train-cpu/image.lock").digest.partition(":")[2]
        shutil.copytree(
            data_folders.user_data() / "images",
            store,
            ignore=lambda _, names: [n for n in names if ".sqsh" in n and digest not in n],
        )
        cluster = next((lab.project / "clusters").iterdir())
        cluster.write_text(re.sub(r'store = ".*"', f'store = "{store}"', cluster.read_text()), encoding="utf-8")
        run = self.submit(lab, case, "--set", 'slurm.extra=["--hold"]')
        stored = Path(json.loads((run / "manifest.json").read_text())["image"])
        stored.unlink()
        stored.write_bytes(b"another image")
        lab.slurm("scontrol", "release", lab.job(run)["JobId"])
        return run

    def stuck_gpu(self, lab: Lab, case: Case) -> Path:
        tools = lab.project / "tools"
        tools.mkdir()
        (tools / "nvidia-smi").write_text("#!/bin/bash\nexit 9\n", encoding="utf-8")
        (tools / "nvidia-smi").chmod(0o755)
        return self.submit(lab, case, env={"PATH": f"{tools}:{os.environ['PATH']}"})

    def no_script(self, lab: Lab, case: Case) -> Path:
        run = self.submit(lab, case, "--set", 'slurm.extra=["--hold"]')
        (lab.project / "program.py").unlink()
        lab.slurm("scontrol", "release", lab.job(run)["JobId"])
        return run

    def refused_image(self, lab: Lab, case: Case) -> Path:
        digest = "sha256:" + "0" * 64
        return self.submit(
            lab, case, "--set", f"image=docker://localhost#nothing@{digest}", "--set", "container.runtime=pyxis"
        )

    def never(self, lab: Lab, case: Case) -> Path:
        run = self.cancel_waiting(lab, case)
        path = run / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "job_id": None}), encoding="utf-8")
        for noted in (run / "state").glob("cancelled*"):
            noted.unlink()
        return run

    def damage(self, lab: Lab, case: Case) -> Path:
        run = self.submit(lab, case)
        lab.wait_end(run)
        path = run / "manifest.json"
        path.write_bytes(path.read_bytes()[:100])
        return run

    def forget(self, lab: Lab, case: Case) -> Path:
        """Its batch script is killed, and Slurm has forgotten the job: as after a restart of slurmctld without its state."""
        run = self.kill_batch(lab, case)
        lab.wait_end(run)
        return run

    # ---- the cluster ----

    def settle(self, lab: Lab, run: Path) -> None:
        lab.wait(lambda: lab.job(run)["JobState"] == "PENDING" and lab.job(run)["Reason"] != "None", run)

    def fill(self, *, nodes: int = NODES, partition: str = "", wait: bool = True) -> list[str]:
        """A job that takes whole nodes; its id."""
        options = [f"--nodes={nodes}", "--exclusive", "--output=/dev/null", "--time=30", "--wrap=sleep 600"]
        options += [f"--partition={partition}"] if partition else []
        number = self.lab.slurm("sbatch", "--parsable", *options).strip()
        until = time.monotonic() + 60
        while (
            wait
            and time.monotonic() < until
            and "RUNNING" not in self.lab.slurm("squeue", "--noheader", "-j", number, "-o", "%T")
        ):
            time.sleep(0.3)
        return [number]

    def end(self, *numbers: str) -> None:
        for number in numbers:
            self.lab.slurm("scancel", number, check=False)

    def clear(self) -> None:
        """No job is left, and every node takes some."""
        self.lab.slurm("scancel", f"--user={getpass.getuser()}", check=False)
        self.lab.slurm(
            "scontrol", "update", f"NodeName={self.lab.cluster.name}-[1-{NODES}]", "State=RESUME", check=False
        )
        until = time.monotonic() + 60
        while time.monotonic() < until and self.lab.slurm("squeue", "--noheader").strip():
            time.sleep(0.3)


def _split(job: str) -> tuple[str, str]:
    """Keys at the top, and tables."""
    found = re.search(r"^\[", job, re.MULTILINE)
    at = found.start() if found else len(job)
    return job[:at], job[at:]


def _one_rank(tables: str) -> str:
    defaults = 'nodes = 1\ngpus_per_node = 0\ntime = "00:05:00"\n'
    if "[resources]" not in tables:
        return f"{tables}[resources]\n{defaults}"
    given = tables.partition("[resources]\n")[2]
    kept = "".join(line for line in defaults.splitlines(keepends=True) if line.split(" ")[0] + " =" not in given)
    return tables.replace("[resources]\n", f"[resources]\n{kept}")


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def slurm_says(lab: Lab, run: Path, case: str) -> dict[str, object]:
    """What the kit asks Slurm for: one line of squeue, the expected start, the accounting that this cluster lacks."""
    if case in {"lost"} or not (run / "manifest.json").exists():
        return {}
    number = json.loads((run / "manifest.json").read_text()).get("job_id") if case != "manifest-damaged" else None
    if number is None:
        return {}
    found = client.queue(env={**os.environ, **lab.cluster.env()}, job_ids=[number]).get(number)
    return vars(found) if found else {}


def keep(lab: Lab, run: Path, name: str) -> None:
    """Copy what `kit why` reads into the case's folder, with the names of this machine replaced."""
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    slurm = slurm_says(lab, run, name)
    replaced = _names(lab, run, name)
    for pattern in KEPT:
        for path in sorted(run.glob(pattern)):
            if path.is_symlink() or not path.is_file() or not (path.stat().st_size or path.name == "cancelled"):
                continue
            to = target / replaced(path.relative_to(run).as_posix())
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(replaced(path.read_text(encoding="utf-8", errors="replace"))[-_MOST_BYTES:], encoding="utf-8")
    (target / "slurm.json").write_text(replaced(json.dumps(slurm, indent=2, default=str)) + "\n", encoding="utf-8")


def _names(lab: Lab, run: Path, name: str) -> Callable[[str], str]:
    pairs = [
        (str(run), f"/project/runs/{name}"),
        (run.name, name),
        (str(lab.project), "/project"),
        (str(lab.project.resolve()), "/project"),
        (str(lab.cluster.folder), "/cluster"),
        (f"{lab.cluster.name}-", "n"),
        (lab.cluster.name, "local"),
        (str(Path.home()), "/home/user"),
    ]
    pairs += [(str(Path(sys.argv[sys.argv.index("--torch") + 1]).parents[1]), "/venv")] if "--torch" in sys.argv else []

    def replaced(text: str) -> str:
        for old, new in pairs:
            text = text.replace(old, new)
        return re.sub(r"/tmp/pytest-[^/\s]+/|/tmp/kit-why-[^/\s]+", "/tmp", text)

    return replaced


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--torch", default=sys.executable, help="a Python that has torch")
    options.add_argument("cases", nargs="*", default=[])
    given = options.parse_args()
    chosen = {name: CASES[name] for name in given.cases or CASES}
    folder = Path(tempfile.mkdtemp(prefix="kit-why-"))
    try:
        with lab_on("why", NODES, data_folders.user_data() / "images", folder, CONF) as lab:
            maker = Maker(lab, given.torch)
            failed = [name for name, done in _make(maker, chosen) if not done]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say(f"{len(chosen) - len(failed)} made; failed: {' '.join(failed) or 'none'}")
    raise SystemExit(bool(failed))


def _make(maker: Maker, chosen: dict[str, Case]) -> list[tuple[str, bool]]:
    """Those that end by themselves all at once, the others one after the other."""
    plain = {name: case for name, case in chosen.items() if not case.act}
    made: list[tuple[str, bool]] = []
    submitted: dict[str, tuple[Lab, Path]] = {}
    for name, case in plain.items():
        try:
            lab = maker.write(name, case)
            submitted[name] = lab, maker.submit(lab, case)
        except Exception as error:  # noqa: BLE001 - reported, and the others continue
            say(f"{name}: {error}")
            made.append((name, False))
    made += [(name, _attempt(name, partial(_finish, lab, run, name))) for name, (lab, run) in submitted.items()]
    for name, case in chosen.items():
        if case.act:
            made.append((name, _attempt(name, partial(_act, maker, name, case))))
            maker.clear()
    return made


def _finish(lab: Lab, run: Path, name: str) -> None:
    lab.wait_end(run)
    keep(lab, run, name)


def _act(maker: Maker, name: str, case: Case) -> None:
    lab = maker.write(name, case)
    run = getattr(maker, case.act)(lab, case)
    if not case.live and name not in {"submitted-never", "manifest-damaged"}:
        lab.wait_end(run)
    keep(lab, run, name)


def _attempt(name: str, work: Callable[[], object]) -> bool:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - reported, and the others continue
        say(f"{name}: {type(error).__name__}: {error}")
        return False
    say(f"{name}: made")
    return True


if __name__ == "__main__":
    main()
