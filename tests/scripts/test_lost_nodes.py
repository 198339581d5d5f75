"""A node that Slurm has given up on: what counts as lost, what it costs to ask, and who takes its place."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.scripts.batch_lab import LIB, BatchLab

PLACED = "nodes::learn_addresses; endpoints::place || exit 1\n"
BEGUN = f"""{PLACED}
for name in a b c; do
    roles_start["$name"]=0 roles_since["$name"]=0 roles_restarts["$name"]=0 roles_state["$name"]=up
done
"""


@pytest.fixture
def lab(tmp_path: Path) -> BatchLab:
    return BatchLab(tmp_path)


def test_a1_an_end_with_0_of_ranks_that_were_lost_with_their_node_does_not_count(lab: BatchLab) -> None:
    """srun --no-kill returns 0 for them: the job would be COMPLETED without that role's work."""
    lab.nodes("n1,n3,n4")
    said = lab.bash(
        BEGUN + 'role_policy::on_end 1 0; echo "${roles_state[b]} over=$roles_over code=$roles_code by=$roles_failed"'
    )
    assert said[-1] == "up over=1 code=137 by=b"
    assert any("step b ended with 0, and its ranks on n2 were lost with their node" in line for line in said)


def test_a1_what_srun_says_of_a_lost_node_from_24_11_on_is_no_code_of_the_program(lab: BatchLab) -> None:
    """It says 1, which no retry follows and no requeue."""
    lab.nodes("n1,n3,n4")
    said = lab.bash(BEGUN + 'failures::prepare b-0; role_policy::on_end 1 1; echo "$roles_code"')
    assert said[-1] == "137"


def test_a1_an_end_with_0_counts_where_all_nodes_are_there(lab: BatchLab) -> None:
    said = lab.bash(BEGUN + 'role_policy::on_end 1 0; echo "${roles_state[b]} over=$roles_over"')
    assert said[-1] == "ended over="


def test_a1_a_replica_whose_node_is_lost_comes_back_on_the_spare(lab: BatchLab) -> None:
    lab.nodes("n1,n2,n4")
    script = BEGUN + 'failures::prepare c-0; role_policy::on_end 2 0; echo "${roles_state[c]} on ${endpoints_nodes[c]}"'
    assert lab.bash(script)[-1] == "waiting on n4"


def test_a2_a_signal_goes_to_the_nodes_that_are_left(lab: BatchLab) -> None:
    """A step that names a lost node does not start: the survivor would hear nothing and save nothing."""
    lab.nodes("n1,n3,n4")
    lab.bash(
        BEGUN
        + "sleep 30 & sleep 30 & sleep 30 &\n"
        + "steps_pid=([a]=$! [b]=$! [c]=$!); signals::carry TERM 60; wait ${steps_pid[kit-signal-1]}; kill $(jobs -p)"
    )
    (told,) = [call for call in lab.calls("srun") if "kit-signal" in call]
    assert "--nodelist=n1,n3 " in told
    assert "--nodes=2 --ntasks=2 " in told
    assert told.endswith("true TERM 60")


def test_a2_where_the_signal_step_fails_slurm_signals_the_steps(lab: BatchLab) -> None:
    lab.say("steps", "7.0 a\n7.1 b\n7.2 kit-monitor\n")
    lab.command("srun", "echo 'srun: error: cannot start'; exit 1")
    script = """
sleep 30 & steps_pid=([a]=$!)
signals::carry TERM 60
while kill -0 "${steps_pid[kit-signal-1]}" 2>/dev/null; do sleep 0.05; done
signals::check_carried; kill %1
"""
    said = lab.bash(BEGUN + script)
    assert any("srun: error: cannot start" in line for line in said), "the step's own words are not hidden"
    assert any("TERM did not reach the ranks" in line for line in said)
    assert lab.calls("scancel")[-1] == "scancel --signal=TERM 7.0"


def test_a7_a_look_at_the_nodes_is_one_call_whatever_there_is_of_them(lab: BatchLab) -> None:
    names = ",".join(f"n{i}" for i in range(1, 301))
    lab.nodes(names)
    many = f'nodes_all=({names.replace(",", " ")}); export KIT_NODE_NAMES="${{nodes_all[*]}}"\n'
    lab.bash(many + "failure_watch::look_at_nodes; echo $?")
    assert lab.calls("squeue", "sinfo", "scontrol") == ["squeue --noheader --jobs=7 --format=%N"]


def test_a7_looks_are_half_a_minute_apart() -> None:
    """With one call each that is two a minute, the budget of a running job."""
    text = (LIB / "failure_watch.sh").read_text()
    assert int(re.findall(r"failure_watch_nodes_every=(\d+)", text)[0]) >= 30


def test_a_running_job_with_spares_and_replicas_asks_twice_a_minute(lab: BatchLab) -> None:
    """All that happens while ranks run: the looks of roles, those of failure_watch.sh, and role_policy's answer to its USR2.

    Time is the test's own: two minutes of it pass in 60 looks at three roles of one node each, a spare beside them.
    """
    script = """
unset EPOCHSECONDS; EPOCHSECONDS=1000
failures::listed() { return 1; }
sleep 30 & sleep 30 & sleep 30 &
steps_pid=([a]=$! [b]=$! [c]=$!)
asked=0
read() { ((EPOCHSECONDS += 2, EPOCHSECONDS < 1120)) && return 142; return 1; }
failure_watch::loop $$ 'none*' 1
unset -f read
for ((look = 0; look < 60; look++)); do
    for role in 0 1 2; do roles::look $role; done
    signals::check_carried; role_policy::judge
done
kill $(jobs -p)
"""
    lab.bash(BEGUN + script)
    asked = lab.calls("squeue", "sinfo", "scontrol", "scancel")[1:]
    assert set(asked) == {"squeue --noheader --jobs=7 --format=%N"}
    assert 3 <= len(asked) <= 4


def test_a7_all_addresses_come_from_one_call(lab: BatchLab) -> None:
    lab.bash(PLACED)
    assert len(lab.calls("squeue", "sinfo", "scontrol")) == 1


def test_a7_when_a_node_is_lost_all_roles_are_judged_by_one_look(lab: BatchLab) -> None:
    lab.nodes("n1,n3,n4")
    script = 'steps_pid=([a]=1 [b]=1 [c]=1); role_policy::doom; echo "${!steps_deadline_of[*]}"'
    assert lab.bash(BEGUN + script)[-1] == "b"
    assert lab.calls("squeue", "scontrol") == ["squeue --noheader --jobs=7 --format=%N"]


def test_a8_a_node_that_does_not_answer_is_not_lost(lab: BatchLab) -> None:
    """Slurm itself waits SlurmdTimeout for it, and the ranks continue stepping."""
    lab.say("states", "n1 allocated\nn2 allocated*\nn3 failing*\nn4 idle\n")
    said = lab.bash('failure_watch::look_at_nodes && echo lost; nodes::find_lost n1 n2 n3; echo "${nodes_bad[*]}"')
    assert said[-1] == "n3"
    assert "lost" not in said


def test_a9_nodes_of_a_role_keep_the_order_in_which_slurm_numbers_them(lab: BatchLab) -> None:
    """srun numbers nodes in the allocation's order, whatever --nodelist says: rank 0 has to be where MASTER_ADDR points."""
    two = "KIT_STEP_1[nodes]=2 KIT_STEP_2[first]=1 KIT_STEP_2[nodes]=2\nexport KIT_NODE_NAMES='n1 n4 n3'\n"
    said = lab.bash(two + PLACED + 'echo "${endpoints_nodes[b]} ${KIT_ROLE_B[address]}"')
    assert said[-1] == "n3 n4 10.0.0.3"


def test_a9_roles_json_names_the_node_that_took_over(lab: BatchLab) -> None:
    lab.nodes("n1,n2,n4")
    lab.bash(BEGUN + "role_policy::has_nodes 2")
    assert json.loads((lab.run_dir / "state" / "roles.json").read_text())["c"]["nodes"] == ["n4"]


def test_a10_a_name_is_replaced_as_a_whole(lab: BatchLab) -> None:
    names = "nodes_all=(node20 node2 node12) nodes_bad=(node2); KIT_NODE_NAMES='node20 node2'\n"
    assert lab.bash(names + 'nodes::replace node2; echo "$KIT_NODE_NAMES"')[-1] == "node20 node12"


def test_a11_the_master_is_never_at_the_loopback(lab: BatchLab) -> None:
    """Debian's /etc/hosts leads the own name to 127.0.1.1; other nodes would connect to themselves."""
    lab.command("getent", 'case "$2" in 10.0.0.1) echo "127.0.1.1 STREAM n1" ;; *) echo "$2 STREAM x" ;; esac')
    lab.command("ip", 'echo "$4 dev eth0 src 10.0.0.77 uid 0"')
    assert lab.bash("nodes::learn_addresses; nodes::address n1")[-1] == "10.0.0.77"
    lab.command("ip", "exit 1")
    lab.command("hostname", 'echo "127.0.1.1 10.0.0.78 fe80::1"')
    assert lab.bash("nodes::learn_addresses; nodes::address n1")[-1] == "10.0.0.78"


def test_p2_the_log_has_slurms_short_form_of_many_nodes(lab: BatchLab) -> None:
    lab.command("scontrol", 'case "$1 $2" in "show hostlist") [[ "$3" == n1,n2,n3 ]] && echo "n[1-3]" ;; esac')
    said = lab.bash(
        "nodes::choose_master_port() { KIT_MASTER_PORT=1; }; endpoints::place() { :; }; retry::begin_attempt"
    )
    assert any("attempt 0: ranks on n[1-3]; master" in line for line in said), said


def test_a12_a_node_that_came_back_is_lost_all_the_same(lab: BatchLab) -> None:
    """Slurm took it out of the job for good; its code 143 is not a code of the program's."""
    lab.nodes("n1,n3,n4")
    script = (
        'KIT_RETRY_IN_ALLOCATION=1; nodes::learn_addresses; restarts::again 143; echo "code $? nodes $KIT_NODE_NAMES"'
    )
    said = lab.bash(script)
    assert said[-1] == "code 0 nodes n1 n3 n4"
    assert any("node n2 is lost: it is no longer in the job" in line for line in said)
