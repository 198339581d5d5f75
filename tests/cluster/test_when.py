"""`kit when` and the forecast of `kit submit` on a real Slurm: the plan is the one that its backfill scheduler makes."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path

import pytest

from kit.forecast.backfill import BackfillPlan, NodeRequest
from kit.slurm import client, queue_snapshot
from kit.slurm.queue_snapshot import Amount
from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

# Slurm rounds the ends of its own plan to bf_resolution, a minute.
_ROUNDED_S = 61


def _send(lab: Lab, folder: Path, *options: str) -> int:
    script = folder / "sleep.sh"
    script.write_text("#!/bin/sh\nsleep 600\n")
    argv = ["sbatch", "--parsable", "--exclusive", "--output=/dev/null", *options, str(script)]
    return client.submit(argv, env=client.environment(lab.cluster.env()))


def test_the_plan_is_slurms_own_and_a_job_is_told_its_gap(lab: Lab, tmp_path: Path) -> None:
    nodes = len(lab.cluster.nodes)
    env = client.environment(lab.cluster.env())
    jobs = [_send(lab, tmp_path, f"--nodes={nodes - 1}", "--time=10")]
    try:
        _wait_for(lambda: client.queue(env=env, job_ids=jobs)[jobs[0]].state == "RUNNING")
        jobs += [_send(lab, tmp_path, f"--nodes={nodes}", "--time=20"), _send(lab, tmp_path, "--nodes=1", "--time=30")]
        _wait_for(lambda: client.expected_start(jobs[2], env=env))
        seen = queue_snapshot.read_queue(env=env)
        slurms = [_epoch(client.expected_start(job, env=env)) for job in jobs[1:]]
        assert not seen.hidden
        waiting, seen_before = (
            seen.waiting,
            queue_snapshot.QueueSnapshot(now=seen.now, nodes=seen.nodes, running=seen.running, waiting=()),
        )
        plan = BackfillPlan(seen_before)
        ours = [
            plan.take(
                NodeRequest(
                    nodes=job.nodes,
                    each=job.each,
                    limit=job.limit,
                    partitions=job.partitions,
                    whole_nodes=job.whole_nodes,
                )
            )
            for job in waiting
        ]
        assert [one for one in ours if one is not None] == pytest.approx(slurms, abs=_ROUNDED_S)
        gap = BackfillPlan(seen).gap(NodeRequest(nodes=1, each=Amount(cpus=1), limit=60, whole_nodes=True))
        assert 0 < gap <= 600

        # A short job starts in the gap, a long one behind the others; Slurm's own estimate puts both behind.
        lab.write('script = "program.py"\n[resources]\nnodes = 1\ntime = "1:00:00"\n[[when]]\ntime = "0:05:00"\n', "")
        (lab.project / "program.py").write_text("print(1)\n")
        told = json.loads(lab.kit("when", "--no-container", "--cluster", lab.cluster.name, "--json").stdout)
        starts = {one["limit_s"]: one for one in told}
        assert (starts[300.0]["free_now_s"], starts[300.0]["by"]) == (pytest.approx(gap, abs=30), "plan")
        assert starts[300.0]["start"] < starts[3600.0]["start"]
        assert told[0]["limit_s"] == 300.0
        assert shlex.split(told[0]["command"])[3:] == [
            "--cluster", lab.cluster.name, "--set", "resources.time=0:05:00", "--no-container",
        ]  # fmt: skip
        said = lab.kit("when", "--no-container", "--cluster", lab.cluster.name).stdout
        assert "1 node for 5 min: starts now" in said

        # A sweep has a piece for each point, at every size.
        (lab.project / "sweep.toml").write_text(
            (lab.project / "job.toml").read_text() + "[sweep.grid]\nenv.X = [1, 2]\n"
        )
        told = json.loads(
            lab.kit("when", "sweep.toml", "--no-container", "--cluster", lab.cluster.name, "--json").stdout
        )
        assert {(one["limit_s"], one["pieces"]) for one in told} == {(300.0, 2), (3600.0, 2)}
        assert all(one["command"].startswith("kit sweep sweep.toml ") for one in told)

        # The same for a submit.
        done = lab.kit("submit", "--no-container", "--cluster", lab.cluster.name)
        assert "forecast: 1 node for 1 h: starts at" in done.stderr
        jobs.append(json.loads((Path(done.stdout.split()[0]) / "manifest.json").read_text())["job_id"])
    finally:
        client.cancel(*jobs, env=env)


def test_another_partition_is_offered_where_the_job_names_none(tmp_path: Path, train_cpu: Path) -> None:
    """A partition that nobody named and that would refuse the job is left out, with no message."""
    conf = {"PartitionName": "urgent Nodes=ALL PriorityTier=10 MaxTime=30 State=UP"}
    with lab_on("when", 1, train_cpu, tmp_path, conf) as lab:
        env = client.environment(lab.cluster.env())
        jobs = [_send(lab, tmp_path, "--nodes=1", "--time=10"), _send(lab, tmp_path, "--nodes=1", "--time=600")]
        _wait_for(lambda: client.queue(env=env, job_ids=jobs)[jobs[0]].state == "RUNNING")
        lab.write(
            'script = "program.py"\n[resources]\nnodes = 1\ntime = "0:20:00"\n[[when]]\ntime = "2:00:00"\n',
            "print(1)\n",
        )

        def told(*more: str) -> list[tuple[float, str | None]]:
            done = lab.kit("when", "--no-container", "--cluster", lab.cluster.name, "--json", *more)
            return [(one["limit_s"], one["partition"]) for one in json.loads(done.stdout)]

        # It goes before the job that waits for ten hours.
        assert told() == [(1200.0, "urgent"), (1200.0, None), (7200.0, None)]
        assert told("--set", "slurm.partition=urgent")[0] == (1200.0, "urgent")
        # In no other partition than that of the job; sbatch itself accepts what its limit never lets start.
        assert len(told("--set", "slurm.partition=urgent")) == 2
        said = lab.kit(
            "when", "--no-container", "--cluster", lab.cluster.name, "--set", "slurm.partition=urgent"
        ).stdout
        assert "1 node for 2 h, partition urgent: refused: partition urgent gives a job at most 30 min" in said
        client.cancel(*jobs, env=env)


def _epoch(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))


def _wait_for(condition: object, seconds: float = 60) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.3)


@pytest.mark.parametrize("gpus", ["", "gpus_per_node = 0\n"], ids=["placeholder GPUs", "none"])
def test_a_model_that_cannot_fit_is_refused_before_anything_is_written(lab: Lab, gpus: str) -> None:
    """GPUs that are only names have no memory: the ranks compute on CPUs, in the node's."""
    lab.write(
        'script = "/kit/run/code/train_gpt.py"\nargs = ["--dim", "4096", "--heads", "32", "--layers", "24"]\n'
        f'[resources]\nnodes = 1\nranks_per_node = 2\nmemory = "8G"\n{gpus}'
    )
    done = lab.kit("submit", "--no-container", "--cluster", lab.cluster.name, check=False)
    assert done.returncode == 3
    assert "2 ranks hold" in done.stderr
    assert "8.6 GB of a node" in done.stderr
