"""Settles submits to a cluster over ssh that were interrupted after Slurm had accepted the job: the job's number is recorded."""

from __future__ import annotations

from kit.hosts import remote_send
from kit.hosts.login_node import LoginNode
from kit.hosts.remote_send import array_errand, run_errand
from kit.record import index
from kit.record.unmade_points import POINTS
from kit.ssh.run_folder_mirror import ClusterAnswer


def settle(host: LoginNode, asked: ClusterAnswer) -> None:
    """Record the jobs of runs without one, if Slurm has a job with their batch script. asked: the host's last answer."""
    runs = asked.there.runs
    unknown = [path for path, one in index.runs(host.mirror.runs) if one.slurm_id is None and not one.problem]
    cut = {path.name for path in unknown if f"{runs}/{path.name}/batch.sh" in asked.keys}
    sweeps = {path.parent.parent.name for path in unknown if path.parent.name == POINTS}
    for script in asked.keys if sweeps else ():
        folder, _, name = script.removeprefix(f"{runs}/").partition("/arrays/")
        if folder in sweeps and name.partition("/")[0].isdecimal():
            cut.add(f"{folder}/{name.partition('/')[0]}")
    for name in sorted(cut):
        folder, _, array = name.partition("/")
        script = f"{runs}/{folder}/arrays/{array}/batch.sh" if array else f"{runs}/{folder}/batch.sh"
        argv = ("sbatch", "--parsable", script)
        errand = array_errand(folder, int(array), argv) if array else run_errand(folder, argv)
        remote_send.ask(host, errand)
    if cut:
        host.mirror.refresh(host.connection, host.rules)
