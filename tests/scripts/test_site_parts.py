"""lib/site_parts.sh: a site's own scripts run at their phases, each in a bash of its own with a time limit."""

from __future__ import annotations

from pathlib import Path

from tests.scripts.batch_lab import LIB, BatchLab

PARTS = {
    "licences": 'licences::before_ranks() { echo "licences of $KIT_JOB_NAME in $KIT_RUN_DIR"; exit "${CODE:-0}"; }\n',
    "movers": 'movers::begun() { echo "begun on $HOSTNAME"; KIT_NODES=0; unset_name=$nothing; }\n'
    'movers::before_ranks() { echo "moved"; }\n'
    'movers::end() { echo "$KIT_OUTCOME with $KIT_EXIT_CODE"; [[ -z "${SLOW:-}" ]] || exec sleep 600; }\n',
}
SOURCE = (
    f"source {LIB}/site_parts.sh; KIT_PARTS=(site_parts) KIT_JOB_NAME=digits KIT_SITE_PARTS_LIMIT=${{LIMIT:-20}}\n"
    "readonly KIT_RUN_DIR KIT_JOB_NAME KIT_SITE_PARTS_LIMIT\n"
    "KIT_SITE_PARTS=('licences before_ranks' 'movers begun before_ranks end')\n"
)


def lab_with_parts(folder: Path) -> BatchLab:
    lab = BatchLab(folder)
    site = lab.run_dir / "lib" / "site"
    site.mkdir(parents=True)
    for name, text in PARTS.items():
        (site / f"{name}.sh").write_text(text)
    return lab


def test_a_phase_that_fails_stops_nothing_but_before_ranks(tmp_path: Path) -> None:
    """Nor does it change the batch script's own variables."""
    lab = lab_with_parts(tmp_path)
    said = lab.bash(SOURCE + "parts::call begun; echo $? $KIT_NODES")
    assert said[-1] == "0 3"
    assert any("nothing: unbound variable" in line for line in said)
    assert any("error: part movers of the site: begun ended with exit code" in line for line in said)
    said = lab.bash(SOURCE + "parts::require before_ranks; echo $?")
    assert said == [f"licences of digits in {lab.run_dir}", "moved", "0"]
    said = lab.bash(SOURCE + "parts::require before_ranks; echo $?", CODE="9")
    assert said[-1] == "9"
    assert "moved" not in said
    assert any("error: part licences of the site: before_ranks ended with exit code 9" in line for line in said)


def test_the_end_knows_what_comes_of_the_run(tmp_path: Path) -> None:
    lab = lab_with_parts(tmp_path)
    ended = "finish() { local what=$1 code=7; signals_got=TERM; parts::call end; echo $code; }\n"
    assert lab.bash(SOURCE + ended + "finish requeue") == ["requeue with 7", "7"], "the signal is over"
    said = lab.bash(SOURCE + ended + "signals_slurms_term=1; finish end")
    assert said[-1] == "7"
    assert any("the site's own parts do not run: Slurm is ending the job" in line for line in said)


def test_a_phase_ends_at_its_limit_and_at_a_signal(tmp_path: Path) -> None:
    lab = lab_with_parts(tmp_path)
    ended = "finish() { local what=end code=0; parts::call end; echo $?; }\n"
    said = lab.bash(SOURCE + ended + "finish", SLOW="1", LIMIT="1")
    assert said[-1] == "0"
    assert any("error: part movers of the site: end took longer than 1 s, parts.timeout_s" in line for line in said)
    waits = "licences::before_ranks() { exec sleep 600; }\n"
    (lab.run_dir / "lib" / "site" / "licences.sh").write_text(waits)
    said = lab.bash(SOURCE + "signals_got=TERM; parts::require before_ranks; echo $?", LIMIT="500")
    assert said[-1] == "143", said
    assert "moved" not in said
