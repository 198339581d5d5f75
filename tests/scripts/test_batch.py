"""The batch script's own functions in a bash without a Slurm: nodes and ports, interactive or not, what counts as true."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out

LIB = laid_out.LIB
# Two replica groups on one node and one on the next.
STEPS = "\n".join(
    f"declare -A KIT_STEP_{i}=([name]=replica-{i} [folder]=roles/replica-{i} [variable]=REPLICA_{i} "
    f"[first]={i // 2} [nodes]=1 [ports]='{'http' if i == 0 else ''}')"
    for i in range(3)
)
SCONTROL = """#!/bin/bash
case "$*" in
    "show hostnames n[1-2]") printf 'n1\\nn2\\n' ;;
esac
"""


SINFO = "#!/bin/sh\nprintf 'n1 127.0.0.1\\nn2 127.0.0.2\\n'\n"


def bash(folder: Path, script: str, **env: str) -> list[str]:
    """What a script says that has the functions."""
    (folder / "state").mkdir(exist_ok=True)
    (folder / "scontrol").write_text(SCONTROL)
    (folder / "scontrol").chmod(0o755)
    (folder / "sinfo").write_text(SINFO)
    (folder / "sinfo").chmod(0o755)
    names = ("log", "environment", "debug", "nodes", "endpoints", "job_roles", "parts")
    sources = "\n".join(f"source {LIB}/{name}.sh" for name in names)
    constants = f"KIT_RUN_DIR={folder} KIT_MASTER_PORT_BASE=20000 KIT_NODES=2 KIT_STEPS=3 KIT_PARTS=(job_roles)"
    text = f"set -uo pipefail\n{constants}\n{sources}\n{script}\n"
    given = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[1-2]", "KIT_RESTART_COUNT": "0", **env}
    return shell.run(["bash", "-c", text], env=given).stdout.splitlines()


PLACE = f"""

{STEPS}
nodes::resolve && endpoints::place || exit 1
for i in 0 1 2; do
    declare -n one="KIT_ROLE_REPLICA_$i"
    echo "${{one[address]}} ${{one[master]}}"
done
"""


def ports(folder: Path, **env: str) -> list[int]:
    return [int(line.split()[1]) for line in bash(folder, PLACE, **{"SLURM_JOB_ID": "4711", **env})]


def test_each_group_meets_on_its_first_node_at_a_port_of_its_own(tmp_path: Path) -> None:
    said = bash(tmp_path, PLACE, SLURM_JOB_ID="4711")
    assert [line.split()[0] for line in said] == ["127.0.0.1", "127.0.0.1", "127.0.0.2"]
    found = ports(tmp_path)
    assert len(set(found)) == 3
    assert all(20_000 <= port < 30_000 for port in found)
    roles = json.loads((tmp_path / "state" / "roles.json").read_text())
    assert roles["replica-2"] == {"nodes": ["n2"], "addresses": ["127.0.0.2"], "ports": {}}
    assert roles["replica-0"]["ports"]["http"] not in found


def test_ports_come_from_the_job_and_its_start(tmp_path: Path) -> None:
    assert ports(tmp_path) == ports(tmp_path), "every node would find the same"
    assert not set(ports(tmp_path)) & set(ports(tmp_path, SLURM_JOB_ID="4712"))
    assert not set(ports(tmp_path)) & set(ports(tmp_path, KIT_RESTART_COUNT="1"))


def test_a_port_that_is_taken_is_passed_over(tmp_path: Path) -> None:
    first, *_ = ports(tmp_path)
    with socket.create_server(("127.0.0.1", first)):
        assert first not in ports(tmp_path)


BANNER = """
KIT_JOB_NAME=digits KIT_WORLD="world size 8" SLURM_JOB_NODELIST="n[1-2]" KIT_IMAGES=(/store/x.sqsh sha256:c0ffee) KIT_RUNTIME=pyxis
nodes::resolve && nodes::banner 2>&1
"""


def test_the_banner_says_what_runs_where(tmp_path: Path) -> None:
    said = [line.partition(": ")[2] for line in bash(tmp_path, BANNER, SLURM_JOB_ID="4711")]
    assert said[:3] == [
        f"job 4711 (digits), queued again 0 times, run folder {tmp_path}",
        "nodes: n[1-2]; world size 8",
        "image: /store/x.sqsh sha256:c0ffee; runtime: pyxis",
    ]
    assert "; bash " in said[3]


INTERACTIVE = """
environment::require_allocation
echo "share=${environment_share[*]}"
compgen -e | grep '^SLURM_' | sort
"""
# What salloc and srun --pty leave behind.
STEP = {
    "SLURM_STEP_ID": "0",
    "SLURM_PTY_PORT": "4000",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_SRUN_COMM_PORT": "5000",
}


def test_an_interactive_step_is_noticed_and_its_variables_are_reset(tmp_path: Path) -> None:
    """Without SLURM_DISTRIBUTION srun hands out tasks in blocks."""
    said = bash(tmp_path, INTERACTIVE, SLURM_JOB_ID="1", **STEP)
    assert said == ["share=--overlap", "SLURM_JOB_ID", "SLURM_JOB_NODELIST"]


def test_a_batch_job_keeps_its_variables(tmp_path: Path) -> None:
    said = bash(tmp_path, INTERACTIVE, SLURM_JOB_ID="1", SLURM_NTASKS="4", SLURM_PROCID="0")
    assert said == ["share=", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NTASKS", "SLURM_PROCID"]


def test_a19_a_batch_script_of_slurm_26_is_no_interactive_step(tmp_path: Path) -> None:
    """It has SLURM_STEP_ID there, and no port of an srun; a step that somebody works in has one, whatever it inherited."""
    batch = bash(tmp_path, INTERACTIVE, SLURM_JOB_ID="1", SLURM_STEP_ID="4294967291", ENVIRONMENT="BATCH")
    assert batch == ["share=", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_STEP_ID"]
    inside = bash(tmp_path, INTERACTIVE, SLURM_JOB_ID="1", ENVIRONMENT="BATCH", **STEP)
    assert inside[0] == "share=--overlap"


@pytest.mark.parametrize("value", ["on", "y", "yes", "t", "true", "1", "ON", "Yes", "tRUE"])
def test_true(tmp_path: Path, value: str) -> None:
    assert bash(tmp_path, 'debug::is_true "$VALUE" && echo yes', VALUE=value) == ["yes"]


@pytest.mark.parametrize("value", ["", "0", "off", "no", "not", "21", "12", "on ", "y\n1", "trues"])
def test_not_true(tmp_path: Path, value: str) -> None:
    assert bash(tmp_path, 'debug::is_true "$VALUE" || echo no', VALUE=value) == ["no"]
