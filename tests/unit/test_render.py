"""`kit render`: what it prints of a job is what a reader decides on."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.cli import render
from kit.planning.plan import Plan
from tests.golden.cases import CASES, planned
from tests.support import plan_of, write_job

BY_NAME = {case.name: case for case in CASES}
# Lines that are printed of a two-node DDP job, in a container and without. They only go down.
MOST_LINES = {"local-pyxis": 246, "local-bare": 186}


def printed(plan: Plan, capsys: pytest.CaptureFixture[str]) -> str:
    render.render_plan(plan, as_json=False)
    return capsys.readouterr().out


@pytest.mark.parametrize("case", MOST_LINES)
def test_the_default_job_is_read_in_a_few_minutes(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(BY_NAME[case])
    text = printed(plan, capsys)
    assert text.count("\n") <= MOST_LINES[case]
    for shown in (
        "#SBATCH --nodes=2\n",
        "KIT_STEP_0_ARGV=(\n    srun\n",
        "KIT_PARTS=(",
        "KIT_PROGRAM=(\n",
        "# sbatch ",
    ):
        assert shown in text


def test_what_it_leaves_out_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines that are printed of a script, and those that it names, are all of the script's."""
    plan = planned(BY_NAME["local-bare"])
    text = printed(plan, capsys)
    for name in ("batch.sh", "worker.sh"):
        shown, _, note = text.partition(f"# ==> {name} <==\n")[2].partition("# … ")
        whole = plan.text_of(name)
        assert whole.startswith(shown)
        # The line that divides a script is neither.
        head = whole.partition("# Below this line nothing is generated.\n")[0]
        assert head.strip() == shown.strip()
        assert int(note.split()[0]) == whole.count("\n") - head.count("\n") - 1 > 0


def test_a_script_that_somebody_changed_is_printed_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = planned(BY_NAME["local-bare"]).text_of("batch.sh")
    assert own.count("parts::source\n") == 1
    changed = own.replace("parts::source\n", "parts::source\nlog::info mine\n")
    (tmp_path / "own.sh").write_text(changed)
    file = write_job(tmp_path, 'name = "x"\nlauncher = "ddp"\nimage = "train-cpu"\n[slurm]\ntemplate = "own.sh"\n')
    assert changed in printed(plan_of(file), capsys)
