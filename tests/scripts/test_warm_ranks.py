"""lib/warm_ranks.sh in the batch script: step kit-warm starts once on all nodes, and its end is said."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from kit import shell
from tests.scripts.batch_lab import BatchLab
from tests.scripts.test_worker import JOB, TASK, run_folder
from tests.warm import came

SOURCE = "KIT_MASTER_PORT=20000\n"
SRUN = 'while [[ "$1" == --* ]]; do shift; done; echo "$KIT_WARM_SERVER" >>"${0%/*}/served"; exec "$@"'

PROGRAM = """
import os, pathlib, signal, sys, time
assert "xml.dom.minidom" in sys.modules
run, rank = pathlib.Path(os.environ["KIT_RUN_DIR"]), os.environ["RANK"]
def save(number, _frame):
    (run / f"saved-{rank}").write_text(str(int(number)))
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, save)
(run / f"up-{rank}").touch()
while True:
    time.sleep(0.1)
"""


def test_the_step_starts_once_and_the_next_starts_use_it(tmp_path: Path) -> None:
    lab = BatchLab(tmp_path)
    lab.command("srun", SRUN)
    script = """KIT_WARM_ARGV=(srun --job-name=kit-warm sleep 1000)
        warm_ranks::before_attempt; echo "wait ${KIT_WARM_WAIT}"
        warm_ranks::before_attempt; echo "wait ${KIT_WARM_WAIT}"
        until [[ -e "${0%/*}/programs/served" ]]; do sleep 0.05; done
        kill "${steps_pid[kit-warm]}"; wait "${steps_pid[kit-warm]}" """
    said = lab.bash(SOURCE + script)
    assert [line for line in said if line.startswith("wait ")] == ["wait 30", "wait 2"], said
    calls = lab.calls("srun")
    assert len(calls) == 1, "one step"
    assert "--nodelist=n1,n2,n3,n4" in calls[0], "the spare, too"
    assert (tmp_path / "programs" / "served").read_text() == "1\n"


def test_the_batch_log_says_once_why_ranks_are_not_warm(tmp_path: Path) -> None:
    """Only the ranks' own logs had the reason, and nobody knew why a restart took long."""
    lab = BatchLab(tmp_path)
    words = "\n".join(f"kit-warm refused 0 {rank} the rank's environment differs in OTHER" for rank in (1, 0))
    script = f"""KIT_WARM_RANKS=2
        warm_ranks::listen "$$" <<<"{words}"; echo over"""
    said = lab.bash(SOURCE + script)
    text = (
        "rank 1 was not started from its warm process, and imports by itself: the rank's environment differs in OTHER"
    )
    assert [line.partition(": ")[2] for line in said] == [text, ""], said


def test_a_step_that_has_ended_is_said_and_no_rank_looks_for_it(tmp_path: Path) -> None:
    lab = BatchLab(tmp_path)
    script = """KIT_WARM_ARGV=(srun --job-name=kit-warm true)
        warm_ranks::before_attempt; wait "${steps_pid[kit-warm]}"
        warm_ranks::before_attempt; echo "wait ${KIT_WARM_WAIT}" """
    said = lab.bash(SOURCE + script)
    assert said[-1] == "wait 0"
    assert "step kit-warm has ended; the ranks import by themselves" in said[-2]


def test_the_signal_of_a_cancel_reaches_forked_ranks(tmp_path: Path) -> None:
    """signal.sh and evidence.sh find them by their environment and their parent, and no rank counts as failed by itself."""
    job = f'{JOB}[retry]\nwarm = ["xml.dom.minidom"]\n'
    run = run_folder(tmp_path, job, "shape=srun")
    (tmp_path / "job" / "look.py").write_text(PROGRAM)
    (run / "state" / "failures").mkdir()
    number = f"77{os.getpid()}"
    env = {
        "PATH": os.environ["PATH"],
        **TASK,
        "SLURM_JOB_ID": number,
        "KIT_FAILURES": "failures",
        "KIT_WARM_WAIT": "60",
    }
    # The number of a rank's failures makes a process one of a rank's step.
    helper = {name: value for name, value in env.items() if name != "KIT_FAILURES"}
    worker, started = [str(run / "worker.sh")], []
    with (run / "logs" / "warm.log").open("w") as log:
        started.append(subprocess.Popen(worker, env={**helper, "KIT_WARM_SERVER": "1"}, stderr=log))
        for rank in range(2):
            own = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
            started.append(subprocess.Popen(worker, env={**env, **own}, stderr=log))
    try:
        came(lambda: len(list(run.glob("up-*"))) == 2)
        shell.run([str(run / "bin/evidence.sh"), str(run / "evidence")], env=helper, check=False)
        shell.run([str(run / "bin/signal.sh"), "TERM", "60"], env=helper, timeout=120)
        codes = [one.wait(60) for one in started]
    finally:
        for one in started:
            one.kill()
    said = "\n".join(path.read_text() for path in (run / "logs").iterdir())
    assert codes == [0, 0, 0], said
    assert sorted((path.name, path.read_text()) for path in run.glob("saved-*")) == [
        ("saved-0", "15"),
        ("saved-1", "15"),
    ]
    assert sorted(path.name for path in (run / "state" / "failures").iterdir()) == ["rank-0.143", "rank-1.143"]
    for rank in range(2):
        evidence = (run / "evidence" / f"rank-{rank}.txt").read_text()
        processes = evidence.split("== processes\n")[1].split("== ")[0].splitlines()
        assert len(processes) == 1, "the program, not its client"
        assert processes[0].rstrip().endswith("look.py")
