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
    assert "--nodes=1 --ntasks=1 " in lab.calls("srun")[0]
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


# A step of lines that writes where it runs, and the run's code.
NOTES = 'echo "$KIT_LINES on $KIT_NODE_NAMES after ${KIT_EXIT_CODE:-nothing}" >>"$KIT_DONE"; exit "${CODE:-0}"'
AFTER = f"source {LIB}/once.sh; KIT_AFTER_ARGV=(srun bash -c {shlex.quote(NOTES)})\n"


def test_lines_of_per_node_run_on_every_good_node_and_at_each_start(tmp_path: Path) -> None:
    """n2 failed its checks. The fourth node is a spare, which may take over."""
    lab = BatchLab(tmp_path)
    ran = tmp_path / "ran"
    source = f"source {LIB}/once.sh; KIT_PER_NODE_ARGV=(srun bash -c {shlex.quote(NOTES)}); nodes_bad=(n2)\n"
    said = lab.bash(source + "once::before_ranks && once::before_ranks; echo $?", KIT_DONE=str(ran))
    assert said[-1] == "0", said
    assert ran.read_text() == "per_node on n1 n3 n4 after nothing\n" * 2
    assert "--nodelist=n1,n3,n4 " in lab.calls("srun")[0]
    assert "--nodes=3 --ntasks=3" in lab.calls("srun")[0]
    said = lab.bash(source + "once::before_ranks; echo $?", KIT_DONE=str(ran), CODE="4")
    assert said[-1] == "4"
    assert any("the lines of [per_node] ended with exit code 4; no rank was started" in line for line in said)


def test_lines_of_after_know_the_end_and_do_not_change_it(tmp_path: Path) -> None:
    """Also where the ranks' deadline has passed."""
    lab = BatchLab(tmp_path)
    ran = tmp_path / "ran"
    ended = "finish() { local what=$1 code=7; steps::set_deadline 0 'the ranks'; parts::call end; echo $code; }; KIT_PARTS=(once)\n"
    said = lab.bash(AFTER + ended + "finish end", KIT_DONE=str(ran), CODE="3")
    assert said[-1] == "7"
    assert ran.read_text() == "after on n1 after 7\n"
    assert any("the lines of [after] ended with exit code 3; the run's own is 7" in line for line in said)
    lab.bash(AFTER + ended + "finish requeue; finish requeued", KIT_DONE=str(ran))
    assert ran.read_text() == "after on n1 after 7\n", "the run has not ended"
    said = lab.bash(AFTER + ended + "signals_slurms_term=1; finish end", KIT_DONE=str(ran))
    assert ran.read_text() == "after on n1 after 7\n"
    assert any("the lines of [after] do not run: Slurm is ending the job" in line for line in said)


def test_lines_that_take_too_long_are_killed(tmp_path: Path) -> None:
    lab = BatchLab(tmp_path)
    source = f"source {LIB}/once.sh; KIT_AFTER_ARGV=(srun sleep 600); declare -A KIT_LINES_LIMIT=([after]=1)\n"
    said = lab.bash(source + "finish() { local what=end code=0; once::end; echo $code; }; finish")
    assert said[-1] == "0"
    assert any("step kit-after is killed: its lines took longer than after.timeout_s, 1 s" in line for line in said), (
        said
    )
