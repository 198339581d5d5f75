"""Files and sockets of a rank, from the number of ranks and process groups: for the preflight and the warning of `kit render`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.planning import open_files
from kit.planning.plan import Plan
from tests.support import make_site, plan_of, write_job

JOB = 'name = "x"\nlauncher = "{launcher}"\nargs = [{args}]\n{program}\n[resources]\nnodes = {nodes}\ngpus_per_node = 4\n{more}'


def planned(
    folder: Path, *, nodes: int, launcher: str = "ddp", args: str = "", program: str = "", more: str = ""
) -> Plan:
    job = JOB.format(launcher=launcher, nodes=nodes, program=program, more=more, args=args)
    return plan_of(write_job(folder, job), site=make_site(containers=False))


def asked(made: Plan) -> str:
    """What the batch script asks of each node."""
    return next(line for line in made.text_of("batch.sh").split() if line.strip("'").startswith("nofile="))


@pytest.mark.parametrize(
    ("nodes", "more", "files"),
    [
        (1, "", 3 * 3 + 64),
        (256, "", 3 * 1023 + 64),
        (256, "[checkpoint]\nasync = true\n", 4 * 1023 + 64),
        (1024, "", 3 * 4095 + 64),
    ],
)
def test_each_group_connects_a_rank_to_all_others(tmp_path: Path, nodes: int, more: str, files: int) -> None:
    batch = f'"--batch-size", "{nodes * 4}"'
    made = planned(tmp_path, nodes=nodes, more=more, args=batch)
    assert open_files.needed(made.decisions) == files
    assert asked(made).strip("'") == f"nofile={max(files, 1024)}"
    warned = [fault for fault in made.warnings if fault.key == "resources.nodes"]
    assert bool(warned) == (files > 4096)
    if warned:
        assert f"up to {files:,} files and sockets" in warned[0].problem


def test_saves_in_the_background_that_the_program_is_told_of_count(tmp_path: Path) -> None:
    made = planned(tmp_path, nodes=2, args='"--checkpoint-async"')
    assert open_files.needed(made.decisions) == 4 * 7 + 64


def test_nothing_is_said_of_programs_whose_groups_are_not_known(tmp_path: Path) -> None:
    made = planned(tmp_path, nodes=4096, launcher="torchrun", program='script = "train.py"')
    assert (open_files.needed(made.decisions), made.warnings) == (0, ())
    assert asked(made).strip("'") == "nofile=1024"
