"""`kit bisect`: the search, the changes of two runs, and what a run's folder says."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from kit import shell
from kit.bisection import changes, commits, judge, record, search
from kit.bisection.bisect import Bisection, begin, result
from kit.bisection.changes import Change
from kit.bisection.commits import Workspaces
from kit.bisection.judge import Ended
from kit.bisection.record import BisectionRecord, Trial
from kit.bisection.search import Verdict
from kit.cli import bisect as cli
from kit.errors import RunError, UsageError
from kit.health.answer import CODE, NODE, NOTHING, Answer
from kit.hosts import status
from kit.record.run_facts import Facts
from kit.schema.set_by import SetBy
from kit.slurm import client
from kit.snapshots import scan
from kit.snapshots.store import Store
from kit.snapshots.tree_listing import ListedFile
from kit.submission.workspace import Left
from tests.unit.test_comparison import Made
from tests.unit.test_comparison import made as made  # noqa: PLC0414 - a fixture


def searched(last: int, width: int, verdict_of: dict[int, Verdict]) -> tuple[int, int, int]:
    """Good and bad state at the end, and the rounds."""
    known: dict[int, Verdict] = {}
    rounds = 0
    while states := search.next_states(known, last, width):
        assert len(set(states)) == len(states)
        assert not known.keys() & set(states)
        known |= {state: verdict_of[state] for state in states}
        rounds += 1
    return *search.interval(known, last), rounds


@given(st.integers(1, 300), st.integers(1, 7), st.data())
def test_the_change_is_found_within_the_rounds(last: int, width: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(1, last))
    good, bad, rounds = searched(last, width, {n: "bad" if n >= culprit else "good" for n in range(last + 1)})
    assert (good, bad) == (culprit - 1, culprit)
    assert rounds <= search.most_rounds(last, width) <= math.ceil(math.log2(last)) + 1


@given(st.lists(st.sampled_from(["good", "bad"]), max_size=60), st.integers(1, 4))
def test_whatever_lies_between_a_good_state_stands_below_a_bad_one(inner: list[Verdict], width: int) -> None:
    verdicts: list[Verdict] = ["good", *inner, "bad"]
    good, bad, _ = searched(len(verdicts) - 1, width, dict(enumerate(verdicts)))
    assert bad == good + 1
    assert (verdicts[good], verdicts[bad]) == ("good", "bad")


@given(st.lists(st.sampled_from(["good", "bad", "untestable"]), max_size=40), st.integers(1, 4))
def test_states_that_say_nothing_are_left_out(inner: list[Verdict], width: int) -> None:
    verdicts: list[Verdict] = ["good", *inner, "bad"]
    good, bad, _ = searched(len(verdicts) - 1, width, dict(enumerate(verdicts)))
    assert (verdicts[good], verdicts[bad]) == ("good", "bad")
    assert {*verdicts[good + 1 : bad]} <= {"untestable"}


def test_32_changes_take_five_rounds_one_state_at_a_time() -> None:
    assert search.most_rounds(32, 1) == 5
    assert search.most_rounds(32, 3) == 3
    assert search.most_rounds(1, 1) == 1


LAYERS = (SetBy(kind="file", name="job.toml", keys=("args", "env.X", "resources.time")),)


def names_of(good: dict[str, Any], bad: dict[str, Any]) -> list[str]:
    return [one.name for one in changes.of_keys(good, bad, (LAYERS, LAYERS))]


def test_each_key_and_each_option_is_a_change() -> None:
    good = {"args": ["data", "--lr", "0.1", "--warmup", "--betas", "0.9", "0.95"], "env": {"X": "1"}, "seed": 1}
    bad = {"args": ["data", "--lr=0.3", "--betas", "0.9", "0.99", "--fused"], "env": {"X": "2"}, "seed": 2}
    assert names_of(good, bad) == ["args.--lr", "args.--warmup", "args.--betas", "args.--fused", "env.X", "seed"]
    some = changes.job_with(good, bad, ["args.--betas", "args.--warmup", "seed"], every=False)
    assert some == {**good, "args": ["data", "--lr", "0.1", "--betas", "0.9", "0.99"], "seed": 2}
    every = changes.job_with(good, bad, names_of(good, bad), every=True)
    assert every == bad


def test_options_that_occur_twice_are_one_change() -> None:
    assert names_of({"args": ["--x", "1", "--x", "2"]}, {"args": ["--x", "1", "--x", "3"]}) == ["args"]
    assert names_of({"args": ["a", "--x"]}, {"args": ["b", "--x"]}) == ["args"]
    assert changes.job_with({"args": ["a"]}, {"args": ["b"]}, ["args"], every=True) == {"args": ["b"]}


def test_what_follows_from_other_keys_is_computed_anew() -> None:
    good = {"resources": {"time": "00:10:00"}, "slurm": {"lead": 60}}
    bad = {"resources": {"time": "01:00:00"}, "slurm": {"lead": 120}}
    assert names_of(good, bad) == ["resources.time"]
    assert changes.derived(good, bad, (LAYERS, LAYERS)) == ["slurm.lead"]
    table = changes.job_with(good, bad, ["resources.time"], every=True, without=["slurm.lead"])
    assert table == {"resources": {"time": "01:00:00"}, "slurm": {}}
    # An older kit did not record who set what: then each is tried.
    assert [one.name for one in changes.of_keys(good, bad, ((), ()))] == ["resources.time", "slurm.lead"]


@given(
    st.dictionaries(st.sampled_from(["--a", "--b", "--c"]), st.lists(st.sampled_from(["1", "2"]), max_size=2)),
    st.dictionaries(st.sampled_from(["--a", "--b", "--d"]), st.lists(st.sampled_from(["1", "2"]), max_size=2)),
)
def test_all_options_one_by_one_make_the_other_list(a: dict[str, list[str]], b: dict[str, list[str]]) -> None:
    good, bad = ([word for name, words in one.items() for word in (name, *words)] for one in (a, b))
    names = [one.name for one in changes.of_keys({"args": good}, {"args": bad}, ((), ()))]
    for count in range(len(names) + 1):
        made = changes.job_with({"args": good}, {"args": bad}, names[:count], every=False)["args"]
        assert sorted(made) == sorted(bad) or count < len(names)


def test_nodes_are_replaced_one_by_one() -> None:
    found = changes.of_nodes(("n1", "n2", "n3"), ("n2", "n4", "n5"))
    assert [one.name for one in found] == ["n1 n4", "n3 n5"]
    assert changes.nodes_with(("n1", "n2", "n3"), ["n3 n5"]) == ("n1", "n2", "n5")
    assert changes.of_nodes(("n1",), ("n1", "n2")) == []


def ended(
    folder: Path, *records: dict[str, Any], code: int | None = 0, state: str = "COMPLETED", rule: str = "completed"
) -> Ended:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    one = status.Status(
        facts=Facts(run_id=folder.name), run_dir=folder, job_id=1, state=state, exit_code=code, nodes="n1", elapsed="",
        reason="", restarts=0,
    )  # fmt: skip
    verdict = {"bad-node": NODE, "cancelled": NOTHING, "completed": NOTHING}.get(rule, CODE)
    return Ended(one, Answer(rule=rule, verdict=verdict, line="it ended", advice="", next=""))


def test_a_metric_tells_good_from_bad(tmp_path: Path) -> None:
    good = ended(tmp_path / "good", {"step": 1, "loss": 9.0}, {"step": 2, "loss": 1.0}, {"step": 3, "lr": 0.1})
    bad = ended(tmp_path / "bad", {"step": 2, "loss": 3.0})
    by = judge.by_metric("loss", None, good, bad)
    assert (by.worse_than, by.larger_is_worse) == (2.0, True)
    assert judge.judge(by, good) == ("good", "loss 1")
    assert judge.judge(by, bad) == ("bad", "loss 3")
    assert judge.judge(by, ended(tmp_path / "nan", {"step": 1, "loss": float("nan")})).verdict == "bad"
    assert judge.judge(by, ended(tmp_path / "none", code=1, state="FAILED")).verdict == "untestable"
    # A run that died half-way has a number that says little, unless it is bad already.
    assert (
        judge.judge(by, ended(tmp_path / "half", {"step": 1, "loss": 1.0}, code=1, state="FAILED")).verdict
        == "untestable"
    )
    assert not judge.by_metric("loss", None, bad, good).larger_is_worse


@pytest.mark.parametrize(("metric", "limit"), [("loss", 5.0), ("loss", 0.5), ("lr", None), ("accuracy", None)])
def test_a_metric_that_does_not_is_refused(tmp_path: Path, metric: str, limit: float | None) -> None:
    good = ended(tmp_path / "good", {"step": 1, "loss": 1.0, "lr": 0.1})
    bad = ended(tmp_path / "bad", {"step": 1, "loss": 3.0, "lr": 0.1})
    with pytest.raises(UsageError) as refused:
        judge.by_metric(metric, limit, good, bad)
    assert refused.value.hint


def test_nan_is_worse_than_any_number(tmp_path: Path) -> None:
    good, bad = (
        ended(tmp_path / "good", {"step": 1, "loss": 1.0}),
        ended(tmp_path / "bad", {"step": 1, "loss": float("nan")}),
    )
    by = judge.by_metric("loss", None, good, bad)
    assert judge.Criterion.model_validate_json(by.model_dump_json()) == by
    assert [judge.judge(by, one).verdict for one in (good, bad)] == ["good", "bad"]
    assert judge.judge(by, ended(tmp_path / "large", {"step": 1, "loss": 1e9})).verdict == "good"


def test_a_metric_of_a_run_that_was_ended_early_is_no_verdict(tmp_path: Path) -> None:
    """Its last value is of an early step, where a good run is no better."""
    by = judge.Criterion(kind="metric", metric="loss", worse_than=2.0)
    early = {"step": 1, "loss": 9.0}
    for rule, code in (("cancelled", 143), ("bad-node", 137)):
        one = ended(tmp_path / rule, early, code=code, state="FAILED", rule=rule)
        assert judge.judge(by, one).verdict == "untestable"
    assert judge.judge(by, ended(tmp_path / "a", early, code=1, state="FAILED", rule="exception")).verdict == "bad"
    same = judge.Criterion(kind="metric", metric="loss", worse_than=2.0, rule="bad-node")
    assert judge.judge(same, ended(tmp_path / "c", early, code=137, state="FAILED", rule="bad-node")).verdict == "bad"
    gone = ended(tmp_path / "b", {"step": 1, "loss": float("nan")}, code=143, state="CANCELLED", rule="cancelled")
    assert judge.judge(by, gone).verdict == "bad"


def test_exit_codes_and_what_is_not_the_codes_fault(tmp_path: Path) -> None:
    by = judge.Criterion(kind="exit-code", rule="exception")
    assert judge.judge(by, ended(tmp_path / "a")).verdict == "good"
    assert judge.judge(by, ended(tmp_path / "b", code=1, state="FAILED", rule="exception")).verdict == "bad"
    assert judge.judge(by, ended(tmp_path / "c", code=1, state="FAILED", rule="bad-node")).verdict == "untestable"
    assert judge.judge(by, ended(tmp_path / "d", code=None, state="LOST")).verdict == "untestable"
    assert judge.judge(by, ended(tmp_path / "f", code=143, state="CANCELLED", rule="cancelled")).verdict == "untestable"
    same = judge.Criterion(kind="exit-code", rule="bad-node")
    assert judge.judge(same, ended(tmp_path / "e", code=1, state="FAILED", rule="bad-node")).verdict == "bad"


@pytest.mark.parametrize(("code", "verdict"), [(0, "good"), (1, "bad"), (127, "bad"), (125, "untestable")])
def test_a_program_decides_as_git_bisect_run_has_it(tmp_path: Path, code: int, verdict: str) -> None:
    program = tmp_path / "check.sh"
    program.write_text(f'#!/bin/sh\necho "looked at $(basename "$1")"\nexit {code}\n')
    program.chmod(0o755)
    found = judge.judge(judge.Criterion(kind="check", check=str(program)), ended(tmp_path / "run"))
    assert found == (verdict, f"check.sh ended with {code} (looked at run)")


def test_a_program_that_breaks_ends_the_bisection(tmp_path: Path) -> None:
    program = tmp_path / "check.sh"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    with pytest.raises(RunError, match="0 is good"):
        judge.judge(judge.Criterion(kind="check", check=str(program)), ended(tmp_path / "run"))


def known(verdicts: dict[int, Verdict], count: int) -> BisectionRecord:
    points = tuple(
        Trial(state=state, round=1, run_dir=f"/r/{state}", verdict=verdict, said=f"said {state}")
        for state, verdict in verdicts.items()
    )
    made = tuple(Change(kind="keys", name=f"k{n}", text=f"the key k{n}") for n in range(1, count + 1))
    by = judge.Criterion(kind="exit-code")
    return BisectionRecord(good="/r/good", bad="/r/bad", by=by, changes=made, left_out=(), points=points)


def test_the_sentence_names_the_change_and_the_two_runs() -> None:
    found = result(known({0: "good", 4: "bad", 2: "bad", 1: "good"}, 4))
    assert found.conclusion == "the key k2 made it bad: with it said 2, without it said 1"
    assert (found.good.run_dir, found.bad.run_dir) == ("/r/1", "/r/2")


def test_states_that_could_not_be_tried_leave_several_changes() -> None:
    found = result(known({0: "good", 4: "bad", 2: "untestable", 1: "good", 3: "untestable"}, 4))
    assert found.conclusion.startswith(
        "one of 3 changes made it bad, and no state between them could be tried: the key k2"
    )
    assert [one.name for one in found.changes] == ["k2", "k3", "k4"]


def test_ends_that_are_not_what_they_were_end_it() -> None:
    assert "the good run is bad when it is run again" in result(known({0: "bad", 4: "bad"}, 4)).conclusion
    assert "the bad run is good when it is run again" in result(known({0: "good", 4: "good"}, 4)).conclusion


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = known({0: "good", 4: "bad"}, 4)
    made.write(tmp_path / "b")
    assert record.read_bisection(tmp_path / "b") == made
    assert record.read_bisection(tmp_path / "none") is None
    (tmp_path / "b" / "bisect.json").write_text("{")
    with pytest.raises(RunError, match="damaged"):
        record.read_bisection(tmp_path / "b")


def git(place: Path, *words: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    return shell.run(["git", "-C", str(place), *identity, *words]).stdout


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, list[str]]:
    """A job's folder inside a repository, and its commits: each changes the folder but the second."""
    folder = tmp_path / "repository" / "job"
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main", "..")
    made = []
    for number in range(4):
        if number == 1:
            (folder.parent / "elsewhere.txt").write_text("other")
        else:
            (folder / "train.py").write_text(f"print({number})\n")
        if number == 3:
            (folder / "run.sh").write_text("#!/bin/sh\n")
            (folder / "run.sh").chmod(0o755)
            (folder / "out").symlink_to("../elsewhere.txt")
        git(folder, "add", "--all", "..")
        git(folder, "commit", "--quiet", "--message", f"change {number}")
        made.append(git(folder, "rev-parse", "HEAD"))
    return folder, made


def test_commits_between_forwards_and_back(repository: tuple[Path, list[str]]) -> None:
    folder, made = repository
    forwards = commits.between(folder, made[0], made[3])
    assert forwards is not None
    assert [one.name for one in forwards] == [made[2], made[3]], (
        "a commit that leaves the job's folder alone is left out"
    )
    assert forwards[0].text == f"commit {made[2][:10]} (change 2)"
    back = commits.between(folder, made[3], made[0])
    assert back is not None
    assert [one.name for one in back] == [f"{made[3]}^", f"{made[2]}^"]
    assert back[0].text.startswith("taking back commit")
    git(folder, "checkout", "--quiet", "-b", "side", made[0])
    (folder / "train.py").write_text("aside\n")
    git(folder, "commit", "--quiet", "--all", "--message", "aside")
    assert commits.between(folder, made[3], git(folder, "rev-parse", "HEAD")) is None
    assert commits.between(folder, made[0], "0" * 40) is None


def test_the_workspace_at_a_commit(repository: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, made = repository
    (folder / "train.py").write_text("work of today\n")
    git(folder, "add", "train.py")
    before = git(folder, "status", "--porcelain")
    store = Store(tmp_path / "store")
    extra = ListedFile("notes.txt", "file", hashlib.sha256(b"beside").hexdigest())
    source = tmp_path / "source"
    source.mkdir()
    (source / "notes.txt").write_text("beside")
    places = Workspaces(folder=folder, store=store, left=Left(("run.sh",), ()), extra=(extra,), source=source)
    tree = places.at(made[3])
    files = store.files_of(tree.hash)
    assert sorted(tree.by_path) == ["notes.txt", "out", "train.py"]
    assert (files / "train.py").read_text() == "print(3)\n"
    assert (files / "notes.txt").read_text() == "beside"
    assert (files / "out").readlink() == folder.parent / "elsewhere.txt"
    assert sorted(places.at(f"{made[3]}^", bare=True).by_path) == ["train.py"]
    assert git(folder, "status", "--porcelain") == before
    with pytest.raises(RunError, match="git does not give its files"):
        places.at("0" * 40)


def test_a_commit_is_the_snapshot_of_its_folder(repository: tuple[Path, list[str]], tmp_path: Path) -> None:
    """Else every state of a commit would differ from the run that was submitted at it."""
    folder, made = repository
    submitted = scan.scan(folder, index=tmp_path / "none", without=(), rules=(), asked_by="job.toml")
    places = Workspaces(folder=folder, store=Store(tmp_path / "store"), left=Left((), ()))
    assert places.at(made[3]).hash == submitted.tree.hash


def test_a_run_that_slurm_never_got_is_submitted_anew(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kill between the run folder and sbatch leaves."""
    run = made.run("a", job_id=None)
    (run / "state/events.jsonl").unlink()
    old = time.time() - 60
    os.utime(run / "manifest.json", (old, old))
    monkeypatch.setattr("kit.hosts.local.LocalHost.is_up", lambda _host: True)
    monkeypatch.setattr(client, "queue", lambda **_: {})
    scripts: dict[str, int] = {str(run / "batch.sh"): 12}
    monkeypatch.setattr(client, "scripts", lambda **_: scripts)
    one = Bisection(folder=made.runs / "b", pair=None, explain=None)  # type: ignore[arg-type]
    assert one._is_submitted(run), "Slurm has a job of its script"
    assert json.loads((run / "manifest.json").read_text())["job_id"] == 12
    other = made.run("b", job_id=None)
    (other / "state/events.jsonl").unlink()
    os.utime(other / "manifest.json", (old, old))
    assert not one._is_submitted(other)
    assert not other.exists()
    assert not one._is_submitted(other)


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    known({0: "good", 4: "bad"}, 4).write(tmp_path)
    one = Bisection(folder=tmp_path, pair=None, explain=None)  # type: ignore[arg-type]
    with FileLock(tmp_path / "lock"), pytest.raises(RunError, match="another kit bisect"):
        one.run(print)


def test_what_makes_a_run_bad_is_asked_for(tmp_path: Path) -> None:
    ends = (ended(tmp_path / "good"), ended(tmp_path / "bad"))
    with pytest.raises(UsageError, match="both runs ended with the same exit code"):
        cli._criterion(None, None, exit_code=False, check=None, ends=ends)
    with pytest.raises(UsageError, match="give one"):
        cli._criterion("loss", None, exit_code=True, check=None, ends=ends)
    with pytest.raises(UsageError, match="--worse-than works only together with --metric"):
        cli._criterion(None, 2.0, exit_code=True, check=None, ends=ends)
    with pytest.raises(UsageError, match="no such program"):
        cli._criterion(None, None, exit_code=False, check=tmp_path / "none.sh", ends=ends)
    failed = (ends[0], ended(tmp_path / "failed", code=3, state="FAILED"))
    assert cli._criterion(None, None, exit_code=False, check=None, ends=failed).kind == "exit-code"


def test_runs_that_have_not_ended_or_are_of_two_clusters_are_no_ends(made: Made) -> None:
    def end(run: Path, state: str = "COMPLETED") -> Ended:
        one = ended(run, state=state)
        return one._replace(status=dataclasses.replace(one.status, facts=Facts(run_id=run.name)))

    a, b = made.run("a"), made.run("b", cluster="elsewhere")
    with pytest.raises(RunError, match="it has not ended"):
        cli._require_pair(end(a, "RUNNING"), end(b))
    with pytest.raises(RunError, match="nowhere and elsewhere") as refused:
        cli._require_pair(end(a), end(b))
    assert refused.value.hint == f"kit rerun {b.name} --cluster nowhere"


def test_a_bad_run_that_is_good_is_refused_before_anything_is_written(made: Made) -> None:
    ends = tuple(ended(made.run(name)) for name in "ab")
    by = judge.Criterion(kind="exit-code")
    with pytest.raises(UsageError, match="was named as the bad one, but it is good"):
        begin(None, by, ends, over=changes.KINDS, explain=None, width=1)  # type: ignore[arg-type]
    assert not (made.runs / record.FOLDER).exists()
