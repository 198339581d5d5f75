"""The lines of [once]: before any rank, once per job, and the job ends with the code of the one that fails."""

from __future__ import annotations

import shlex
from pathlib import Path

from tests.scripts.batch_lab import LIB, BatchLab

SOURCE = f"source {LIB}/once.sh; KIT_ONCE_ARGV=(srun bash -c 'echo ran >>$KIT_DONE; exit '$CODE)\n"


def test_once_runs_once_per_job_on_the_first_node(tmp_path: Path) -> None:
    lab = BatchLab(tmp_path)
    ran = tmp_path / "ran"
    assert (
        lab.bash(SOURCE + "once::before_ranks && once::before_ranks; echo $?", CODE="0", KIT_DONE=str(ran))[-1] == "0"
    )
    assert ran.read_text() == "ran\n"
    assert "--nodelist=n1 " in lab.calls("srun")[0]
    lab.bash(SOURCE + "once::before_ranks", CODE="0", KIT_DONE=str(ran), SLURM_JOB_ID="8")
    assert ran.read_text() == "ran\nran\n", "another job of the run"


def test_a_line_of_once_that_fails_ends_the_job_with_its_code(tmp_path: Path) -> None:
    lab = BatchLab(tmp_path)
    (lab.run_dir / "logs" / "once.log").write_text("error: once-lines.sh: line 1 failed\n")
    said = lab.bash(SOURCE + "once::before_ranks; echo $?", CODE="9", KIT_DONE="/dev/null")
    assert said[-1] == "9"
    assert any("once-lines.sh: line 1 failed" in line for line in said)


def test_lines_that_lost_their_slurmstepd_are_not_waited_for(tmp_path: Path) -> None:
    """srun hears nothing of their end: the record counts."""
    lab = BatchLab(tmp_path)
    orphan = 'echo "1 once 137 n1" >"$KIT_RUN_DIR/state/$KIT_FAILURES/rank-once.137"; exec sleep 600'
    said = lab.bash(
        f"export KIT_RUN_DIR; source {LIB}/once.sh; KIT_ONCE_ARGV=(srun bash -c {shlex.quote(orphan)})\nonce::before_ranks; echo $?"
    )
    assert said[-1] == "137", said
    assert any("step kit-once is killed: slurmstepd, by which Slurm runs it, is gone" in line for line in said)
