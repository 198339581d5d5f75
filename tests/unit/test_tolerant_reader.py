"""Answers of Slurm's commands with lines of a site around them, failed requests, and waits over a time without answers.

Stand-ins fail in the way and at the moment that a test needs; tests/cluster/test_network.py puts the same around a real Slurm.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.errors import NoAnswerError, SlurmError, ToolError
from kit.hosts import patient_queue, status
from kit.hosts.patient_queue import PatientQueue
from kit.schema.run_paths import RunPaths
from kit.slurm import accounting, client, detect_cluster, queue_snapshot, tolerant_reader
from kit.slurm.client import JobId, QueuedJob
from tests.unit.test_status import Clock, run_dir

__all__ = ["run_dir"]

ODD = st.text(st.characters(blacklist_characters="\n"), max_size=60).filter(lambda text: "kit|" not in text)
OURS = "kit|12|N/A|RUNNING|n1|0:07|None\nkit|13|4|PENDING||0:00|a site's | reason\n"
ROW = "12|COMPLETED|0:0|61|n1||00:01.5|1764000000\n12.batch|COMPLETED|0:0|61|n1|2048K|00:01.5|1764000000\n"


def tool(folder: Path, name: str, script: str) -> dict[str, str]:
    """An environment in which the program is this script; `$n` is the number of the call, from 1."""
    count = f'n=$(($(cat {folder}/calls 2>/dev/null || echo 0) + 1)); echo "$n" >{folder}/calls\n'
    (folder / name).write_text(f"#!/bin/bash\n{count}{script}\n")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def calls(folder: Path) -> int:
    return int((folder / "calls").read_text())


@given(before=st.lists(ODD, max_size=3), after=st.lists(ODD, max_size=3), glued=ODD)
def test_lines_of_a_site_around_the_queue(before: list[str], after: list[str], glued: str) -> None:
    """The text before the first line may lack its newline."""
    text = "\n".join([*before, glued]) + OURS + "\n".join(after)
    found = client.jobs_in(text)
    assert found == client.jobs_in(OURS)
    assert {job: (one.state, one.nodes, one.elapsed, one.reason) for job, one in found.items()} == {
        12: ("RUNNING", "n1", "0:07", "None"),
        "13_4": ("PENDING", "", "0:00", "a site's | reason"),
    }


@given(text=st.text(max_size=300))
def test_no_answer_ends_in_a_traceback(text: str) -> None:
    for one in (text, f"kit|{text}", text.replace(" ", "|"), "|".join([*text])):
        found = [
            client.jobs_in(one),
            client.numbers_in(one),
            accounting.parse(one),
            queue_snapshot.parse(one, one, now=0.0),
        ]
        assert None not in found


@given(before=ODD, after=ODD)
def test_lines_of_a_site_around_accounting(before: str, after: str) -> None:
    plain = accounting.parse(ROW)
    assert plain[12].max_rss == 2 << 20
    if before.count("|") + 1 != 8 and after.count("|") + 1 != 8:
        assert accounting.parse(f"{before}\n{ROW}{after}") == plain


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ("4711", [4711]),
        ("4711;cluster-2", [4711]),
        ("a word of the site's own\n4711", [4711]),
        ("4711\n1 December: maintenance\n", [4711]),
        ("4711\n4711", [4711]),
        ("4711\n4712", [4711, 4712]),
        ("Submitted batch job", []),
        ("", []),
    ],
)
def test_the_numbers_in_an_answer_of_sbatch(said: str, numbers: list[int]) -> None:
    assert client.numbers_in(said) == numbers


def test_a_failed_request_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerant_reader, "_AGAIN_S", (0.0, 0.0))
    answer = f"cat <<'END'\n{OURS}END"
    env = tool(tmp_path, "squeue", f"if ((n < 3)); then echo 'Socket timed out' >&2; exit 1; fi\n{answer}")
    assert set(client.queue(env=env)) == {12, "13_4"}
    assert calls(tmp_path) == 3


def test_it_is_repeated_a_few_times_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerant_reader, "_AGAIN_S", (0.0, 0.0))
    env = tool(tmp_path, "squeue", "echo 'Socket timed out' >&2; exit 1")
    with pytest.raises(SlurmError, match=r"squeue could not be asked.*exit code 1\n.*Socket timed out"):
        client.queue(env=env)
    assert calls(tmp_path) == 3


def test_a_request_that_stands_still_is_ended_and_not_repeated(tmp_path: Path) -> None:
    env = tool(tmp_path, "squeue", "exec sleep 600")
    with pytest.raises(ToolError, match="no answer within 1 s"):
        tolerant_reader.ask(["squeue"], env=env, timeout=1.0)
    assert calls(tmp_path) == 1


def test_a_machine_without_a_controller_is_one_line(tmp_path: Path) -> None:
    """Slurm's commands are installed, and nothing names a cluster: each tells four errors of its search."""
    said = "scontrol: error: fetch_config: DNS SRV lookup failed\nscontrol: fatal: Could not establish a configuration source"
    env = tool(tmp_path, "scontrol", f"echo '{said}' >&2; exit 1")
    with pytest.raises(SlurmError) as caught:
        detect_cluster.detect(env=env)
    assert caught.value.message == (
        "this machine's Slurm cannot be reached: scontrol: fatal: Could not establish a configuration source"
    )


def test_a_banner_on_every_tool(tmp_path: Path) -> None:
    """The answer of `kit cluster detect` and of the nodes' list."""
    env = tool(
        tmp_path, "sinfo", "echo 'Maintenance | on | Monday'; echo 'kit|n1|idle|batch*'; echo 'kit|n2|down*|batch*'"
    )
    assert client.nodes_in_service(env=env) == ("n1",)
    env = tool(tmp_path, "sbatch", "echo 'Welcome to 24 nodes'; echo 'slurm-wlm 22.05.8'; echo bye")
    assert client.version(env=env) == "22.05.8"
    listed = "Welcome\nkit|batch|8|4000|gpu:4\nnot | of | the | form\n"
    assert detect_cluster._commonest(listed, "batch").gpus == 4


class Said:
    """Collects what is said, and answers as it is told: None fails."""

    def __init__(self, *answers: dict[JobId, QueuedJob] | None) -> None:
        self.lines: list[str] = []
        self.answers = [*answers]

    def queue(self, _: str) -> dict[JobId, QueuedJob]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise SlurmError("squeue could not be asked: squeue: exit code 1\n  Socket timed out")
        return answer


def job(state: str) -> dict[JobId, QueuedJob]:
    return {7: QueuedJob(job_id=7, state=state, reason="None", nodes="n1", elapsed="1:00")}


START = {"event": "start", "job_id": "7", "nodes": "n1", "restart": "0"}


def test_a_wait_continues_over_failed_requests(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first failed look ended it with 6, while the run continued."""
    clock = Clock(run_dir, {0.0: START, 20.0: {"event": "end", "exit_code": "0"}})
    monkeypatch.setattr("kit.hosts.status.time", clock)
    RunPaths(run_dir).closed.write_text("1.0\n")
    said = Said(job("RUNNING"), None, None, job("RUNNING"), None, job("COMPLETED"))
    ended = status.wait(run_dir, queue=said.queue, on_poll=lambda _: None)
    assert (ended.state, ended.exit_code) == ("COMPLETED", 0)
    assert len(said.answers) == 1
    assert (
        capsys.readouterr().err.count("Slurm does not answer: Socket timed out; asking again, the run continues") == 1
    )


def test_a_run_that_ends_while_no_controller_answers(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(run_dir, {0.0: START, 20.0: {"event": "end", "exit_code": "3"}})
    monkeypatch.setattr("kit.hosts.status.time", clock)
    RunPaths(run_dir).closed.write_text("1.0\n")
    ended = status.wait(run_dir, queue=Said(job("RUNNING"), None).queue, on_poll=lambda _: None)
    assert (ended.state, ended.exit_code) == ("FAILED", 3)


def test_a_wait_without_any_answer_ends_and_says_that_the_run_continues(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(run_dir, {})
    monkeypatch.setattr("kit.hosts.status.time", clock)
    monkeypatch.setattr(patient_queue, "time", clock)
    with pytest.raises(
        NoAnswerError, match=r"(?s)not answered for 15 minutes: Socket timed out.*the run continues"
    ) as found:
        status.wait(run_dir, queue=Said(None).queue, on_poll=lambda _: None)
    assert found.value.exit_code == 8
    assert 900 < clock.now < 920


def test_an_answer_starts_the_time_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = Clock(tmp_path, {})
    monkeypatch.setattr(patient_queue, "time", clock)
    said = Said(None, None, {}, None, None)
    asked = PatientQueue(said.queue, say=said.lines.append)
    found = []
    for _ in range(5):
        found.append(asked("local"))
        clock.sleep(600)
    assert found == [None, None, {}, None, None]
    assert len(said.lines) == 1


class Merging(Clock):
    """The batch script merges its logs until second 11."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.now >= 11:
            RunPaths(self.path.parent.parent).closed.write_text("11.0\n")


def test_the_end_is_complete_when_the_logs_are_merged(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch script records its code, then merges the logs: Slurm may have forgotten the job in between."""
    clock = Merging(run_dir, {0.0: START, 6.0: {"event": "end", "exit_code": "0", "epoch": "6.0"}})
    monkeypatch.setattr("kit.hosts.status.time", clock)
    ended = status.wait(run_dir, queue=lambda _: job("RUNNING") if clock.now < 6 else {}, on_poll=lambda _: None)
    assert ended.exit_code == 0
    assert RunPaths(run_dir).closed.exists()


def test_a_batch_script_that_is_killed_while_it_merges_is_not_waited_for(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(run_dir, {0.0: START, 6.0: {"event": "end", "exit_code": "0", "epoch": "6.0"}})
    monkeypatch.setattr("kit.hosts.status.time", clock)
    ended = status.wait(run_dir, queue=lambda _: job("RUNNING") if clock.now < 6 else {}, on_poll=lambda _: None)
    assert ended.exit_code == 0
    assert clock.now < 30
