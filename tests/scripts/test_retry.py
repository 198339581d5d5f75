"""Requeues of a job: which ends count, and when Slurm is told to stop."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out

LIB = laid_out.LIB / "retry.sh"


def bash(folder: Path, script: str, *, capped: bool, requeue: int, restarts: int, own: int | None = None) -> list[str]:
    """What Slurm is told, a command a line, and then what the script says."""
    (folder / "state").mkdir(parents=True)
    if own is not None:
        (folder / "state" / "requeues").write_text(f"{own}\n")
    (folder / "scontrol").write_text('#!/bin/sh\necho "$@"\n')
    (folder / "scontrol").chmod(0o755)
    head = f"KIT_RUN_DIR={folder} KIT_REQUEUE_CAPPED={int(capped)} KIT_RETRY_REQUEUE={requeue} KIT_RETRY_CODES=(137)"
    head += " KIT_NO_PROGRESS=3"
    state = (
        f"SLURM_RESTART_COUNT={restarts} environment_batch=1 environment_job=7 signals_got='' signals_slurms_term=''"
    )
    stubs = "log::info() { :; }; events::record() { :; }"
    libraries = [
        LIB.with_name(f"{name}.sh")
        for name in ("clock", "numbers", "slurm", "failures", "parts", "stall_watch", "retry", "restarts")
    ]
    source = "\n".join(f"source {library}" for library in libraries)
    text = f"set -uo pipefail\n{head}\n{state}\n{stubs}\n{source}\n{script}\n"
    env = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    return shell.run(["bash", "-c", text], env=env).stdout.splitlines()


@pytest.mark.parametrize(
    ("capped", "restarts", "told"),
    [(True, 0, []), (True, 1, []), (True, 2, ["update JobId=7 Requeue=0"]), (False, 2, [])],
)
def test_slurm_is_told_once_the_times_are_used_up(tmp_path: Path, capped: bool, restarts: int, told: list[str]) -> None:
    assert bash(tmp_path, "restarts::before_ranks", capped=capped, requeue=2, restarts=restarts) == told


@pytest.mark.parametrize(
    ("capped", "restarts", "own", "wants"),
    [
        (True, 1, None, True),
        (True, 2, None, False),
        # Preempted twice, where slurm.requeue leaves that to Slurm: none of the job's own times is used up.
        (False, 2, None, True),
        (False, 3, 2, False),
        # A new job of a run that was resumed: its first start has used up nothing.
        (False, 0, 2, True),
    ],
)
def test_what_counts(tmp_path: Path, capped: bool, restarts: int, own: int | None, wants: bool) -> None:
    script = "restarts::wants_requeue 137 && echo yes || echo no"
    assert bash(tmp_path, script, capped=capped, requeue=2, restarts=restarts, own=own) == ["yes" if wants else "no"]


@pytest.mark.parametrize(
    ("setting", "counted"), [("", "1"), ("retry_without=n2", None), ("signals_slurms_term=1", None)], ids=str
)
def test_a_failed_node_and_a_preemption_do_not_use_up_a_time(tmp_path: Path, setting: str, counted: str | None) -> None:
    said = bash(tmp_path, f"{setting}\nrestarts::requeue 137", capped=False, requeue=2, restarts=0)
    assert said[0] == "requeue 7"
    file = tmp_path / "state" / "requeues"
    assert (file.read_text().strip() if file.exists() else None) == counted


def test_a4_a_failed_node_is_added_to_what_the_job_is_kept_off(tmp_path: Path) -> None:
    """Overwritten, the job goes back and forth between two bad nodes, and the user's own choice is gone."""
    (tmp_path / "state").mkdir()
    (tmp_path / "scontrol").write_text(
        '#!/bin/sh\ncase "$1" in show) echo "JobId=7 ExcNodeList=n1,n[4-5] Features=(null)" ;; *) echo "$@" ;; esac\n'
    )
    (tmp_path / "scontrol").chmod(0o755)
    head = f"KIT_RUN_DIR={tmp_path} environment_job=7 signals_slurms_term='' SLURM_RESTART_COUNT=0 KIT_REQUEUE_CAPPED=0"
    (tmp_path / "avoid").mkdir()
    for name in ("n2", "n9"):
        (tmp_path / "avoid" / name).write_text("job 6: another one's\n")
    (tmp_path / "avoid" / "n8").touch()
    os.utime(tmp_path / "avoid" / "n8", (0, 0))
    # C10: another user's record, and names that are no nodes.
    for name in ("n7", "n5 Partition=other", "n6\nn7"):
        (tmp_path / "avoid" / name).touch()
    if os.geteuid() == 0:
        os.chown(tmp_path / "avoid" / "n7", 65534, 65534)
    else:
        (tmp_path / "avoid" / "n7").unlink()
    head = f"{head} KIT_AVOID_DIR={tmp_path}/avoid"
    sources = "\n".join(
        f"source {LIB.with_name(f'{name}.sh')}" for name in ("clock", "numbers", "slurm", "parts", "retry", "restarts")
    )
    stubs = "log::info() { :; }; events::record() { :; }"
    script = f"{head}\n{stubs}\n{sources}\nretry::leave_out n2,n3; restarts::requeue 72"
    done = shell.run(["bash", "-c", script], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.stdout.splitlines() == ["requeue 7", "update JobId=7 ExcNodeList=n1,n[4-5],n9,n2,n3"]


# ---- how long the ranks have ----


def script_of(folder: Path, script: str, *, commands: dict[str, str] | None = None, **variables: str) -> list[str]:
    """What the script says, in the state of a batch script that nothing has happened to. commands: name -> its body in bash."""
    (folder / "state").mkdir(exist_ok=True)
    usual = {
        "KIT_RUN_DIR": str(folder), "KIT_REQUEUE_CAPPED": "0", "KIT_RETRY_REQUEUE": "2", "KIT_RETRY_IN_ALLOCATION": "2",
        "KIT_NO_PROGRESS": "0", "KIT_PARTS": "(restarts pinned_image stall_watch)",
        "KIT_LEAD": "120", "KIT_GRACE": "9", "KIT_NODES": "2",
        "KIT_NODE_NAMES": "'n1 n2'", "KIT_MASTER_ADDR": "n1", "KIT_MASTER_PORT": "29500",
        "environment_batch": "1", "environment_job": "7", "signals_got": "''", "signals_slurms_term": "''",
    }  # fmt: skip
    head = " ".join(f"{name}={value}" for name, value in {**usual, **variables}.items())
    names = (
        "nodes::choose_master_port",
        "endpoints::place",
        "steps::clear_deadline",
        "nodes::choose",
        "pinned_image::check_image",
    )
    stubs = {name: f"echo {name}" for name in names}
    stubs |= {"log::info": 'echo "$*"', "events::record": 'echo "event $*"', "nodes::short": 'echo "$*"'}
    # One spare: three nodes for two.
    stubs |= {"nodes::find_lost": "nodes_bad=(${lost:-})"} | (commands or {})
    # The real one runs programs, and Slurm's are functions here.
    stubs["timeout"] = 'shift 3; "$@"'
    text = "".join(f"{name}() {{ {body}; }}\n" for name, body in stubs.items())
    sources = "\n".join(
        f"source {LIB.with_name(name)}"
        for name in (
            "clock.sh",
            "numbers.sh",
            "slurm.sh",
            "failures.sh",
            "parts.sh",
            "stall_watch.sh",
            LIB.name,
            "restarts.sh",
        )
    )
    whole = f"set -uo pipefail\nnodes_all=(n1 n2 n3)\n{head}\nKIT_RETRY_CODES=(137 72)\n{text}{sources}\n{script}\n"
    return shell.run(["bash", "-c", whole], env={"PATH": os.environ["PATH"]}, check=False).stdout.splitlines()


@pytest.mark.parametrize(
    ("signal", "variables", "kill_wait", "seconds"),
    [
        ("USR1", {"KIT_LEAD": "120"}, "", 105),
        ("USR1", {"KIT_LEAD": "31"}, "", 16),
        ("USR1", {"KIT_LEAD": "30"}, "", 15),
        ("USR1", {"KIT_LEAD": "0"}, "", 120),
        ("TERM", {}, "", 9),
        ("INT", {}, "", 9),
        ("TERM", {"signals_slurms_term": "1"}, "KillWait                = 60 sec", 55),
        ("TERM", {"signals_slurms_term": "1"}, "KillWait                = 8 sec", 3),
        ("TERM", {"signals_slurms_term": "1"}, "KillWait                = 7 sec", 2),
        ("INT", {"signals_slurms_term": "1"}, "UnkillableStepTimeout = 99", 25),
        ("HUP", {}, "", 30),
    ],
)
def test_the_time_to_save(tmp_path: Path, signal: str, variables: dict[str, str], kill_wait: str, seconds: int) -> None:
    commands = {"scontrol": f"echo '{kill_wait}'"}
    script = f"retry::time_to_save {signal} || echo ' and fails'"
    assert script_of(tmp_path, script, commands=commands, **variables) == [str(seconds)]


# ---- attempts ----


def test_each_attempt_has_the_next_number(tmp_path: Path) -> None:
    first = 'retry::begin_attempt; echo "$KIT_RESTART_COUNT"'
    script = f"{first}; retry::begin_attempt >/dev/null; bash -c 'echo $KIT_RESTART_COUNT'"
    assert script_of(tmp_path, script) == [
        "nodes::choose_master_port",
        "endpoints::place",
        "steps::clear_deadline",
        "attempt 0: ranks on n1 n2; master n1:29500",
        "event attempt nodes n1,n2 master n1:29500 spare 1",
        "0",
        "1",
    ]
    assert (tmp_path / "state" / "attempts").read_text() == "2\n"
    assert script_of(tmp_path, 'retry::begin_attempt >/dev/null; echo "$KIT_RESTART_COUNT"') == ["2"]


def test_after_a_signal_the_deadline_stays(tmp_path: Path) -> None:
    assert "steps::clear_deadline" not in script_of(tmp_path, "retry::begin_attempt", signals_got="USR1")


@pytest.mark.parametrize("fails", ["nodes::choose_master_port", "endpoints::place"])
def test_an_attempt_that_finds_no_place_is_none(tmp_path: Path, fails: str) -> None:
    said = script_of(tmp_path, "retry::begin_attempt || echo no", commands={fails: "return 1"})
    assert said[-1] == "no"
    assert not any(line.startswith("attempt") for line in said)


def test_the_count_before_the_first_attempt_is_slurms(tmp_path: Path) -> None:
    look = "bash -c 'echo $KIT_RESTART_COUNT'"
    assert script_of(tmp_path, look) == ["0"]
    assert script_of(tmp_path, look, SLURM_RESTART_COUNT="3") == ["3"]


AGAIN = ["nodes::choose", "pinned_image::check_image", "restart 1 of 2 in this allocation", "yes"]


@pytest.mark.parametrize(
    ("code", "head", "said"),
    [
        (137, "", AGAIN),
        (72, "", AGAIN),
        (0, "", ["no"]),
        (137, "signals_got=USR1", ["no"]),
        (137, "restarts_in_allocation=2", ["no"]),
        (137, "restarts_in_allocation=1", [*AGAIN[:2], "restart 2 of 2 in this allocation", "yes"]),
        (3, "", ["exit code 3 is the program's own; starting it again would not help", "no"]),
        (3, "lost=n2", AGAIN),
    ],
)
def test_whether_the_ranks_are_started_again_here(tmp_path: Path, code: int, head: str, said: list[str]) -> None:
    assert script_of(tmp_path, f"{head}\nrestarts::again {code} && echo yes || echo no") == said


def test_without_nodes_or_the_image_there_is_no_restart_here(tmp_path: Path) -> None:
    script = 'restarts::again 137 && echo yes || echo "no ${restarts_possible} ${restarts_in_allocation}"'
    assert script_of(tmp_path, script, commands={"nodes::choose": "return 1"}) == ["no 1 0"]
    said = script_of(tmp_path, script, commands={"pinned_image::check_image": "return 1"})
    assert said == ["nodes::choose", "no  0"], "and none by the queue either"


# ---- the queue ----


@pytest.mark.parametrize(
    ("code", "head", "wants"),
    [
        (137, "", True),
        (3, "", False),
        (0, "", False),
        (0, "signals_got=USR1", False),
        (3, "signals_got=USR1", True),
        (137, "signals_got=TERM", False),
        (137, "signals_got=INT", False),
        (137, "restarts_possible=", False),
        (137, "environment_batch=", False),
        (3, "retry_without=n2", True),
        (3, "retry_without=n2 SLURM_RESTART_COUNT=9 KIT_REQUEUE_CAPPED=1", True),
        (137, "SLURM_RESTART_COUNT=1 KIT_REQUEUE_CAPPED=1", True),
        (137, "KIT_REQUEUE_CAPPED=1 KIT_RETRY_REQUEUE=1", True),
        (137, "SLURM_RESTART_COUNT=2 KIT_REQUEUE_CAPPED=1", False),
    ],
)
def test_whether_the_job_goes_back_to_the_queue(tmp_path: Path, code: int, head: str, wants: bool) -> None:
    said = script_of(tmp_path, f"{head}\nrestarts::wants_requeue {code} && echo yes || echo no")
    assert said[-1] == ("yes" if wants else "no")


@pytest.mark.parametrize(
    ("code", "most", "said"),
    [
        (137, 2, ["not back to the queue: retry.requeue is 2, and used up", "no"]),
        (3, 2, ["no"]),
        (137, 0, ["no"]),
    ],
)
def test_a_job_that_has_used_up_its_requeues_says_so(tmp_path: Path, code: int, most: int, said: list[str]) -> None:
    head = f"SLURM_RESTART_COUNT=2 KIT_REQUEUE_CAPPED=1 KIT_RETRY_REQUEUE={most}"
    assert script_of(tmp_path, f"{head}\nrestarts::wants_requeue {code} && echo yes || echo no") == said


@pytest.mark.parametrize(("state", "running"), [("RUNNING", True), ("COMPLETING", False), ("", False)])
def test_whether_slurm_lets_the_job_run(tmp_path: Path, state: str, running: bool) -> None:
    said = script_of(tmp_path, "retry::is_running 10 && echo yes || echo no", commands={"squeue": f"echo '{state}'"})
    assert said == ["yes" if running else "no"]


@pytest.mark.parametrize(
    ("signal", "restarts", "requeued"), [("TERM", 2, True), ("TERM", 1, False), ("USR1", 2, False), ("''", 2, False)]
)
def test_slurms_own_requeue_has_counted_already(tmp_path: Path, signal: str, restarts: int, requeued: bool) -> None:
    commands = {"scontrol": f"echo 'JobId=7 Requeue=1 Restarts={restarts} BatchFlag=1'"}
    script = "SLURM_RESTART_COUNT=1\nretry::slurm_requeued && echo yes || echo no"
    said = script_of(tmp_path, script, commands=commands, signals_got=signal)
    assert said == ["yes" if requeued else "no"]


@pytest.mark.parametrize(
    ("batch", "time", "preempted"),
    [
        ("1", "2026-11-22T10:00:00", True),
        ("1", "2026-11-22T09:30:00", True),
        ("1", "None", False),
        ("''", "2026-11-22T10:00:00", False),
        # Of an earlier start, before the job went back to the queue.
        ("1", "2026-11-22T09:00:00", False),
    ],
)
def test_whether_slurm_makes_room(tmp_path: Path, batch: str, time: str, preempted: bool) -> None:
    commands = {"scontrol": f"echo 'JobId=7 StartTime=2026-11-22T09:30:00 PreemptTime={time} SuspendTime=None'"}
    said = script_of(tmp_path, "retry::preempted && echo yes || echo no", commands=commands, environment_batch=batch)
    assert said == ["yes" if preempted else "no"]


@pytest.mark.parametrize(
    ("site", "by_slurm"),
    [
        (("24.05.0", "preempt/partition_prio", "REQUEUE", "REQUEUE", "1"), True),
        (("26.05.5", "preempt/qos", "REQUEUE", "cluster", "1"), True),
        (("24.11.5", "preempt/qos", "CANCEL", "requeue", "1"), True),
        (("24.11.5", "preempt/qos", "REQUEUE", "cancel", "1"), False),
        (("24.11.5", "preempt/partition_prio", "REQUEUE", "CANCEL", "1"), False),
        (("24.11.5", "preempt/partition_prio", "REQUEUE", "REQUEUE", "0"), False),
        (("23.11.10", "preempt/partition_prio", "REQUEUE", "REQUEUE", "1"), False),
        (("22.05.8", "preempt/partition_prio", "REQUEUE", "REQUEUE", "1"), False),
    ],
)
@pytest.mark.parametrize("time", ["2026-11-22T10:00:00", "None"], ids=["preempted", "not-preempted"])
def test_a_preempted_job_is_put_back_once(
    tmp_path: Path, site: tuple[str, str, str, str, str], by_slurm: bool, time: str
) -> None:
    """Slurm 24.05 and later do it by themselves. What the kit does besides would start the job again after its end with 0."""
    version, kind, mode, own, requeue = site
    commands = {
        "scontrol": f"""case "$1 $2" in
            "show config") printf '%s = %s\\n' PreemptMode {mode} PreemptType {kind} SLURM_VERSION {version} ;;
            "show partition") [[ "$3" == main ]] && echo "PartitionName=main PreemptMode={own} State=UP" ;;
            "show job") echo "JobId=7 Requeue={requeue} StartTime=2026-11-22T09:00:00 PreemptTime={time} SuspendTime=None" ;;
            *) echo "$*" ;;
        esac""",
        "sacctmgr": f'[[ "$*" == *" low "* ]] && echo {own}',
    }
    script = 'SLURM_JOB_PARTITION=main SLURM_JOB_QOS=low\nrestarts::requeue 143; echo "code $?"'
    said = script_of(tmp_path, script, commands=commands, SLURM_JOB_ID="7")
    assert ("requeue 7" in said) is not (by_slurm and time != "None"), said
    assert said[-1] == "code 0"


@pytest.mark.parametrize(
    ("batch", "alive", "cancelled"), [("1", True, False), ("1", False, True), ("''", False, False), ("''", True, False)]
)
def test_the_end_leaves_no_secrets_and_reaches_slurm(tmp_path: Path, batch: str, alive: bool, cancelled: bool) -> None:
    (tmp_path / ".secrets").touch()
    commands = {"log::error": 'echo "error $*"', "scancel": 'echo "scancel $*"'}
    script = f"retry::has_slurmstepd() {{ {'true' if alive else 'false'}; }}\nSLURM_JOB_ID=7\nretry::record_end 3; retry::end 3"
    said = script_of(tmp_path, script, commands=commands, environment_batch=batch)
    assert said[:2] == ["event end exit_code 3", "end of job 7: exit code 3"]
    assert ("scancel 7" in said) == cancelled
    assert not (tmp_path / ".secrets").exists()


@pytest.mark.parametrize(
    ("furthest", "nowhere"),
    [
        ("5 5 5 5", [0, 0, 0, 1]),
        ("5 3 5 4", [0, 0, 0, 1]),
        ("0 0 0", [0, 0, 1]),
        ("5 5 5 6 6 6 6", [0, 0, 0, 0, 0, 0, 1]),
        ("- - - - - -", [0, 0, 0, 0, 0, 0]),
    ],
    ids=["stands", "falls back", "never a step", "a step between", "reports none"],
)
def test_starts_that_get_nowhere_are_counted(tmp_path: Path, furthest: str, nowhere: list[int]) -> None:
    script = "restarts::read_furthest() { printf %s $now; }; sleep() { :; }; log::error() { :; }\n"
    script += f"for now in {furthest}; do restarts::gets_nowhere && echo 1 || echo 0; done"
    assert bash(tmp_path, script, capped=True, requeue=9, restarts=0) == [str(one) for one in nowhere]


def test_an_earlier_job_of_the_run_folder_does_not_count(tmp_path: Path) -> None:
    script = "restarts::read_furthest() { printf 5; }; sleep() { :; }; log::error() { echo ended; }\n"
    script += 'echo "6 9 2" >"${restarts_progress_file}"; restarts::gets_nowhere; cat "${restarts_progress_file}"'
    assert bash(tmp_path, script, capped=True, requeue=9, restarts=0) == ["7 5 0"]


def test_the_last_steps_may_come_late(tmp_path: Path) -> None:
    """The collector looks every five seconds: before the run is ended it is asked once more."""
    script = 'restarts::read_furthest() { cat "${KIT_RUN_DIR}/now"; }; sleep() { echo 8 >"${KIT_RUN_DIR}/now"; }\n'
    script += (
        'echo "7 5 2" >"${restarts_progress_file}"; echo 5 >"${KIT_RUN_DIR}/now"; restarts::gets_nowhere; echo "$?"'
    )
    assert bash(tmp_path, script, capped=True, requeue=9, restarts=0) == ["1"]


def test_it_waits_for_late_steps_only_where_they_would_decide(tmp_path: Path) -> None:
    script = "restarts::read_furthest() { printf 5; }; sleep() { echo waited; }; log::error() { :; }\n"
    script += 'for start in 1 2 3 4; do echo "start ${start}"; restarts::gets_nowhere && echo nowhere; done; :'
    said = bash(tmp_path, script, capped=True, requeue=9, restarts=0)
    assert said == ["start 1", "start 2", "start 3", "start 4", "waited", "nowhere"]
    script = "restarts::read_furthest() { printf 5; }; sleep() { echo waited; }\n"
    script += 'echo "7 4 2" >"${restarts_progress_file}"; restarts::gets_nowhere || echo on'
    assert bash(tmp_path / "other", script, capped=True, requeue=9, restarts=0) == ["on"]


def test_starts_that_get_nowhere_are_no_restart_here(tmp_path: Path) -> None:
    script = "restarts::gets_nowhere() { true; }\nrestarts::again 137 && echo yes || echo no"
    assert script_of(tmp_path, script) == ["nodes::choose", "pinned_image::check_image", "no"]


@pytest.mark.parametrize(("on_stall", "again"), [("restart", True), ("end", False)])
def test_after_a_standstill_the_job_says_whether_it_starts_again(tmp_path: Path, on_stall: str, again: bool) -> None:
    """Whatever retry.codes has."""
    script = 'KIT_RETRY_CODES+=("${failures_stalled_code}")\n'
    script += 'restarts::is_retryable "${failures_stalled_code}" && echo yes || echo no'
    assert script_of(tmp_path, script, KIT_ON_STALL=on_stall) == ["yes" if again else "no"]


@pytest.mark.parametrize(("said", "requeued"), [("Restarts=1", True), ("Restarts=0", False), ("nothing", False)])
def test_a_job_that_was_never_queued_again_has_no_count(tmp_path: Path, said: str, requeued: bool) -> None:
    commands = {"scontrol": f"echo 'JobId=7 {said} BatchFlag=1'"}
    script = "unset SLURM_RESTART_COUNT\nretry::slurm_requeued && echo yes || echo no"
    assert script_of(tmp_path, script, commands=commands, signals_got="TERM") == ["yes" if requeued else "no"]


def test_without_a_count_slurm_is_not_told_to_stop(tmp_path: Path) -> None:
    variables = {"KIT_REQUEUE_CAPPED": "1", "KIT_RETRY_REQUEUE": "1"}
    script = 'unset SLURM_RESTART_COUNT\nrestarts::before_ranks; echo "code $?"'
    assert script_of(tmp_path, script, commands={"scontrol": "echo told"}, **variables) == ["code 0"]
    script = 'SLURM_RESTART_COUNT=1\nrestarts::before_ranks; echo "code $?"'
    assert script_of(tmp_path, script, commands={"scontrol": "return 1"}, **variables) == ["code 0"]


def test_going_back_to_the_queue_is_told_and_may_fail(tmp_path: Path) -> None:
    variables = {"SLURM_JOB_ID": "7", "KIT_AVOID_DIR": str(tmp_path / "avoid")}
    told = "exit code 137; back to the queue (0 times so far)"
    said = script_of(tmp_path, 'restarts::requeue 137; echo "code $?"', commands={"scontrol": 'echo "$*"'}, **variables)
    assert said == [told, "event requeue exit_code 137", "requeue 7", "code 0"]
    refused = {"scontrol": '[[ "$1" != requeue ]] && echo "$*"'}
    said = script_of(tmp_path, 'retry_without=n2\nrestarts::requeue 137; echo "code $?"', commands=refused, **variables)
    assert said[-1] == "code 1"
    assert not any(line.startswith("update") for line in said), "the job is not queued: no node is excluded"
    refused = {"scontrol": '[[ "$1" == requeue ]]'}
    said = script_of(tmp_path, 'retry_without=n2\nrestarts::requeue 137; echo "code $?"', commands=refused, **variables)
    assert said[-1] == "code 0", "queued all the same"


def test_a_script_knows_whether_who_started_it_is_there(tmp_path: Path) -> None:
    """Also one whose name would mislead who reads /proc/PID/stat by columns."""
    child = tmp_path / "a ) b"
    child.write_text(
        f"#!/bin/bash\nsource {LIB}\nretry::has_slurmstepd && echo parent || echo none\n"
        '[[ -z "${1:-}" ]] || while kill -0 "$1" 2>/dev/null; do sleep 0.02; done\n'
        "retry::has_slurmstepd && echo parent || echo none\n"
    )
    child.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "KIT_RUN_DIR": str(tmp_path)}
    done = shell.run(["bash", "-c", '"$0"; true', str(child)], env=env)
    assert done.stdout.splitlines() == ["parent", "parent"]
    waited = 'for i in {1..100}; do sleep 0.05; [[ $(wc -l <"$1") != 2 ]] || break; done'
    left = f'bash -c \'"$0" $$ >"$1" & sleep 0.3\' "$0" "$1"; {waited}'
    shell.run(["bash", "-c", left, str(child), str(tmp_path / "said")], env=env)
    assert (tmp_path / "said").read_text().split() == ["parent", "none"]
