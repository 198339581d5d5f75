"""Several programs in one allocation, on the real cluster: who finds whom, whose end ends the job, what is left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.test_faults import variant

pytestmark = pytest.mark.cluster

# One file for all roles. No framework is imported, so that a run takes seconds.
PROGRAM = """
import json, os, pathlib, signal, sys, time, urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

run, rank, start = pathlib.Path(os.environ["KIT_RUN_DIR"]), os.environ["RANK"], int(os.environ["KIT_RESTART_COUNT"])
role = os.environ.get("KIT_ROLE", "")


def serve(port, *how):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{role} {os.uname().nodename} {start}".encode())
    server = HTTPServer(("0.0.0.0", int(port)), Answer)
    if "dies" in how:
        server.timeout = 2
        server.handle_request()
        os._exit(9)
    server.serve_forever()


def ask(address, port):
    with urllib.request.urlopen(f"http://{address}:{port}/", timeout=10) as answer:
        return answer.read().decode()


def main(what, *rest):
    if what == "serve":
        serve(*rest)
    elif what == "ask":
        seen = {"answer": ask(*rest), "roles": json.load(open(os.environ["KIT_ROLES_FILE"])), "env": dict(os.environ)}
        (run / f"asked-{rank}.json").write_text(json.dumps(seen))
    elif what == "sleep":
        time.sleep(float(rest[0]))
    elif what == "gpus":
        (run / f"gpus-{role}").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
    elif what == "exit":
        sys.exit(int(rest[0]))
    elif what == "die-once":
        (run / f"{role}-{start}").touch()
        if start == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
    elif what == "loader":
        import multiprocessing
        name = f"{role}-{rank}" if role else rank
        worker = multiprocessing.get_context(rest[0]).Process(target=time.sleep, args=(600,), daemon=True)
        worker.start()
        def stop(number, frame):
            (run / f"saved-{name}").write_text(str(worker.is_alive()))
            sys.exit(128 + number)
        signal.signal(signal.SIGTERM, stop)
        (run / f"up-{name}").write_text(f"{start} {os.uname().nodename}")
        time.sleep(600)
    elif what == "save":
        def save(number, frame):
            ask(*rest)
            (run / "saved").write_text(str(number))
            sys.exit(128 + number)
        signal.signal(signal.SIGTERM, save)
        (run / "up").touch()
        time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
"""

SERVER = """
[roles.server]
script = "program.py"
args = ["serve", "{server.port.http}"]
ports = ["http"]
ready = { http = "http", timeout_s = 30 }
policy = "service"
"""
HEAD = "[resources]\ngpus_per_node = 2\n"


def roles(lab: Lab, text: str) -> None:
    lab.write(HEAD + text, PROGRAM, launcher="roles")


def main_role(*args: str) -> str:
    return f'\n[roles.main]\nscript = "program.py"\nafter = ["server"]\nargs = {json.dumps(args)}\n'


def test_roles_find_each_other_and_the_service_stops_when_the_main_one_has_ended(lab: Lab, runtime: str) -> None:
    roles(lab, SERVER + main_role("ask", "{server.address}", "{server.port.http}") + "ranks_per_node = 2\n")
    run = lab.run("--set", "image=train-cpu", "--set", f"container.runtime={runtime}")
    assert run.done.returncode == 0, run.log("batch") + run.log("main/rank-0") + run.log("server/rank-0")
    first, second = lab.cluster.nodes[0].name, lab.cluster.nodes[1].name
    for rank in range(2):
        seen = run.result(f"asked-{rank}.json")
        assert isinstance(seen, dict)
        env, known = seen["env"], seen["roles"]
        assert seen["answer"] == f"server {first} 0"
        assert known["server"]["nodes"] == [first]
        assert known["main"]["nodes"] == [second]
        assert int(env["KIT_ROLE_SERVER_PORT_HTTP"]) == known["server"]["ports"]["http"]
        assert env["KIT_ROLE_SERVER_ADDR"] == known["server"]["addresses"][0]
        assert (env["KIT_ROLE"], env["RANK"], env["WORLD_SIZE"], env["LOCAL_RANK"]) == (
            "main",
            str(rank),
            "2",
            str(rank),
        )
        assert env["MASTER_ADDR"] == env["KIT_ROLE_MAIN_ADDR"]
    own = lab.kit("logs", run.folder.name, "main").stdout.splitlines()
    assert {line.split(" | ")[0] for line in own} == {"main/rank-0", "main/rank-1"}
    assert lab.kit("logs", run.folder.name, "absent", check=False).returncode == 2
    assert "role server is ready" in run.log("batch")
    assert "stopping server" in run.log("batch")
    said = run.log("batch") + run.log("server/rank-0") + run.log("main/rank-0")
    assert not re.search(r"srun: |slurmstepd|Terminated|Killed|line \d+:", said), "nothing failed"
    assert lab.settled(run.folder) == []


def test_a_service_that_dies_is_started_again_and_then_ends_the_job_with_its_code(lab: Lab) -> None:
    roles(lab, SERVER.replace('http}"]', 'http}", "dies"]') + "restart = 1\n" + main_role("sleep", "600"))
    run = lab.run("--no-container")
    assert run.done.returncode == 9, run.log("batch")
    batch = run.log("batch")
    assert "role server: restart 1 of 1" in batch
    assert "role server: rank 0 on node" in batch
    assert "with exit code 9" in batch
    assert "server: rank 0 of 1" in run.log("server/rank-0")
    assert run.log("server/rank-0").count("rank 0 of 1") == 2
    assert lab.settled(run.folder) == []


def test_a_main_role_that_fails_ends_the_job_at_once_with_its_code(lab: Lab) -> None:
    roles(lab, SERVER + main_role("exit", "5"))
    began = time.monotonic()
    run = lab.run("--no-container")
    assert run.done.returncode == 5, run.log("batch")
    assert time.monotonic() - began < 120
    assert "role main: rank 0 on node" in run.log("batch")
    assert lab.settled(run.folder) == []


def test_a_role_that_is_never_ready_is_named(lab: Lab) -> None:
    roles(
        lab,
        SERVER.replace('"serve", "{server.port.http}"', '"sleep", "600"').replace("30", "3") + main_role("exit", "0"),
    )
    run = lab.run("--no-container")
    assert run.done.returncode == 74, run.log("batch")
    assert "role server was not ready within 3 s" in run.log("batch")
    assert run.log("main/rank-0") == "", "what waits for it was never started"
    assert lab.settled(run.folder) == []


def test_a_signal_that_finds_the_main_role_waiting_ends_the_job_with_143(lab: Lab) -> None:
    """Its service is never ready. The job was not done: it had begun no work."""
    roles(
        lab,
        SERVER.replace('"serve", "{server.port.http}"', '"sleep", "600"').replace("30", "600") + main_role("exit", "0"),
    )
    run = lab.submit("--no-container")
    lab.wait((run / "logs/server/rank-0.log").exists, run)
    lab.kit("cancel", run.name)
    job = lab.wait_end(run)
    log = (run / "logs" / "batch.log").read_text()
    assert (job["JobState"], lab.status(run)["exit_code"]) == ("CANCELLED", 143), log
    assert "TERM came before these were started: main" in log
    assert not (run / "logs/main/rank-0.log").exists()
    assert lab.settled(run) == []


def test_a_cancel_lets_the_main_role_save_while_its_service_still_answers(lab: Lab) -> None:
    roles(lab, SERVER + main_role("save", "{server.address}", "{server.port.http}"))
    run = lab.submit("--no-container")
    lab.wait((run / "up").exists, run)
    lab.kit("cancel", run.name)
    lab.wait_end(run)
    assert (run / "saved").read_text() == "15", (run / "logs/main/rank-0.log").read_text()
    assert lab.status(run)["exit_code"] == 143
    assert lab.settled(run) == []


# The first role is ready when the test says so, and the second one comes after it.
IN_TURN = """
[roles.first]
script = "program.py"
args = ["loader", "fork"]
ready = { file = "go", timeout_s = 600 }
[roles.second]
script = "program.py"
args = ["loader", "fork"]
after = ["first"]
"""


@contextmanager
def taken(lab: Lab, run: Path, node: str) -> Iterator[None]:
    """All CPUs that the job has on a node, taken by a step of somebody else's: another step of the job waits for them."""
    argv = [
        "srun",
        f"--jobid={lab.job(run)['JobId']}",
        "--job-name=taken",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
    ]
    argv += ["--cpus-per-task=4", "sleep", "600"]
    with subprocess.Popen(argv, env={**os.environ, **lab.cluster.env()}, stdin=subprocess.DEVNULL) as step:
        try:
            lab.wait(lambda: "taken" in lab.slurm("squeue", "--noheader", "--steps", "--format=%j"), run)
            yield
        finally:
            step.kill()


def test_an_srun_that_waits_for_its_nodes_is_gone_within_seconds(lab: Lab) -> None:
    """Slurm has made no step that a signal could go to. One that does not react to TERM either was killed ten seconds later."""
    # The signal goes by a step of its own, which takes over a second on a loaded machine. The time counts from before it.
    roles(lab, f"[slurm]\ngrace = 10\n{IN_TURN}")
    run = lab.submit("--no-container")
    lab.wait((run / "up-first-0").exists, run)
    with taken(lab, run, lab.cluster.nodes[1].name):
        (run / "go").touch()
        lab.wait(lambda: sruns(lab, run, "second"), run)
        # As one whose question to the controller hangs.
        for pid in sruns(lab, run, "second"):
            os.kill(pid, signal.SIGSTOP)
        lab.kit("cancel", run.name)
        job = lab.wait_end(run)
    log = (run / "logs" / "batch.log").read_text()
    assert (job["JobState"], lab.status(run)["exit_code"]) == ("CANCELLED", 143), log
    assert (run / "saved-first-0").exists(), "the other role had its time"
    killed, gone = (time_of(log, words) for words in ("step second is killed", "role second has ended"))
    assert (gone - killed).total_seconds() < 10, log
    assert not (run / "up-second-0").exists()
    assert lab.settled(run) == []


def sruns(lab: Lab, run: Path, step: str) -> list[int]:
    """The srun of a step that is not there yet, and what it has forked."""
    return [one.pid for one in lab.processes(run) if one.argv[0] == "srun" and f"--job-name={step}" in one.argv]


def time_of(log: str, words: str) -> datetime:
    """The time of the first line of the batch log that holds these words."""
    line = next(line for line in log.splitlines() if words in line)
    return datetime.fromisoformat(line.split()[0].rstrip(":"))


def replicas(*args: tuple[str, ...], restart: int = 2, least: int = 1) -> str:
    return "".join(
        f'\n[roles.replica-{i}]\nscript = "program.py"\nargs = {json.dumps(words)}\npolicy = "replica"\n'
        f"restart = {restart}\nleast = {least}\ngpus = [{i}]\n" + ('shares = "replica-0"\n' if i else "")
        for i, words in enumerate(args)
    )


def test_a_replica_that_is_killed_comes_back_by_itself(lab: Lab) -> None:
    roles(lab, replicas(("sleep", "6"), ("die-once",)))
    run = lab.run("--no-container")
    assert run.done.returncode == 0, run.log("batch")
    assert (run.folder / "replica-1-0").exists()
    assert (run.folder / "replica-1-1").exists()
    assert run.log("replica-0/rank-0").count("rank 0 of 1") == 1, "the other one trained on"
    assert "role replica-1: restart 1 of 2 in 1 s" in run.log("batch")
    assert lab.settled(run.folder) == []


def test_a_replica_is_given_up_and_the_others_go_on_while_there_are_enough(lab: Lab) -> None:
    roles(lab, replicas(("sleep", "8"), ("exit", "6"), restart=1))
    run = lab.run("--no-container")
    assert run.done.returncode == 0, run.log("batch")
    assert "role replica-1 is given up; 1 others continue" in run.log("batch")


def test_too_few_replicas_end_the_job_with_the_error_of_the_one_that_could_not_start(lab: Lab) -> None:
    roles(lab, replicas(("sleep", "600"), ("exit", "6"), restart=1, least=2))
    run = lab.run("--no-container")
    assert run.done.returncode == 6, run.log("batch")
    assert "role replica-1: rank 0 on node" in run.log("batch")
    assert "1 replicas are left; the job wants 2" in run.log("batch")
    assert lab.settled(run.folder) == []


@pytest.mark.parametrize("gres", ["gpus-per-node", "none"])
def test_each_role_gets_its_own_gpus(lab: Lab, gres: str) -> None:
    """Without an option for GPUs, Slurm sets no CUDA_VISIBLE_DEVICES."""
    roles(lab, replicas(("gpus",), ("gpus",)))
    with variant(lab, "gres", f'gres = "{gres}"', table="node") as options:
        run = lab.run("--no-container", *options)
    assert run.done.returncode == 0, run.log("batch")
    assert [(run.folder / f"gpus-replica-{i}").read_text() for i in range(2)] == ["0", "1"]


# ---- findings: programs with workers ----


@pytest.mark.parametrize(
    ("shape", "start"), [("srun", "fork"), pytest.param("torchrun", "spawn", marks=pytest.mark.faults)]
)
def test_a6_a_program_with_workers_saves_on_a_cancel(lab: Lab, shape: str, start: str) -> None:
    lab.write(f'script = "program.py"\nargs = ["loader", "{start}"]\nshape = "{shape}"\n{HEAD}', PROGRAM)
    run = lab.submit()
    lab.wait(lambda: len(list(run.glob("up-*"))) == 4, run)
    lab.kit("cancel", run.name)
    lab.wait_end(run)
    assert {path.name: path.read_text() for path in run.glob("saved-*")} == {f"saved-{n}": "True" for n in range(4)}
    assert lab.status(run)["exit_code"] == 143
