"""Launcher mpi: ranks that Slurm starts and PMIx brings together, on the node and in a container."""

from __future__ import annotations

import shutil

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
TWO_NODES = "[resources]\nnodes = 2\ngpus_per_node = 2\n[preflight]\nfree_disk_gb = 0\n"


@pytest.fixture
def pmix(lab: Lab) -> None:
    """Skips where Slurm was built without PMIx."""
    done = shell.run(["srun", "--mpi=list"], env={**lab.env, **lab.cluster.env()}, check=False)
    if "pmix" not in done.stdout + done.stderr:
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
        pytest.skip("no enroot on this machine")
    lab.write(f'script = "program.py"\n{TWO_NODES}[container]\nruntime = "{runtime}"\n', LOOK, launcher="mpi")
    run = lab.run()
    assert run.done.returncode == 0, run.log("batch")
    for rank in range(4):
        assert f"{rank} ['dstor', 'dstor']" in run.log(f"rank-{rank}")
