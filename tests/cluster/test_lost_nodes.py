"""Roles whose node is lost: no run ends well without their work, a spare takes its place, and what is left of them saves.

Each test names its fix in templates/, and fails without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.test_roles import HEAD, PROGRAM

pytestmark = pytest.mark.cluster


def submitted(lab: Lab, policy: str, of_b: str = "", *, nodes_of_b: int = 1, spares: int = 1) -> tuple[Path, list[str]]:
    """A run of the roles a, on one node, and b, whose ranks are up, a rank a node; and the nodes of b.

    Every rank has a forked process, as a DataLoader's worker, and writes at its end whether that one still lives.
    """
    of = f'script = "program.py"\nargs = ["loader", "fork"]\nranks_per_node = 1\npolicy = "{policy}"\n'
    job = f"{HEAD}[retry]\nspares = {spares}\n[roles.a]\n{of}[roles.b]\n{of}nodes = {nodes_of_b}\n{of_b}"
    lab.write(job, PROGRAM, launcher="roles")
    run = lab.submit()
    lab.wait(lambda: len(list(run.glob("up-*"))) == 1 + nodes_of_b, run)
    return run, roles_of(run)["b"]


def roles_of(run: Path) -> dict[str, list[str]]:
    """The nodes of each role, as the batch script says now."""
    known = json.loads((run / "state" / "roles.json").read_text(encoding="utf-8"))
    return {name: role["nodes"] for name, role in known.items()}


@contextmanager
def taken_down(lab: Lab, run: Path, node: str) -> Iterator[None]:
    """An administrator takes a node down: Slurm ends what runs there, and the job continues without it."""
    lab.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        yield
    finally:
        over(lab, run)
        # ReturnToService may have brought it back by itself.
        lab.slurm("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        lab.wait_nodes()
        # Slurm has killed the node's collector and ranks at once, so their reports stay until a later job of the user removes them
        # (rank_progress::sweep).
        lab.remove_reports()


@contextmanager
def dead(lab: Lab, run: Path, node: str) -> Iterator[None]:
    """A machine that dies with its memory, after Slurm has given it up: nobody learns that its ranks ended."""
    # All at once: a rank that outlives its slurmstepd for a moment would record its end, as on a node that lives.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for one in lab.node_processes(node):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, number)
    lab.inside(node, "find", "/dev/shm", "-mindepth", "1", "-delete")
    try:
        lab.wait(lambda: node not in held(lab, run), run)
        yield
    finally:
        over(lab, run)
        lab.restart_slurmd(node)


@contextmanager
def unwatched(lab: Lab, run: Path) -> Iterator[None]:
    """No look at the nodes meanwhile: each half a minute one ends the ranks that wait for those of a lost node."""
    batch = lab.batch(run)
    shells = [one.pid for one in lab.processes(run) if one.parent == batch.pid and one.argv == batch.argv]
    loops = [pid for pid in shells if ignores_term(pid)]
    assert loops, "failure_watch::loop is a shell of the batch script's own"
    for pid in loops:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in loops:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def ignores_term(pid: int) -> bool:
    """As loops beside the batch script do. It waits for its other shells, so those must not be stopped."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored, 16) >> (signal.SIGTERM - 1) & 1)


def over(lab: Lab, run: Path) -> None:
    """A test that fails leaves its nodes to the next one."""
    lab.slurm("scancel", lab.job(run)["JobId"], check=False)


def held(lab: Lab, run: Path) -> list[str]:
    """The nodes that a job still has."""
    names = lab.slurm("squeue", "--noheader", f"--jobs={lab.job(run)['JobId']}", "--format=%N").strip()
    return lab.slurm("scontrol", "show", "hostnames", names).split()


def saved(run: Path) -> dict[str, str]:
    """What ranks wrote when they were told to end: whether their worker lived on until then."""
    return {path.name.removeprefix("saved-"): path.read_text(encoding="utf-8") for path in run.glob("saved-*")}


def log(run: Path) -> str:
    return (run / "logs" / "batch.log").read_text(encoding="utf-8")


def test_a1_a_main_role_whose_node_is_lost_never_ends_the_run_well(spare_lab: Lab) -> None:
    """srun --no-kill says 0 of ranks that are lost with their node: role_policy::lost_a_node."""
    run, (node,) = submitted(spare_lab, "main")
    with taken_down(spare_lab, run, node):
        job = spare_lab.wait_end(run, seconds=60)
        assert (job["JobState"], spare_lab.status(run)["exit_code"]) == ("FAILED", 137), log(run)
        assert f"its ranks on {node} were lost with their node" in log(run)
    assert spare_lab.settled(run) == []


@pytest.mark.faults
def test_a1_a_replica_whose_node_is_lost_takes_the_spare_and_both_save(spare_lab: Lab) -> None:
    """The other one trains on, and a cancel reaches both: role_policy::lost_a_node."""
    run, (node,) = submitted(spare_lab, "replica", "restart = 1\n")
    with taken_down(spare_lab, run, node):
        again = run / "up-b-0"
        spare_lab.wait(lambda: again.read_text().startswith("1 ") or '"end"' in events(run), run, seconds=90)
        assert again.read_text().split()[0] == "1", log(run)
        (spare,) = roles_of(run)["b"]
        assert spare not in {node, *roles_of(run)["a"]}
        assert again.read_text() == f"1 {spare}"
        assert (run / "up-a-0").read_text().startswith("0 "), "the other one was not started again"
        spare_lab.kit("cancel", run.name)
        spare_lab.wait_end(run)
        assert saved(run) == {"a-0": "True", "b-0": "True"}, log(run)
        assert spare_lab.status(run)["exit_code"] == 143
    assert spare_lab.settled(run) == []


@pytest.mark.faults
def test_a2_what_is_left_beside_a_lost_node_saves_on_a_cancel(spare_lab: Lab) -> None:
    """A step that named the lost node would not start, and Slurm's own signal ends workers, too: signals::carry."""
    run, nodes = submitted(spare_lab, "replica", nodes_of_b=2, spares=0)
    with unwatched(spare_lab, run), dead(spare_lab, run, nodes[1]):
        spare_lab.kit("cancel", run.name)
        spare_lab.wait_end(run)
        assert saved(run) == {"a-0": "True", "b-0": "True"}, log(run)
        assert "did not reach the ranks" not in log(run)
    assert spare_lab.settled(run) == []


def events(run: Path) -> str:
    return (run / "state" / "events.jsonl").read_text(encoding="utf-8")
