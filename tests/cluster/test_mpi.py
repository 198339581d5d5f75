"""Launcher mpi: ranks that Slurm starts and PMIx or PMI2 brings together, on the node and in a container."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from kit import shell
from tests.cluster.lab import Lab

HELLO = r"""#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
    int rank, size, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d: sum %d\n", rank, size, sum);
    return MPI_Finalize();
}
"""
LOOK = """import os
folder = os.environ["PMIX_SERVER_TMPDIR"]
print(os.environ["PMIX_RANK"], sorted(name.split("_")[1] for name in os.listdir(folder)))
"""
# The protocol of PMI2, which MPI libraries speak on an open file: each rank publishes a word, and after the fence reads all words.
PMI2 = r"""import os
pmi = os.fdopen(int(os.environ["PMI_FD"]), "r+b", buffering=0)
def ask(words):
    pmi.write(b"%6d" % len(words) + words.encode())
    answer = pmi.read(int(pmi.read(6))).decode()
    return dict(pair.split("=", 1) for pair in answer.split(";") if "=" in pair)
pmi.write(b"cmd=init pmi_version=2 pmi_subversion=0\n")
print(pmi.readline())
full = ask(f"cmd=fullinit;pmijobid={os.environ['PMI_JOBID']};pmirank={os.environ['PMI_RANK']};threaded=FALSE;")
rank, size = int(full["rank"]), int(full["size"])
ask(f"cmd=kvs-put;key=k{rank};value=v{rank};")
ask("cmd=kvs-fence;")
found = [ask(f"cmd=kvs-get;jobid={os.environ['PMI_JOBID']};srcid=-1;key=k{other};")["value"] for other in range(size)]
ask("cmd=finalize;")
print(f"rank {rank} of {size}:", *found)
"""
TWO_NODES = "[resources]\nnodes = 2\ngpus_per_node = 2\n[preflight]\nfree_disk_gb = 0\n"


def listed(lab: Lab) -> str:
    """The types of MPI that this Slurm has."""
    done = shell.run(["srun", "--mpi=list"], env={**lab.env, **lab.cluster.env()}, check=False)
    return done.stdout + done.stderr


@pytest.fixture
def pmix(lab: Lab) -> None:
    """Skips where Slurm was built without PMIx."""
    if "pmix" not in listed(lab):
        pytest.skip("this Slurm has no PMIx plugin")


@pytest.mark.usefixtures("pmix")
@pytest.mark.skipif(shutil.which("mpicc") is None, reason="no mpicc: Open MPI is not installed")
def test_an_mpi_program_over_two_nodes(lab: Lab) -> None:
    (lab.project / "hello.c").write_text(HELLO, encoding="utf-8")
    shell.run(["mpicc", "hello.c", "-o", "hello"], cwd=lab.project, timeout=60)
    lab.write(f'command = ["./hello"]\n{TWO_NODES}', launcher="mpi")
    run = lab.run("--no-container")
    assert run.done.returncode == 0, run.log("batch")
    for rank in range(4):
        assert f"rank {rank} of 4: sum 6" in run.log(f"rank-{rank}")


@pytest.mark.usefixtures("pmix")
@pytest.mark.parametrize("runtime", ["bubblewrap", "enroot"])
def test_ranks_in_a_container_see_what_pmix_shares(lab: Lab, runtime: str) -> None:
    """Pyxis leaves it to Enroot's own hook, which a site switches on."""
    if runtime == "enroot" and shutil.which("enroot") is None:
        pytest.skip("Enroot is not on this machine")
    lab.write(f'script = "program.py"\n{TWO_NODES}[container]\nruntime = "{runtime}"\n', LOOK, launcher="mpi")
    run = lab.run()
    assert run.done.returncode == 0, run.log("batch")
    for rank in range(4):
        assert f"{rank} ['dstor', 'dstor']" in run.log(f"rank-{rank}")


@pytest.mark.parametrize("runtime", ["bubblewrap", "pyxis", "enroot", "bare"])
def test_ranks_meet_by_pmi2(lab: Lab, runtime: str, runtime_of: Callable[[str], list[str]]) -> None:
    """The open file that leads to Slurm's PMI2 reaches the program in every container runtime."""
    if "pmi2" not in listed(lab):
        pytest.skip("this Slurm has no PMI2 plugin")
    lab.write(f'script = "program.py"\n{TWO_NODES}[step]\nmpi = "pmi2"\n', PMI2, launcher="mpi")
    run = lab.run(*runtime_of(runtime))
    assert run.done.returncode == 0, run.log("batch") + run.log("rank-0")
    for rank in range(4):
        assert f"rank {rank} of 4: v0 v1 v2 v3" in run.log(f"rank-{rank}")
