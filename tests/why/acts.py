"""Acts of make.py on the jobs of the cases: it submits them, and then cancels, kills, preempts, holds or waits."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kit import data_folders
from kit.images import image_lock
from tests.cluster.lab import Lab
from tests.support import REPO
from tests.why.case import Case

NODES = 4


class Acts:
    """Runs cases on one cluster, each in a project folder of its own."""

    def __init__(self, lab: Lab, python: str) -> None:
        self.lab, self.python = lab, python
        # What has to be mended once the job is gone.
        self.later: list[Callable[[], object]] = []
        for name, options in (("short", "MaxTime=5"), ("closed", "State=DOWN")):
            lab.slurm("scontrol", "create", f"PartitionName={name}", "Nodes=ALL", *options.split())

    def write(self, name: str, case: Case) -> Lab:
        """The case's job file, in a project beside the lab's own."""
        project = self.lab.project / "cases" / name
        shutil.copytree(self.lab.project / "clusters", project / "clusters")
        (project / ".git").mkdir()
        python = "" if "python =" in case.job else f'python = "{self.python if case.torch else "/usr/bin/python3"}"\n'
        (project / "program.py").write_text(case.program, encoding="utf-8")
        job = case.job.replace("NODE2", f"{self.lab.cluster.name}-2")
        if "[roles." in job:
            text = f'name = "why"\nlauncher = "roles"\n{python}{job}[preflight]\nfree_disk_gb = 0\n'
            (project / "job.toml").write_text(text, encoding="utf-8")
            return Lab(project, self.lab.cluster, self.lab.env, self.lab.mounts_before)
        top, tables = _split(job)
        if "preflight" not in tables:
            tables += "[preflight]\nfree_disk_gb = 0\n"
        text = (
            f'name = "why"\nlauncher = "ddp"\nscript = "program.py"\nshape = "srun"\n{python}{top}{_one_rank(tables)}'
        )
        (project / "job.toml").write_text(text, encoding="utf-8")
        return Lab(project, self.lab.cluster, self.lab.env, self.lab.mounts_before)

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
        lab.wait((run / "state/stall-1/complete").exists, run, seconds=120)
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
        digest = image_lock.read_lock(REPO / "containers/train-cpu/image.lock").digest.partition(":")[2]
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
        while self.later:
            self.later.pop()()
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
