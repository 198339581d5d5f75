"""role_policy.sh: what the end of a role means for the others."""

from __future__ import annotations

import os

import pytest

from kit import shell
from tests import laid_out

LIB = laid_out.LIB / "role_policy.sh"
STUBS = r"""
for name in log::info log::error events::record roles::finish roles::restart_in failures::show failures::retire steps::end \
    steps::doom signals::note_preemption roles::forgive; do
    eval "${name}() { echo ${name} \"\$*\"; }"
done
roles::set_state() { roles_state["$1"]="$2"; echo "state $1 $2"; }
roles::count_code() { echo "code $1"; }
roles::fail() { echo "fail $1 $2"; }
failures::code_of() { echo "$2"; }
failures::find_killed() { echo "killed? $*"; }
failures::any() { [[ " ${failed:-} " == *" $1 "* ]]; }
retry::preempted() { ((${preempted:-0})); }
nodes::look() { ((${looks:-1})); }
nodes::lost() { local one; for one; do [[ " ${gone:-} " != *" ${one} "* ]] || { echo "${one}"; found=1; }; done; ((${found:-0})); }
nodes::find_lost() { nodes_bad=(${gone:-}); }
nodes::replace() { ((${spare:-0})); }
endpoints::place() { echo "place $1"; }
declare -A steps_kill_since
declare -A roles_unstarted roles_state roles_start roles_since roles_restarts endpoints_nodes steps_pid
failures_stalled_code=76 KIT_ON_STALL=end KIT_PARTS=(stall_watch) KIT_RUN_DIR=/nowhere
declare -a nodes_bad=()
signals_got="" KIT_OUTLIVES=0 roles_sound_after=600 KIT_STEPS=0
role() { # NAME POLICY [STATE]
    declare -gA "KIT_STEP_${KIT_STEPS}=([name]=$1 [policy]=$2 [folder]=/f [nodes]=2 [ranks]=4
        [restart]=${restart:-0} [least]=${least:-1})"
    declare -ga "KIT_STEP_${KIT_STEPS}_ARGV=(srun --ntasks=2 true)"
    roles_state[$1]="${3:-up}" roles_start[$1]=0 roles_since[$1]=${EPOCHSECONDS} roles_restarts[$1]=${tried:-0}
    endpoints_nodes[$1]="$1-a $1-b"
    KIT_STEPS+=1
}
"""

# The part that ends steps itself, with its own end cut short.
PARTS = f"""
source {LIB.with_name("parts.sh")}
source {LIB.with_name("stall_watch.sh")}
stall_watch::leave_out() {{ echo "leave out $1"; }}
"""


def bash(script: str) -> list[str]:
    """What was called, a line each."""
    text = f"set -uo pipefail\ndeclare -i KIT_STEPS\n{STUBS}\n{PARTS}\nsource {LIB}\n{script}\n"
    done = shell.run(["bash", "-c", text], env={"PATH": os.environ["PATH"]}, check=False)
    assert "rror" not in done.stderr, done.stderr
    assert "unbound" not in done.stderr, done.stderr
    return done.stdout.splitlines()


# ---- on_end ----


@pytest.mark.parametrize(
    ("before", "code", "asks"),
    [
        ("", 137, True),
        ("", 1, False),
        ("signals_got=TERM", 137, False),
        ("preempted=1", 137, False),
        # This script itself killed the step.
        ("steps_kill_since[a]=5", 137, False),
        ("stall_watch_ended[a]=n2", 137, False),
    ],
)
def test_a_rank_that_was_killed_with_its_shell_is_looked_for_where_nobody_else_killed_the_step(
    before: str, code: int, asks: bool
) -> None:
    said = bash(
        f"signals::note_preemption() {{ signals_got=TERM; }}; {before}\nrole a main\nrole_policy::on_end 0 {code}"
    )
    assert ("killed? a-0 a 137 2 4 2 a" in said) is asks, said


@pytest.mark.parametrize(
    ("policy", "code", "said"),
    [
        ("main", 0, ["state a ended"]),
        ("main", 3, ["fail a 3"]),
        ("service", 0, ["fail a 1"]),
        ("service", 4, ["fail a 4"]),
        ("replica", 0, ["state a ended"]),
    ],
)
def test_a_role_that_ends(policy: str, code: int, said: list[str]) -> None:
    assert bash(f"role a {policy}\nrole_policy::on_end 0 {code}") == [f"log::info role a has ended, with {code}", *said]


@pytest.mark.parametrize(("on_stall", "said"), [("end", []), ("restart", ["leave out a"])])
def test_a_step_that_was_ended_since_its_ranks_stood_still(on_stall: str, said: list[str]) -> None:
    told = bash(f"role a main\nKIT_ON_STALL={on_stall}\nstall_watch_ended[a]=n2\nrole_policy::on_end 0 137")
    assert told == [*said, "log::info role a has ended, with 76", "fail a 76"]
    assert bash("role a main\nstall_watch_ended[a]=n2\nrole_policy::on_end 0 0")[-1] == "state a ended", (
        "it ended well before"
    )


def test_a_plain_jobs_only_step_is_not_called_a_role() -> None:
    assert bash("role a main\nKIT_STEP_0[folder]=''\nrole_policy::on_end 0 0") == ["state a ended"]


@pytest.mark.parametrize(("policy", "said"), [("main", ["state a ended", "code 9"]), ("service", ["state a ended"])])
def test_after_a_signal_no_end_is_a_failure(policy: str, said: list[str]) -> None:
    assert bash(f"role a {policy}\nsignals_got=USR1\nrole_policy::on_end 0 9")[1:] == said


def test_a_failure_by_a_preemption_is_one_and_a_good_end_is_not() -> None:
    assert "signals::note_preemption " in bash("preempted=1; role a main\nrole_policy::on_end 0 9")
    assert "signals::note_preemption " not in bash("preempted=1; role a main\nrole_policy::on_end 0 0")
    assert "signals::note_preemption " not in bash("preempted=0; role a main\nrole_policy::on_end 0 9")
    assert "signals::note_preemption " not in bash(
        "preempted=1; signals_got=TERM; role a main\nrole_policy::on_end 0 9"
    )


@pytest.mark.parametrize(
    ("head", "last"),
    [
        ("KIT_OUTLIVES=1; gone=a-b", "fail a 137"),
        ("KIT_OUTLIVES=0; gone=a-b", "state a ended"),
        ("KIT_OUTLIVES=1; gone=a-b; looks=0", "state a ended"),
        ("KIT_OUTLIVES=1; gone=other", "state a ended"),
    ],
)
def test_an_end_with_0_of_a_lost_node_is_a_failure(head: str, last: str) -> None:
    said = bash(f"{head}\nrole a main\nrole_policy::on_end 0 0")
    assert said[-1] == last
    assert any("its ranks on a-b were lost with their node" in line for line in said) == (last == "fail a 137")


@pytest.mark.parametrize(("failed", "last"), [("", "fail a 137"), ("a-0", "fail a 1")])
def test_sruns_own_code_of_a_lost_node_is_no_code_of_a_rank(failed: str, last: str) -> None:
    """From Slurm 24.11 on srun says 1: without a record of a rank that is not an end that the program chose."""
    assert bash(f"KIT_OUTLIVES=1; gone=a-b; failed='{failed}'\nrole a main\nrole_policy::on_end 0 1")[-1] == last


# ---- restarts ----


@pytest.mark.parametrize(("tried", "pause"), [(0, 1), (1, 2), (5, 32), (6, 60), (9, 60)])
def test_a_restart_waits_longer_each_time(tried: int, pause: int) -> None:
    said = bash(f"restart=10 tried={tried}; role a service\nrole_policy::on_death 0 5")
    assert said == [
        "place 0",
        "failures::show a-0 5 a",
        "failures::retire a-0",
        f"roles::restart_in a {pause}",
        f"log::info role a: restart {tried} of 10 in {pause} s",
        "events::record restart role a exit_code 5",
    ]


def test_no_more_restarts_than_the_job_allows() -> None:
    assert bash("restart=2 tried=2; role a service\nrole_policy::on_death 0 5") == ["fail a 5"]


@pytest.mark.parametrize(("age", "forgiven"), [(599, False), (600, True)])
def test_a_role_that_ran_soundly_is_forgiven_its_restarts(age: int, forgiven: bool) -> None:
    head = "role a main\nroles_since[a]=$((EPOCHSECONDS - "
    said = bash(f"{head}{age}))\nEPOCHSECONDS_now=$EPOCHSECONDS\nrole_policy::on_death 0 5")
    assert ("roles::forgive a" in said) == forgiven


@pytest.mark.parametrize(
    ("policy", "spare", "again"),
    [("service", 1, False), ("service", 0, False), ("replica", 1, True), ("replica", 0, False), ("main", 1, True)],
)
def test_a_restart_needs_its_nodes_or_a_spare(policy: str, spare: int, again: bool) -> None:
    said = bash(f"restart=1 spare={spare} gone=a-b least=0; role a {policy}\nrole_policy::on_death 0 5")
    assert any(line.startswith("roles::restart_in") for line in said) == again


# ---- replicas ----


@pytest.mark.parametrize(("least", "goes_on"), [(1, True), (2, True), (3, False)])
def test_replicas_go_on_while_there_are_enough(least: int, goes_on: bool) -> None:
    roles = f"least={least}; role a replica; role b replica; role c replica; role d replica lost; role e service"
    said = bash(f"{roles}\nrole_policy::on_end 0 6")
    if goes_on:
        assert said[1:] == [
            "state a lost",
            "failures::show a-0 6 a",
            "failures::retire a-0",
            "log::error role a is given up; 2 others continue",
            "events::record lost role a exit_code 6",
        ]
    else:
        assert said[1:] == ["state a lost", f"log::error 2 replicas are left; the job wants {least}", "fail a 6"]


def test_lost_replicas_do_not_count_as_left() -> None:
    said = bash("least=3; role a replica; role b replica; role c replica; role d replica\nrole_policy::on_end 0 6")
    assert said[-2] == "log::error role a is given up; 3 others continue"
    said = bash("least=2; role a replica; role b replica; role c replica lost\nrole_policy::on_end 0 6; echo code $?")
    assert said[-3:] == ["log::error 1 replicas are left; the job wants 2", "fail a 6", "code 0"]


@pytest.mark.parametrize(
    ("roles", "over"),
    [
        ("role b service up; role a main up", False),
        ("role a main ended; role b service up", True),
        ("role a main up; role b service up", False),
        ("role a main starting", False),
        ("role a main waiting", False),
        ("role a replica waiting", False),
        ("role a replica waiting; role b replica ended", True),
        ("role a replica waiting; role b replica up; role c replica ended", False),
        ("role a replica lost; role b replica ended", True),
        ("role a main ended; role b replica waiting", False),
        ("role a main ended; role b main waiting", False),
    ],
)
def test_when_the_job_is_over(roles: str, over: bool) -> None:
    assert bash(f"{roles}\nrole_policy::judge") == (["roles::finish "] if over else [])


@pytest.mark.parametrize(
    ("roles", "missed"),
    [
        ("role a main ended; role b service ended", ""),
        ("role a main ended; role b main ended; roles_unstarted[b]=1", "b"),
        ("role a service ended; role b main ended; roles_unstarted[a]=1", ""),
        ("role a replica ended; role b replica ended; roles_unstarted[b]=1", ""),
        ("role a replica ended; role b replica ended; roles_unstarted[a]=1 roles_unstarted[b]=1", "replicas"),
    ],
)
def test_what_a_signal_kept_from_starting_is_missed(roles: str, missed: str) -> None:
    said = bash(f"signals_got=USR1; {roles}\nrole_policy::misses_work && echo missed")
    assert said == ([f"log::info USR1 came before these were started: {missed}", "missed"] if missed else [])


# ---- the rest ----


def test_only_roles_that_run_are_stopped() -> None:
    assert bash("role a main; role b main\nrole_policy::stop_rest && echo fine") == ["fine"]
    said = bash("role a main; role b main\nsteps_pid[b]=5\nrole_policy::stop_rest")
    assert said == ["log::info stopping b", "steps::end 100 b"]


@pytest.mark.parametrize(
    ("head", "doomed"),
    [("failed=a-0", True), ("gone=a-b", True), ("gone=other", False), ("", False), ("failed=a-0 none=1", False)],
)
def test_a_step_whose_rank_failed_or_whose_node_is_lost_has_to_go(head: str, doomed: bool) -> None:
    pid = "" if "none" in head else "steps_pid[a]=5"
    said = bash(f"{head}\nrole a main\n{pid}\nrole_policy::doom")
    expected = "steps::doom a a rank has failed or a node is lost, and the other ranks wait for it"
    assert said == ([expected] if doomed else [])


def test_a_signal_during_the_look_gives_the_ranks_their_time() -> None:
    """A trap runs inside another one: the ranks were killed in the second of a cancel, and saved nothing."""
    head = "KIT_OUTLIVES=1 gone=a-b\nnodes::look() { signals_got=TERM; }\nrole a main\nsteps_pid[a]=5\n"
    assert bash(f"{head}role_policy::doom") == []


@pytest.mark.parametrize(("ended", "doomed"), [("a", "b"), ("b", "a")])
def test_a_role_that_has_ended_hides_no_other(ended: str, doomed: str) -> None:
    """Whichever bash comes to first."""
    said = bash(f"failed='a-0 b-0'; role a main; role b main\nsteps_pid[{doomed}]=5\nrole_policy::doom")
    assert [line.split()[:2] for line in said] == [["steps::doom", doomed]]


@pytest.mark.parametrize(("outlives", "looked"), [(0, False), (1, True)])
def test_nodes_are_looked_at_only_where_the_job_outlives_them(outlives: int, looked: bool) -> None:
    said = bash(f"nodes::look() {{ echo looked; }}\nKIT_OUTLIVES={outlives}\nrole_policy::doom")
    assert said == (["looked"] if looked else [])
