"""Runs under a real bash 4.4, as nodes of RHEL 8 and SLES 15 have it, bound over /bin/bash of each node.

Skipped, and named, where no bash 4.4 is: see tests/scripts/test_oldest_bash.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.cluster.lab import Lab
from tests.scripts.test_oldest_bash import BASH_4_4

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.root,
    pytest.mark.skipif(not BASH_4_4.is_file(), reason=f"no bash 4.4 at {BASH_4_4}: name one by KIT_TEST_BASH_4_4"),
]

HEAD = """\
script = "program.py"
shape = "srun"
python = "/usr/bin/python3"
[preflight]
free_disk_gb = 0
[resources]
gpus_per_node = 1
"""
VERSION = (
    "import os, subprocess\n"
    'print(subprocess.run(["/bin/bash", "-c", "echo ${BASH_VERSION%.*}"], capture_output=True, text=True).stdout)\n'
)


@pytest.fixture
def old(lab: Lab) -> Iterator[Lab]:
    """The lab's nodes, with bash 4.4 as /bin/bash of everything that starts on them, also without a container."""
    for node in lab.cluster.nodes:
        lab.inside(node.name, "mount", "--bind", str(BASH_4_4), "/bin/bash")
    try:
        yield lab
    finally:
        for node in lab.cluster.nodes:
            lab.inside(node.name, "umount", "--lazy", "/bin/bash")


def test_a_run_trains_and_ends_well(old: Lab) -> None:
    old.write(HEAD, f"{VERSION}print('rank', os.environ['RANK'])\n")
    run = old.run("--no-container")
    assert run.done.returncode == 0, run.log("batch")
    assert {"4.4", "rank 1"} <= set(run.log("rank-1").splitlines())
    events = [json.loads(line) for line in (run.folder / "state" / "events.jsonl").read_text().splitlines()]
    assert events[-1]["event"] == "end"
    assert all(isinstance(event["epoch"], float) for event in events)
    assert old.settled(run.folder) == []


def test_the_rank_that_failed_is_named(old: Lab) -> None:
    old.write(HEAD, f"{VERSION}if os.environ['RANK'] == '1': 1 / 0\nimport time\ntime.sleep(600)\n")
    run = old.run("--no-container")
    assert run.done.returncode == 1, run.log("batch")
    said = json.loads(old.kit("why", run.folder.name, "--json").stdout)
    assert said["rule"] == "exception"
    assert said["line"].startswith("rank 1 on ")
    assert old.settled(run.folder) == []


def test_a_killed_rank_sends_the_job_back_to_the_queue(old: Lab) -> None:
    """In the image, whose bash is another; all outside of it is bash 4.4."""
    old.write(
        f"{HEAD}[retry]\nrequeue = 1\n",
        "import os, signal\nif os.environ.get('SLURM_RESTART_COUNT', '0') == '0': os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    run = old.run()
    job = old.job(run.folder)
    assert (run.done.returncode, job["JobState"], job["Restarts"]) == (0, "COMPLETED", "1"), run.log("batch")
    said = re.findall(r"\.sh: line \d+: .*", run.log("batch"))
    assert said == [], "the shell itself complains of nothing"
    assert old.settled(run.folder) == []
