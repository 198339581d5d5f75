"""Launcher ray: its roles, and launchers/ray/ray_node.py on an outline of Ray.

tests/foreign/test_ray.py has the real one, on a cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit import config
from kit.errors import ConfigError
from kit.planning.plan import Plan, plan
from kit.schema.image import Packages
from tests.support import REPO, make_lock, make_site, plan_of, write_job

JOB = 'name = "x"\nlauncher = "ray"\nimage = "train-cpu"\nscript = "train.py"\n{top}\n'
JOB += "[resources]\nnodes = {nodes}\ngpus_per_node = 2\n{more}"
CODE = REPO / "launchers" / "ray"
# `ray start` as far as ray_node.py looks at it: it listens, says that it runs, and ends when a process of its own is killed.
START = """\
import os, pathlib, signal, socket, subprocess, sys, time
words = dict(word[2:].partition("=")[::2] for word in sys.argv[1:])
pathlib.Path(os.environ["SEEN"]).write_text("\\n".join(sys.argv[1:]))
pathlib.Path(os.environ["SEEN"] + "-threads").write_text(os.environ.get("OMP_NUM_THREADS", "Ray's"))
if "broken" in words:
    sys.exit("Error: No such option: --broken")
folder = pathlib.Path(words["temp-dir"])
logs = folder / "session_latest" / "logs"
logs.mkdir(parents=True, exist_ok=True)
(logs / "raylet.out").write_text("what it said")
if "port" in words:
    server = socket.create_server((words["node-ip-address"], int(words["port"])))
raylet = subprocess.Popen(["sleep", "600"], start_new_session=True)
(folder / "raylet.pid").write_text(str(raylet.pid))
(folder / "ray_current_cluster").write_text("")
code = raylet.wait()
print("2026-11-23 14:50:14,126\\tERR scripts.py:1307 -- Some Ray subprocesses exited unexpectedly:")
print(f"2026-11-23 14:50:14,126\\tERR scripts.py:87 -- raylet [exit code={code}]")
print("2026-11-23 14:50:14,127\\tERR scripts.py:1315 -- Remaining processes will be killed.")
sys.exit(1)
"""
PACKAGE = """\
import os
def init(**_): pass
def shutdown(): pass
def nodes():
    return [{"NodeName": name, "Alive": True, "Resources": {"CPU": 2.0}} for name in os.environ["JOINED"].split()]
"""


def made(folder: Path, more: str = "", *, nodes: int = 2, top: str = "") -> Plan:
    return plan_of(write_job(folder, JOB.format(nodes=nodes, more=more, top=top)), site=make_site(containers=False))


# ---- the plan ----


def test_a_head_that_runs_the_program_and_a_worker_on_each_other_node(tmp_path: Path) -> None:
    head, worker = made(tmp_path, nodes=3).roles
    assert (head.name, head.nodes, head.role.policy, head.role.ports) == (
        "ray-head",
        1,
        "main",
        ("gcs", "dashboard", "client"),
    )
    assert (worker.name, worker.first, worker.nodes, worker.role.policy) == ("ray-worker", 1, 2, "service")
    assert worker.role.after == ("ray-head",)
    assert [placed.name for placed in made(tmp_path, nodes=1).roles] == ["ray-head"]


def test_the_program_stands_behind_what_starts_ray(tmp_path: Path) -> None:
    plan = made(tmp_path, '[env]\nOMP_NUM_THREADS = "2"\n', top="args = ['--steps', '3']\n")
    words = plan.text_of("roles/ray-head/program.sh").split("KIT_PROGRAM=(\n")[1].split("\n)")[0].split()
    assert words[1:5] == ["/shared/runs/digits-1/code/ray_node.py", "head", "--cpus=4", "--gpus=2"]
    assert words[5:7] == ["--", "python3"]
    assert words[-3:] == [f"{tmp_path}/train.py", "--steps", "3"]
    assert (CODE, "code") in plan.copies
    assert "--threads-by-ray" not in words
    job = write_job(tmp_path, JOB.format(nodes=2, more="", top=""))
    for_pod = plan_of(job, cluster="pod", site=make_site(containers=False))
    assert "--threads-by-ray" in for_pod.text_of("roles/ray-worker/program.sh")


def test_the_jobs_own_tables_change_rays_roles_and_other_roles_have_their_nodes(tmp_path: Path) -> None:
    tables = '[roles.ray-head]\nenv = { A = "1" }\n[roles.server]\ncommand = ["./serve"]\n'
    head, worker, server = made(tmp_path, tables, nodes=4).roles
    assert (head.role.env, head.role.ports[0], worker.nodes, server.first) == ({"A": "1"}, "gcs", 2, 3)


def test_an_image_without_ray_is_refused(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB.format(nodes=2, more="", top=""))
    resolved = config.load_job(job, cluster="local")
    with pytest.raises(ConfigError, match="lacks ray, which launcher 'ray' needs"):
        plan(resolved, make_lock(), make_site())
    lock = make_lock().model_copy(update={"packages": Packages(pip={"ray": "2.60.0"})})
    assert plan(resolved, lock, make_site()).roles


# ---- a node ----


@dataclass
class Lab:
    """A run folder, an outline of Ray, and a place for Ray's own folder."""

    folder: Path
    port: int
    env: dict[str, str]

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """ray_node.py, as a rank."""
        argv = [sys.executable, str(CODE / "ray_node.py"), *words]
        return subprocess.Popen(
            argv, env={**self.env, **env}, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self.folder
        )

    def head(self, program: str, **env: str) -> subprocess.Popen[str]:
        """The head, with a Python program."""
        return self.start("head", "--cpus=2", "--gpus=0", "--", sys.executable, "-uc", program, **env)

    def rays(self) -> list[Path]:
        """Ray's folders."""
        return [*(self.folder / "t").glob("kit-ray-*")]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    for name in ("state", "logs/ray-head", "logs/ray-worker", "ray/scripts"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ray" / "__init__.py").write_text(PACKAGE, encoding="utf-8")
    (tmp_path / "ray" / "scripts" / "__init__.py").touch()
    (tmp_path / "ray" / "scripts" / "scripts.py").write_text(START, encoding="utf-8")
    roles = {"ray-head": {"nodes": ["n1"]}, "ray-worker": {"nodes": ["n2"]}}
    (tmp_path / "state" / "roles.json").write_text(json.dumps(roles), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # pytest's own folder is too long a path for a Unix socket.
    short = Path(f"/tmp/kt{os.getpid()}")
    short.mkdir()
    (tmp_path / "t").symlink_to(short)
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(tmp_path),
        "PYTHONUNBUFFERED": "1",
        "RAY_TMPDIR": str(short),
        "SEEN": str(tmp_path / "seen"),
        "JOINED": "n1 n2",
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "n1",
        "NODE_RANK": "0",
        "RANK": "0",
        "KIT_ATTEMPT": "0",
        "KIT_ROLE": "ray-head",
        "KIT_RUN_DIR": str(tmp_path),
        "KIT_ROLES_FILE": str(tmp_path / "state" / "roles.json"),
        "KIT_ROLE_RAY_HEAD_ADDR": "127.0.0.1",
        "KIT_ROLE_RAY_HEAD_PORT_GCS": str(port),
        "KIT_ROLE_RAY_HEAD_PORT_DASHBOARD": "1",
        "KIT_ROLE_RAY_HEAD_PORT_CLIENT": "2",
        "KIT_ROLE_RAY_WORKER_NODES": "127.0.0.1",
    }
    yield Lab(tmp_path, port, env)
    for left in short.iterdir():
        with contextlib.suppress(OSError, ValueError):
            os.kill(int((left / "raylet.pid").read_text()), signal.SIGKILL)
    subprocess.run(["rm", "-rf", str(short)], check=True)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def until_it_is_here(process: subprocess.Popen[str]) -> None:
    """Wait until the job's program has started. Fails with the messages of a process that ends before."""
    assert process.stdout is not None
    for line in process.stdout:
        if "here" in line:
            return
    raise AssertionError(f"it ended with {process.wait()}: {process.communicate()[1]}")


def raylet(lab: Lab) -> int:
    """The process that the outline has started."""
    file = next(iter(lab.rays())) / "raylet.pid"
    until(lambda: file.exists() and file.read_text())
    return int(file.read_text())


def gone(pid: int) -> bool:
    """Whether a process is no more, or only its parent has not taken note yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize(("by_ray", "threads"), [([], "3"), (["--threads-by-ray"], "Ray's")])
def test_ray_gets_the_jobs_share_of_the_node(lab: Lab, by_ray: list[str], threads: str) -> None:
    """Its memory without the object store, which is part of it; Ray chooses the threads of its workers where the job does not."""
    given = 8 << 30
    words = ["head", "--cpus", "2", "--gpus", "0", "--memory", str(given), *by_ray, "--", sys.executable, "-c", ""]
    process = lab.start(*words, OMP_NUM_THREADS="3")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    asked = dict(word[2:].partition("=")[::2] for word in (lab.folder / "seen").read_text().splitlines()[1:])
    assert (asked["num-cpus"], asked["num-gpus"]) == ("2", "0")
    assert int(asked["memory"]) + int(asked["object-store-memory"]) == given
    assert (lab.folder / "seen-threads").read_text() == threads


def test_the_program_runs_on_the_head_and_its_code_is_the_nodes(lab: Lab) -> None:
    program = "import os, sys; print(os.environ['RAY_ADDRESS'], os.environ.get('RANK')); sys.exit(7)"
    process = lab.head(program, RAY_START_OPTIONS="--resources='{\"disk\": 1}'")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 7
    assert out.splitlines()[-1] == f"127.0.0.1:{lab.port} None"
    assert out.splitlines()[0].startswith("Ray has n1: 2 CPUs")
    words = (lab.folder / "seen").read_text().splitlines()
    assert f"--port={lab.port}" in words
    assert "--min-worker-port=0" in words
    assert words[-1] == '--resources={"disk": 1}'
    assert lab.rays() == []
    assert not [*(lab.folder / "state").glob("ray-token*")]


def test_a_signal_reaches_the_program_and_ray_stays(lab: Lab) -> None:
    program = """
import os, pathlib, signal, sys, time
came = []
signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
print("here", flush=True)
while not came:
    time.sleep(0.05)
(folder,) = pathlib.Path(os.environ["RAY_TMPDIR"]).glob("kit-ray-*")
os.kill(int((folder / "raylet.pid").read_text()), 0)
sys.exit(128 + came[0])
"""
    process = lab.head(program)
    assert process.stdout is not None
    until_it_is_here(process)
    pid = raylet(lab)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 128 + signal.SIGUSR1
    assert gone(pid)
    assert lab.rays() == []


def test_a_missing_node_is_named(lab: Lab) -> None:
    process = lab.head("print('never')", JOINED="n1", RAY_START_TIMEOUT_S="1")
    out, said = process.communicate(timeout=60)
    assert process.returncode == 74
    assert "error: 1 of 2 nodes did not join the Ray cluster within 1 s: n2; look" in said
    assert "never" not in out
    assert (lab.folder / "logs/ray-head/ray-n1/raylet.out").read_text() == "what it said"
    assert lab.rays() == []


def test_a_dead_process_of_rays_is_named_and_ends_the_program(lab: Lab) -> None:
    process = lab.head("import time; print('here', flush=True); time.sleep(600)")
    assert process.stdout is not None
    until_it_is_here(process)
    os.kill(raylet(lab), signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 137
    assert "error: Ray is gone on n1: raylet was ended by signal 9; its logs are in" in said
    assert lab.rays() == []


def test_a_ray_that_does_not_start_says_its_last_line(lab: Lab) -> None:
    process = lab.head("print('never')", RAY_START_OPTIONS="--broken")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ray start ended with exit code 1; its last line: Error: No such option: --broken" in said


def test_a_worker_stays_while_the_head_does(lab: Lab) -> None:
    env = {"KIT_ROLE": "ray-worker", "SLURMD_NODENAME": "n2", "SLURM_JOB_ID": "8"}
    worker = lab.start("worker", "--cpus=2", "--gpus=0", **env)
    head = lab.head("import time; print('here', flush=True); time.sleep(600)", JOINED="n1 n2")
    assert head.stdout is not None
    until_it_is_here(head)
    file = lab.folder / "t" / f"kit-ray-{os.getuid()}-8.0" / "raylet.pid"
    # The token is there until all nodes have joined, and the outline's worker has no part in that.
    token = lab.folder / "state" / "ray-token.0"
    if not file.exists():
        token.write_text(json.dumps({"RAY_AUTH_TOKEN": "x"}), encoding="utf-8")
    until(lambda: file.exists() and file.read_text())
    token.unlink(missing_ok=True)
    worker.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.wait(1)
    head.send_signal(signal.SIGTERM)
    assert head.wait(60) == 143
    assert worker.wait(60) == 0
    assert gone(int(file.read_text())) if file.exists() else lab.rays() == []
    for process in (worker, head):
        process.communicate()


def test_what_a_killed_node_left_goes_with_the_next(lab: Lab) -> None:
    process = lab.head("import time; print('here', flush=True); time.sleep(600)")
    assert process.stdout is not None
    until_it_is_here(process)
    pid = raylet(lab)
    process.kill()
    process.communicate()
    os.kill(pid, signal.SIGKILL)
    assert len(lab.rays()) == 1
    after = lab.head("print('well')", SLURM_JOB_ID="9")
    assert "well" in after.communicate(timeout=60)[0]
    assert lab.rays() == []


def test_a_folder_that_is_too_long_for_sockets(lab: Lab) -> None:
    process = lab.head("print('never')", RAY_TMPDIR=f"/tmp/{'x' * 60}")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "is too long for Ray's sockets" in said
    assert '[env] RAY_TMPDIR = "/tmp"' in said
