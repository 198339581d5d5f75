"""One training on two clusters: how it is split, what is refused, and that it is submitted and cancelled as one."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from kit import config
from kit.cli import app
from kit.errors import ConfigError, JobRefusedError, RunError, ToolError, UsageError
from kit.hosts import pair_relay, status
from kit.hosts.local import LocalHost
from kit.pair import two_clusters
from kit.pair.two_clusters import TwoRuns
from kit.record import cache_files, manifest, secret
from kit.schema.cluster import RelayRules
from kit.schema.job import Job
from kit.schema.run_paths import RunPaths
from kit.slurm.client import QueuedJob
from kit.submission import catch_up, lone_halves, prepare_run, rerun, resume, submit
from kit.sweeps import cancel_by_name
from tests.support import REPO
from tests.unit.fake_host import FakeHost

NOW = datetime(2026, 11, 23, 14, 0, tzinfo=UTC)
RELAY = '[relay]\nhost = "login.one"\nports = "41000-41999"\nbind = "127.0.0.1"\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with clusters one, which has a relay, and two; the working folder."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "clusters").mkdir()
    write(tmp_path, nodes=3)
    cluster(tmp_path, "one", RELAY)
    cluster(tmp_path, "two")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def write(project: Path, more: str = "", *, nodes: int = 3, across: str = "true") -> None:
    (project / "job.toml").write_text(
        f'name = "gpt"\nlauncher = "diloco"\nimage = "frameworks-cpu"\n[container]\nruntime = "bare"\n'
        f"[resources]\nnodes = {nodes}\n[diloco]\nacross = {across}\n{more}\n"
    )


def cluster(project: Path, name: str, more: str = "", *, gpus: int = 0) -> None:
    text = f'embedded = true\n{more}\n[node]\ncpus = 4\ngpus = {gpus}\n[defaults.resources]\ntime = "01:00:00"\n'
    (project / "clusters" / f"{name}.toml").write_text(text)


def prepared(project: Path, *overrides: str) -> TwoRuns:
    return two_clusters.prepare_pair(project, ["one", "two"], overrides=overrides, containers=False, now=NOW)


@pytest.mark.parametrize(
    ("nodes", "table", "expected"),
    [
        (2, {}, [(1, 0, 2), (1, 1, 2)]),
        (3, {}, [(2, 0, 3), (1, 2, 3)]),
        (2, {"replicas_per_node": 2}, [(1, 0, 4), (1, 2, 4)]),
        (6, {"nodes_per_replica": 2}, [(4, 0, 3), (2, 2, 3)]),
    ],
)
def test_groups_are_split_over_both(nodes: int, table: dict[str, Any], expected: list[tuple[int, int, int]]) -> None:
    job = Job.model_validate({"name": "a", "launcher": "diloco", "resources": {"nodes": nodes}, "diloco": table})
    assert two_clusters.split(job, file="job.toml") == expected


@pytest.mark.parametrize(("nodes", "table"), [(1, {}), (2, {"nodes_per_replica": 2}), (5, {"nodes_per_replica": 2})])
def test_each_cluster_needs_a_whole_group(nodes: int, table: dict[str, Any]) -> None:
    job = Job.model_validate({"name": "a", "launcher": "diloco", "resources": {"nodes": nodes}, "diloco": table})
    with pytest.raises(ConfigError, match="each needs a group at least"):
        two_clusters.split(job, file="job.toml")


def test_both_plans_are_halves_of_one_training(project: Path) -> None:
    pair = prepared(project)
    first, second = (one.plan for one in pair.runs)
    assert (first.allocation.nodes, second.allocation.nodes) == (2, 1)
    address = f"login.one:{pair.port}"
    for plan, here in ((first, "0 2"), (second, "2 1")):
        roles = {role.name: role.role for role in plan.roles}
        table = plan.job.diloco
        assert table is not None
        assert (table.relay, table.groups) == (address, 3)
        replica = roles["replica-0"]
        assert replica.env["REPLICA_GROUPS_HERE"] == here
        assert replica.env["NUM_REPLICA_GROUPS"] == "3"
        assert replica.env["TORCHFT_LIGHTHOUSE"] == "http://{gate.address}:{gate.port.lighthouse}"
        assert replica.after == ("lighthouse", "gate")
        assert "--min-replicas 1" in plan.text_of("roles/replica-0/program.sh").replace("\n", " ").replace("    ", "")
        assert address in plan.text_of("layout.txt")
    gates = [next(role.role.args for role in plan.roles if role.name == "gate") for plan in (first, second)]
    assert ["--first" in words for words in gates] == [True, False]
    names = [one.plan.run_id for one in pair.runs]
    assert [one.partner.run_id for one in pair.runs if one.partner] == names[::-1]
    assert names[0].endswith("-one")
    assert names[1].endswith("-two")


def test_the_token_is_one_and_a_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run keeps it in its file of secrets, mode 0600; no file of the plan, no argument and no manifest has it."""
    pair = prepared(project)
    values = [submit.secrets_of(one)[secret.RELAY_TOKEN] for one in pair.runs]
    assert values[0] == values[1]
    assert len(values[0]) == 64
    for one in pair.runs:
        told = [*(file.text for file in one.plan.files), *one.plan.argv]
        assert not [text for text in told if values[0] in text]
    assert submit.secrets_of(prepared(project).first)[secret.RELAY_TOKEN] != values[0]
    secret.write(project, {secret.RELAY_TOKEN: values[0]})
    assert (project / secret.FILE).stat().st_mode & 0o777 == 0o600
    monkeypatch.syspath_prepend(str(REPO / "launchers" / "diloco"))
    assert importlib.import_module("relay").token_of(project) == values[0]


def test_a_job_across_runs_on_one_cluster_as_any_other(project: Path) -> None:
    assert not two_clusters.asked_for(project, ["one"], [])
    assert two_clusters.asked_for(project, ["one", "two"], [])
    assert not two_clusters.asked_for(project, ["one", "two"], ["diloco.across=false"])
    made = prepare_run.prepare_job(project / "job.toml", cluster="one", overrides=[], containers=False, now=NOW)
    assert "gate" not in {role.name for role in made.plan.roles}


def refusal(project: Path, *names: str) -> str:
    with pytest.raises((ConfigError, UsageError)) as caught:
        two_clusters.prepare_pair(project, names or ("one", "two"), containers=False, now=NOW)
    return f"{caught.value.message}\n{caught.value.hint}"


def test_what_does_not_fit_is_refused_before_anything_is_written(project: Path) -> None:
    assert "a training is split over two clusters" in refusal(project, "one", "two", "three")
    assert "a training is split over two clusters" in refusal(project, "one", "one")
    said = refusal(project, "two", "one")
    assert "clusters/two.toml: relay: nothing says how the nodes of one reach the login node of two" in said
    cluster(project, "two", gpus=2)
    assert "a group has 1 ranks on one and 2 on two" in refusal(project)
    cluster(project, "two")
    write(project, "groups = 7")
    assert "diloco.groups: for a training over two clusters, 'kit submit' sets this key itself" in refusal(project)
    assert not (project / "runs").exists()


def test_each_clusters_nodes_may_know_the_relay_by_another_name(project: Path) -> None:
    cluster(project, "two", '[relay]\nhost = "login.one.outside"\n')
    pair = prepared(project)
    tables = [one.plan.job.diloco for one in pair.runs]
    found = [table.relay for table in tables if table is not None]
    assert found == [f"login.one:{pair.port}", f"login.one.outside:{pair.port}"]


def test_a_free_port_of_the_range_is_taken(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"none of the ports {port} is free"):
            pair_relay.free_port(RelayRules(host="h", ports=str(port), bind="127.0.0.1"))
    assert pair_relay.free_port(RelayRules(host="h", ports=str(port), bind="127.0.0.1")) == port


class Sent:
    """In the place of sbatch and scancel: what was submitted, and what was cancelled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: str) -> None:
        self.submitted: list[str] = []
        self.cancelled: list[Any] = []
        self._refused = refused
        monkeypatch.setattr(submit, "require_ready", lambda one: None)
        monkeypatch.setattr(submit, "ask_slurm", lambda one: None)
        monkeypatch.setattr(submit, "submit", self._submit)
        monkeypatch.setattr(pair_relay, "start", self._relay)
        monkeypatch.setattr("kit.slurm.client.cancel_each", lambda jobs, env: self.cancelled.extend(jobs))

    def _submit(self, one: prepare_run.Prepared, *, ready: bool) -> Any:
        if one.plan.cluster == self._refused:
            raise JobRefusedError("sbatch: no such partition")
        one.folder.joinpath("state").mkdir(parents=True)
        secret.write(one.folder, submit.secrets_of(one))
        self.submitted.append(one.plan.cluster)
        return SimpleNamespace(job_id=41)

    def _relay(self, run_dir: Path, rules: RelayRules, port: int, *, env: object) -> None:
        if self._refused == "relay":
            raise ToolError("the relay does not start: cannot listen")


@pytest.mark.parametrize(("refused", "submitted"), [("two", ["one"]), ("relay", ["one"]), ("one", [])])
def test_a_half_that_is_refused_cancels_the_other(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refused: str,
    submitted: list[str],
) -> None:
    pair, sent, said = prepared(project), Sent(monkeypatch, refused), []
    with pytest.raises((JobRefusedError, ToolError)):
        two_clusters.submit_pair(pair, say=lambda one, made: said.append(one.plan.cluster))
    assert sent.submitted == submitted
    assert sent.cancelled == [41] * len(submitted)
    told = capsys.readouterr().err
    assert told.count("cancelled, as the other half was not submitted") == len(submitted)
    if submitted:
        assert not (pair.first.folder / secret.FILE).exists()
        assert RunPaths(pair.first.folder).cancelled.exists()


PENDING = QueuedJob(job_id=7, state="PENDING", reason="", nodes="", elapsed="")


def noted(*halves: tuple[FakeHost, Path]) -> list[bool]:
    return [lone_halves.is_noted(*one) for one in halves]


def test_a_half_that_cannot_be_cancelled_now_is_cancelled_later(project: Path) -> None:
    hosts = [FakeHost(name, project / name, answers=False) for name in ("one", "two")]
    first, second = ((host, host.root / "runs" / "gpt-one") for host in hosts)
    with lone_halves.both_or_none() as about_to:
        about_to(*first)
        assert noted(first, second) == [True, False]
        # A command beside this submit leaves the half alone.
        hosts[0].answers = True
        assert not lone_halves.cancel_noted(hosts[0])
        hosts[0].answers = False
        about_to(*second)
    assert noted(first, second) == [False, False]
    for error, left in ((JobRefusedError("no"), [True, False]), (ToolError("cut"), [True, True])):
        with pytest.raises(type(error)), lone_halves.both_or_none() as about_to:
            about_to(*first)
            about_to(*second)
            raise error
        assert noted(first, second) == left
    hosts[0].answers, hosts[0].jobs = True, {7: PENDING}
    assert not lone_halves.cancel_noted(hosts[0])
    assert (hosts[0].ended, noted(first, second)) == ([], [True, True])
    made = half(project, "one", "gpt-two", 7)
    first[1].parent.mkdir()
    made.rename(first[1])
    assert lone_halves.cancel_noted(hosts[0])
    assert [(one.job_id, one.how) for one in hosts[0].ended] == [(7, "waiting")]
    assert noted(first, second) == [False, True]


def test_a_half_that_another_login_node_submits_is_left_alone(project: Path) -> None:
    """Its process cannot be looked up from here, so it may live."""
    host, run_dir = FakeHost("one", project / "m", {7: PENDING}), half(project, "one", "gpt-two", 7)
    with lone_halves.both_or_none() as about_to:
        about_to(host, run_dir)
        (note,) = host.halves().iterdir()
        note.write_text(note.read_text().replace(socket.gethostname(), "another.host", 1))
        assert not lone_halves.cancel_noted(host)
        assert (host.ended, noted((host, run_dir))) == ([], [True])


def test_a_half_of_this_machine_is_cancelled_if_the_kit_was_killed_before_the_other_was_submitted(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = half(project, "one", "gpt-two", 7)
    secret.write(folder, {secret.RELAY_TOKEN: "kept"})
    jobs = {7: QueuedJob(job_id=7, state="PENDING", reason="", nodes="", elapsed="")}
    cancelled: list[Any] = []
    monkeypatch.setattr("kit.slurm.client.cancel", lambda *ids, env: cancelled.extend(ids))
    monkeypatch.setattr("kit.slurm.client.queue", lambda env: jobs)
    monkeypatch.setattr(LocalHost, "is_up", lambda _: True)
    ask = catch_up.queue()
    with lone_halves.both_or_none() as about_to:
        about_to(LocalHost(name="one"), folder)
        (note,) = cache_files.halves().iterdir()
        # A command beside this submit leaves the half alone.
        assert ask("one") == jobs
        assert cancelled == []
        dead = [sys.executable, "-c", "from kit.files.owning_process import Owner; print(Owner.current())"]
        killed = subprocess.run(dead, capture_output=True, text=True, check=True).stdout
        left = killed + note.read_text().partition("\n")[2]
    # Both were submitted: nothing is left to be looked for.
    assert not cache_files.halves().exists()
    note.parent.mkdir()
    note.write_text(left)
    # Another cluster's queue says nothing of it.
    ask("two")
    assert (cancelled, note.exists()) == ([], True)
    ask("one")
    assert cancelled == [7]
    assert not (folder / secret.FILE).exists()
    assert RunPaths(folder).cancelled.exists()
    assert not cache_files.halves().exists()


def test_a_note_that_makes_no_sense_or_of_a_half_that_is_not_there_cancels_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kit.slurm.client.cancel", lambda *_, env: pytest.fail("it was cancelled"))
    monkeypatch.setattr("kit.slurm.client.queue", lambda env: {})
    monkeypatch.setattr(LocalHost, "is_up", lambda _: True)
    folder = cache_files.halves()
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"\xff\xfe")
    (folder / "b").write_text("")
    (folder / "c").write_text("failed\n")
    (folder / "d").write_text(f"failed\n{project / 'gone'}\n")
    assert not lone_halves.cancel_noted(LocalHost(name="one"))
    assert len([*folder.iterdir()]) == 4
    os.utime(folder / "d", (0, 0))
    assert not lone_halves.cancel_noted(LocalHost(name="one"))
    assert not (folder / "d").exists()


def half(project: Path, name: str, partner: str, job_id: int) -> Path:
    """A run folder of a training over two clusters."""
    if not (project / "clusters" / f"{name}.toml").exists():
        cluster(project, name)
    made = prepare_run.prepare_job(project / "job.toml", cluster=name, overrides=[], containers=False, now=NOW).plan
    folder = project / "runs" / f"gpt-{name}"
    (folder / "state").mkdir(parents=True)
    record = manifest.make_manifest(made, job_file=project / "job.toml", user="ada", now=NOW, slurm_version="22.05")
    more = {"job_id": job_id, "partner": partner, "run_id": folder.name}
    record.model_copy(update=more).write(RunPaths(folder).manifest)
    return folder


def test_a_cancel_of_either_half_is_one_of_both(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half(project, "one", "gpt-two", 7)
    half(project, "two", "gpt-one", 8)
    cancelled: list[tuple[str, Any]] = []
    monkeypatch.setattr(
        "kit.sweeps.cancel_by_name.runs.cancel",
        lambda runs, host: cancelled.extend((one.facts.cluster, one.job_id) for one in runs),
    )

    def queue(name: str) -> dict[Any, QueuedJob]:
        number = {"one": 7, "two": 8}[name]
        return {number: QueuedJob(job_id=number, state="PENDING", reason="", nodes="", elapsed="")}

    for given in (["gpt-one"], ["gpt-two"], ["gpt-one", "gpt-two"]):
        cancelled.clear()
        cancel_by_name.cancel(given, [project / "runs"], queue=queue)
        assert sorted(cancelled) == [("one", 7), ("two", 8)]


def kit(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_logs_are_those_of_both_halves_or_of_one(project: Path) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        logs = half(project, name, f"gpt-{other}", 7) / "logs" / "replica-0"
        logs.mkdir(parents=True)
        (logs / "rank-0.log").write_text(f"from {name}\n")
    (project / "runs" / "gpt-two" / "logs" / "replica-1").mkdir()
    (project / "runs" / "gpt-two" / "logs" / "replica-1" / "rank-0.log").write_text("only there\n")
    both = "one/replica-0/rank-0 | from one\ntwo/replica-0/rank-0 | from two\n"
    only = "replica-1/rank-0 | only there\n"
    for given in ("gpt-one", "gpt-two"):
        assert kit("logs", given).stdout == f"{both}two/{only}"
        assert kit("logs", given, "replica-0").stdout == both
        assert kit("logs", given, "replica-1").stdout == f"two/{only}"
        assert kit("logs", given, "--cluster", "one").stdout == "replica-0/rank-0 | from one\n"
        assert kit("logs", given, "--cluster", "two", "replica-1").stdout == only
    sources = [json.loads(line)["source"] for line in kit("logs", "gpt-one", "replica-0", "--json").stdout.splitlines()]
    assert sources == ["one/replica-0/rank-0", "two/replica-0/rank-0"]
    for words in (("replica-7",), ("--cluster", "three")):
        assert isinstance(kit("logs", "gpt-one", *words).exception, UsageError)


def test_both_halves_are_followed_until_both_have_ended(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, other in (("one", "two"), ("two", "one")):
        folder = half(project, name, f"gpt-{other}", 7)
        (folder / "logs").mkdir()
        (folder / "logs" / "rank-0.log").write_text(f"from {name}\n")
    ends = {"one": 0, "two": 1}
    monkeypatch.setattr(LocalHost, "is_up", lambda _: False)
    for name, code in ends.items():
        line = json.dumps({"event": "end", "exit_code": code})
        (project / "runs" / f"gpt-{name}" / "state" / "events.jsonl").write_text(f"{line}\n")
    seen = kit("logs", "-f", "gpt-one").stdout.splitlines()
    assert sorted(seen) == ["one/rank-0 | from one", "two/rank-0 | from two"]


def test_the_list_of_runs_shows_the_halves_one_below_the_other(project: Path) -> None:
    half(project, "one", "gpt-two", 7)
    half(project, "two", "gpt-one", 8)
    half(project, "three", "gpt-lost", 9)
    rows = [line.split()[:2] for line in kit("runs").stdout.splitlines()]
    assert [row for row in rows if "gpt-two" in row] == [["└", "gpt-two"]]
    assert rows.index(["└", "gpt-two"]) == [row[0] for row in rows].index("gpt-one") + 1
    assert "gpt-three" in [row[0] for row in rows]
    listed = {one["run"]: one["partner"] for one in json.loads(kit("runs", "--json").stdout)}
    assert listed == {"gpt-one": "gpt-two", "gpt-two": "gpt-one", "gpt-three": "gpt-lost"}


def test_a_half_whose_other_half_cannot_be_cancelled_is_cancelled(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half(project, "one", "gpt-two", 7)
    half(project, "two", "gpt-one", 8)
    half(project, "three", "gpt-lost", 9)
    cancelled: list[str] = []
    monkeypatch.setattr(
        "kit.sweeps.cancel_by_name.runs.cancel", lambda runs, host: cancelled.extend(one.facts.run_id for one in runs)
    )

    def queue(name: str) -> dict[Any, QueuedJob] | None:
        number = {"one": 7, "three": 9}.get(name)
        if number is None:
            return None
        return {number: QueuedJob(job_id=number, state="PENDING", reason="", nodes="", elapsed="")}

    said = [str(one) for one in cancel_by_name.cancel(["gpt-one"], [project / "runs"], queue=queue)]
    assert cancelled == ["gpt-one"]
    assert said[1] == "gpt-two, the other half: its cluster does not answer; 'kit cancel gpt-two' once it does"
    said = [str(one) for one in cancel_by_name.cancel(["gpt-three"], [project / "runs"], queue=queue)]
    assert cancelled == ["gpt-one", "gpt-three"]
    assert said[1].startswith("gpt-lost, the other half: gpt-lost: no such run")


def test_a_relay_of_another_machine_or_a_dead_one_is_named(project: Path) -> None:
    folder = half(project, "one", "gpt-two", 7)
    assert pair_relay.state(folder) == "none"
    record = folder / "state" / "relay.json"
    record.write_text(json.dumps({"pid": 1, "node": "login2", "started": 5}))
    assert pair_relay.state(folder) == "on login2"
    record.write_text(json.dumps({"pid": 1, "node": socket.gethostname(), "started": 5}))
    assert pair_relay.state(folder) == "gone"


class Relays:
    """Both halves of a training as run folders, their jobs' states, and in the place of the relay's start its arguments."""

    def __init__(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states = {7: "RUNNING", 8: "RUNNING"}
        self.started: list[tuple[str, int]] = []
        self.first, self.second = half(project, "one", "gpt-two", 7), half(project, "two", "gpt-one", 8)
        for folder, plan in zip((self.first, self.second), prepared(project).runs, strict=True):
            for name in ("job.toml", "cluster.toml"):
                (folder / name).write_text(plan.plan.text_of(name))
        monkeypatch.setattr(pair_relay, "start", self._start)

    def _start(self, run_dir: Path, rules: RelayRules, port: int, *, env: object) -> None:
        assert rules.host == "login.one"
        self.started.append((run_dir.name, port))

    def queue(self, name: str) -> dict[Any, QueuedJob]:
        number = {"one": 7, "two": 8}[name]
        state = self.states[number]
        job = QueuedJob(job_id=number, state=state, reason="", nodes="", elapsed="")
        return {number: job} if state != "ended" else {}

    def restart(self, folder: Path) -> str | None:
        (one,) = status.read_statuses([folder], queue=self.queue)
        return resume.restart_relay(one, queue=self.queue)


def test_a_relay_that_is_down_is_started_again_by_either_half_while_its_job_has_not_ended(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = Relays(project, monkeypatch)
    record = on.first / "state" / "relay.json"
    assert [on.restart(on.first), on.restart(on.second)] == ["gpt-one", "gpt-one"]
    assert {name for name, _ in on.started} == {"gpt-one"}
    assert all(41000 <= port <= 41999 for _, port in on.started)
    # One that is up, or may be up on another login node, is left alone.
    told = {"pid": os.getpid(), "node": socket.gethostname(), "started": 1}
    record.write_text(json.dumps(told))
    assert on.restart(on.second) == "gpt-one"
    record.write_text(json.dumps(told | {"node": "login2"}))
    assert on.restart(on.second) is None
    record.unlink()
    # Without a job of its run it would end at once; that half is resumed.
    on.states[7] = "ended"
    assert [on.restart(on.first), on.restart(on.second)] == [None, None]


def test_status_says_what_starts_a_relay_that_is_down(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = Relays(project, monkeypatch)
    monkeypatch.setattr("kit.cli.wait_and_follow.queue", lambda: on.queue)
    said = CliRunner().invoke(app, ["status", "gpt-two"]).stdout
    assert "gpt-one on one: RUNNING, relay none; 'kit resume gpt-two' starts it again" in said
    on.states[8] = "ended"
    assert "'kit resume gpt-one' starts it again" in CliRunner().invoke(app, ["status", "gpt-two"]).stdout
    assert CliRunner().invoke(app, ["resume", "gpt-one"]).stdout.strip() == str(on.first)
    assert on.started[0][0] == "gpt-one"


def test_a_resumed_half_takes_the_token_that_the_other_still_has(project: Path) -> None:
    other = half(project, "two", "gpt-one", 8)
    assert len(pair_relay.token_for("gpt-two")) == 64
    secret.write(other, {secret.RELAY_TOKEN: "kept"})
    assert pair_relay.token_for("gpt-two") == "kept"
    assert pair_relay.token_for("gpt-nobody") != "kept"


def test_one_half_is_not_run_again_by_itself(project: Path) -> None:
    folder = half(project, "one", "gpt-two", 7)
    earlier: Any = SimpleNamespace(manifest=manifest.read_manifest(RunPaths(folder).manifest))
    with pytest.raises(RunError, match="one half of a training over two clusters"):
        rerun.prepare_earlier(earlier)


def test_a_relay_is_known_by_its_process_and_not_by_its_number(project: Path) -> None:
    state = project / "state"
    state.mkdir()
    assert pair_relay.process(project) is None
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    told = {"pid": int(Path("/proc/self").resolve().name), "node": socket.gethostname(), "started": int(stat[19])}
    (state / "relay.json").write_text(json.dumps(told))
    assert pair_relay.process(project) == told["pid"]
    (state / "relay.json").write_text(json.dumps(told | {"started": 1}))
    assert pair_relay.process(project) is None
    with subprocess.Popen(["true"]) as dead:
        fields = Path(f"/proc/{dead.pid}/stat")
        end = time.monotonic() + 30
        while fields.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < end:
            time.sleep(0.01)
        began = int(fields.read_text().rpartition(")")[2].split()[19])
        (state / "relay.json").write_text(json.dumps(told | {"pid": dead.pid, "started": began}))
        assert pair_relay.process(project) is None
    (state / "relay.json").write_text("{")
    assert pair_relay.process(project) is None


def test_a_relay_that_cannot_start_says_why(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = project / "run"
    (run / "code").mkdir(parents=True)
    (run / "logs").mkdir()
    (run / "code" / "relay.py").write_text("import sys\nsys.exit('error: cannot listen on port 1')\n")
    with pytest.raises(ToolError, match="the relay does not start: error: cannot listen on port 1"):
        pair_relay.start(run, RelayRules(host="h"), 1, env={"PATH": "/usr/bin:/bin"})


def test_the_other_job_files_know_nothing_of_it(project: Path) -> None:
    """`partner` is in no manifest but those of halves."""
    write(project, across="false")
    made = prepare_run.prepare_job(project / "job.toml", cluster="one", overrides=[], containers=False, now=NOW)
    assert made.partner is None
    assert secret.RELAY_TOKEN not in submit.secrets_of(made)
    assert secret.RELAY_TOKEN not in shlex.join(made.plan.argv)
    assert config.read_job(project / "job.toml", cluster="one", overrides=[]).place.relay is not None
