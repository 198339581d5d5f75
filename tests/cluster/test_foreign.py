"""`kit why` on programs of other people's, which know nothing of the kit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import shell
from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

TOP = 'python = "PYTHON"\n[resources]\nnodes = 1\nranks_per_node = 2\n[preflight]\nfree_disk_gb = 0\n'
SYSTEM = TOP.replace("PYTHON", "/usr/bin/python3")


def why(lab: Lab, run: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(lab.kit("why", run.name, "--json").stdout)
    return said


def test_an_installed_packages_example_under_torchrun(lab: Lab, runtime_of: Callable[[str], list[str]]) -> None:
    """One of torch's own, which its other half refuses since some release: what it says is named, whatever torchrun adds."""
    example = 'module = "torch.utils.benchmark.examples.spectral_ops_fuzz_test"\nargs = ["--samples", "1"]\n'
    lab.write(f'{example}shape = "torchrun"\n{TOP.partition(chr(10))[2]}')
    run = lab.run(*runtime_of("bubblewrap"))
    said = why(lab, run.folder)
    assert (said["rule"], said["verdict"]) == ("assertion", "fix the code"), said
    assert re.search(r"rank \d on \S+ failed first: AssertionError: Distribution is not normalized", said["line"]), said


# The standard library's own way: a pool, whose worker fails, or is killed by the kernel.
POOL = """\
import multiprocessing, os, signal, sys

def load(shard):
    if shard == 3 and os.environ["RANK"] == "1":
        FAULT
    return shard

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(sum(pool.map(load, range(6))))
"""


def test_a_script_with_its_own_multiprocessing(lab: Lab) -> None:
    """The exception of a worker comes through the pool: it is named, and the line of the script that waited for the pool."""
    lab.write(
        f'script = "program.py"\nshape = "srun"\n{SYSTEM}',
        POOL.replace("FAULT", "raise ValueError('shard 3 is damaged')"),
    )
    run = lab.run("--no-container")
    said = why(lab, run.folder)
    assert (said["rule"], said["verdict"]) == ("exception", "fix the code"), said
    assert re.search(
        r"^rank 1 on \S+ failed first: ValueError: shard 3 is damaged at program\.py:10\b", said["line"]
    ), said


C = """\
#include <stdio.h>
#include <stdlib.h>
int main(void) {
    const char *rank = getenv("RANK");
    printf("rank %s of %s\\n", rank, getenv("WORLD_SIZE"));
    fflush(stdout);
    END
}
"""


ENDS = {
    "segfault": (
        "if (*rank == '1') *(volatile int *)0 = 1; return 0;",
        r"^segfault: fix the code: rank 1 on \S+ failed first: it ended with a segmentation fault",
    ),
    "its own code": (
        "if (*rank == '1') { fprintf(stderr, \"mesh.dat: no such mesh\\n\"); return 3; } return 0;",
        r"^exit-code: fix the code: rank 1 on \S+ failed first: .*exit code 3; its last line: mesh\.dat: no such mesh",
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_plain_c(lab: Lab, end: str) -> None:
    if shell.which("cc") is None:
        pytest.skip("no C compiler: make setup")
    (lab.project / "mesh.c").write_text(C.replace("END", ENDS[end][0]), encoding="utf-8")
    shell.run(["cc", "-o", str(lab.project / "mesh"), str(lab.project / "mesh.c")])
    lab.write(f'script = "mesh"\nshape = "srun"\n{TOP.replace("PYTHON", "env")}')
    run = lab.run("--no-container")
    said = why(lab, run.folder)
    assert re.search(ENDS[end][1], f"{said['rule']}: {said['verdict']}: {said['line']}"), said
