"""launchers/diloco on gloo: it is DiLoCo to the last bit, it learns, and groups may die and come back."""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LAUNCHERS = Path(__file__).parents[2] / "launchers"
SMALL = (
    "--layers",
    2,
    "--dim",
    64,
    "--context",
    64,
    "--steps",
    30,
    "--sync-every",
    10,
    "--log-every",
    1,
    "--timeout",
    10,
)

THREE = ("--batch-size", 24, "--steps", 150)  # for three groups

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft is not installed (make training)"),
]


class Job:
    """A lighthouse and the groups of one job, each rank a process with what torchrun would set."""

    def __init__(self, folder: Path, free_port: Callable[[], int]) -> None:
        self.folder, self._free_port = folder, free_port
        self.run_dir = folder / "run"
        self.run_dir.mkdir()
        self.port = free_port()
        self.lighthouse: subprocess.Popen[bytes] | None = None
        self.ranks: dict[int, list[subprocess.Popen[bytes]]] = {}
        self.light()

    def light(self, least: int = 2) -> None:
        """Start the lighthouse; it notices a death within 1.5 s."""
        program = Path(sys.executable).with_name("torchft_lighthouse")
        options = ("--min_replicas", str(least), "--heartbeat_timeout_ms", "1500", "--join_timeout_ms", "5000")
        with (self.folder / "lighthouse.log").open("ab") as log:
            self.lighthouse = subprocess.Popen(
                [program, "--bind", f"[::]:{self.port}", *options],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start(
        self, group: int, *args: object, groups: int = 2, ranks: int = 1, env: dict[str, str] | None = None
    ) -> None:
        """Start the ranks of a group."""
        base = {key: value for key, value in os.environ.items() if not key.startswith(("KIT_", "SLURM_"))} | {
            "PYTHONPATH": str(LAUNCHERS),
            "OMP_NUM_THREADS": "1",
            "RUST_LOG": "warn",
            "KIT_RUN_DIR": str(self.run_dir),
            "KIT_SEED": "7",
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.port}",
            "REPLICA_GROUP_ID": str(group),
            "NUM_REPLICA_GROUPS": str(groups),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._free_port()),
            **(env or {}),
        }
        argv = [sys.executable, str(LAUNCHERS / "diloco" / "train.py"), "--device", "cpu", *map(str, (*SMALL, *args))]
        self.ranks[group] = []
        for rank in range(ranks):
            with (self.folder / f"group-{group}.log").open("ab") as log:
                environ = base | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                self.ranks[group].append(subprocess.Popen(argv, env=environ, stdout=log, stderr=subprocess.STDOUT))

    def start_all(self, *args: object, groups: int = 2, ranks: int = 1) -> None:
        for group in range(groups):
            self.start(group, *args, groups=groups, ranks=ranks)

    def signal(self, group: int, number: int) -> None:
        for process in self.ranks[group]:
            process.send_signal(number)

    def kill(self, group: int) -> None:
        self.signal(group, signal.SIGKILL)
        for process in self.ranks[group]:
            process.wait()

    def codes(self, seconds: float = 150) -> set[int]:
        """Wait for all ranks of all groups."""
        deadline = time.monotonic() + seconds
        every = [process for ranks in self.ranks.values() for process in ranks]
        try:
            return {process.wait(max(0.1, deadline - time.monotonic())) for process in every}
        except subprocess.TimeoutExpired:
            raise AssertionError(self.output()) from None

    def succeed(self) -> list[dict[str, Any]]:
        """Wait for the end, which must be a success; the final record of each group."""
        assert self.codes() == {0}, self.output()
        finals = [self.records(group, "final")[-1] for group in self.ranks]
        assert len({final["sha256"] for final in finals}) == 1, "the groups must end with the same parameters"
        return finals

    def records(self, group: int, kind: str) -> list[dict[str, Any]]:
        path = self.run_dir / f"replica-{group}" / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def until(self, group: int, kind: str, key: str, least: int) -> None:
        """Wait until the last record of a kind says at least so much."""
        deadline = time.monotonic() + 120
        while not (found := self.records(group, kind)) or found[-1][key] < least:
            assert time.monotonic() < deadline, self.output()
            assert all(process.poll() in (None, 0) for process in self.ranks[group]), self.output()
            time.sleep(0.01)

    def said(self, group: int, text: str, times: int = 1) -> None:
        """Wait until the log of a group holds a text so often."""
        deadline = time.monotonic() + 120
        while (self.folder / f"group-{group}.log").read_text(errors="replace").count(text) < times:
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.01)

    def output(self) -> str:
        return "".join(f"--- {log.name}\n{log.read_text(errors='replace')}" for log in self.folder.glob("*.log"))

    def end(self) -> None:
        lighthouse = [self.lighthouse] if self.lighthouse else []
        for process in [*lighthouse, *(process for ranks in self.ranks.values() for process in ranks)]:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


@pytest.fixture
def job(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Job]:
    made = Job(tmp_path, free_port)
    yield made
    made.end()


@pytest.fixture
def free_port() -> Callable[[], int]:
    import socket

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    return find


def plain_diloco(folder: str, steps: int, every: int, groups: int) -> str:
    """DiLoCo in one process, written without torchft and without launchers/diloco: SHA-256 of the parameters."""
    import torch
    from lib import data, model, options, text
    from lib.ranks import Ranks

    torch.set_num_threads(1)
    made = argparse.ArgumentParser()
    options.add_text(made)
    train_set = text.load(
        argparse.Namespace(context=64, **vars(made.parse_args([]))), Path(folder), lambda _: None
    ).train
    torch.manual_seed(7)
    nets = [model.GPT(model.GPTShape(layers=2, heads=4, dim=64, context=64))]
    for _ in range(groups - 1):
        nets.append(model.GPT(nets[0].shape))
        nets[-1].load_state_dict(nets[0].state_dict())
    inner = []
    for net in nets:
        matrices = {"params": [one for one in net.parameters() if one.dim() == 2], "weight_decay": 0.1}
        norms = {"params": [one for one in net.parameters() if one.dim() == 1], "weight_decay": 0.0}
        inner.append(torch.optim.AdamW([matrices, norms], lr=3e-3, betas=(0.9, 0.95)))
    agreed = [parameter.detach().clone() for parameter in nets[0].parameters()]
    outer = torch.optim.SGD(agreed, lr=0.7, momentum=0.9, nesterov=True)
    cpu = torch.device("cpu")
    shared = {"ddp_local_rank": 0, "nodes": 1, "device": cpu, "backend": "gloo", "control": None}
    streams = [
        data.batches(train_set, 32 // groups, Ranks(ddp_rank=g, ddp_world_size=groups, **shared), seed=7, samples=0)
        for g in range(groups)
    ]
    factor = options.cosine(20, steps)
    for step in range(steps):
        for net, optimizer, stream in zip(nets, inner, streams, strict=True):
            net(*next(stream)).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            for of in optimizer.param_groups:
                of["lr"] = 3e-3 * factor(step)
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % every == 0:
            with torch.no_grad():
                for parameter, *local in zip(agreed, *(net.parameters() for net in nets), strict=True):
                    parameter.grad = sum(parameter - mine for mine in local) / groups
                outer.step()
                for net in nets:
                    for parameter, mine in zip(agreed, net.parameters(), strict=True):
                        mine.copy_(parameter)
    return hashlib.sha256(b"".join(parameter.numpy().tobytes() for parameter in agreed)).hexdigest()


@pytest.fixture(scope="module")
def plain(module_tmp: Path) -> str:
    """The digest that 30 steps with H = 10 and two groups must give. In a process of its own, with one thread."""
    code = f"import runpy; print(runpy.run_path({__file__!r})['plain_diloco']({str(module_tmp)!r}, 30, 10, 2))"
    environ = os.environ | {"PYTHONPATH": str(LAUNCHERS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def module_tmp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain")


def test_without_faults_it_is_plain_diloco_bit_for_bit(job: Job, plain: str) -> None:
    job.start_all()
    finals = job.succeed()
    assert finals[0]["sha256"] == plain
    steps = job.records(0, "step")
    assert steps[0]["loss"] == pytest.approx(5.55, abs=0.15)
    assert steps[-1]["loss"] < 4.0
    outers = job.records(1, "outer")
    assert [(record["outer_step"], record["step"]) for record in outers] == [(1, 10), (2, 20), (3, 30)]
    assert [record["groups"] for record in outers] == [[0, 1]] * 3
    assert all(record["bytes_sent"] == 4 * 164_160 for record in outers), "half of it each way, for two groups"
    assert json.loads((job.run_dir / "replica-1" / "state" / "ended.json").read_text())["state"] == "finished"


VARIANTS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "muon": (1, ("--inner", "muon", "--beta2", 0.99)),
    "fragments": (1, ("--fragments", 2, "--sync-every", 10)),
    "overlap": (1, ("--fragments", 2, "--sync-every", 10, "--overlap", 2)),
    "int8": (1, ("--bits", 8)),
    "4-bit": (1, ("--bits", 4, "--fragments", 2, "--overlap", 2)),
    "2-bit": (1, ("--bits", 2)),
    "ddp inside": (2, ("--accumulate", 2)),
    "fsdp inside": (2, ("--inside", "fsdp", "--inner", "muon")),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_learns_and_ends_with_equal_parameters(job: Job, name: str) -> None:
    ranks, options = VARIANTS[name]
    job.start_all(*options, ranks=ranks)
    final = job.succeed()[0]
    assert final["test_loss"] < 4.2
    sent = sum(record["bytes_sent"] for record in job.records(0, "outer"))
    bits = next((options[place + 1] for place, option in enumerate(options) if option == "--bits"), 32)
    averages = 30 / 10 if final["flushed"] == 1 else 30 / 10 + 1 / 2  # of the whole model; two fragments: one more half
    expected = averages * 164_160 * (4 if bits == 32 else (bits + 1 / 8) / 8)
    assert sent == pytest.approx(expected, rel=0.06)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_group_comes_back_with_the_state_of_a_live_one(job: Job, victim: int) -> None:
    options = (*THREE, "--checkpoint-every", 1000)
    job.start_all(*options, groups=3)
    job.until(victim, "outer", "outer_step", 3)
    job.kill(victim)
    job.until(2, "outer", "outer_step", job.records(2, "outer")[-1]["outer_step"] + 2)
    others = [group for group in range(3) if group != victim]
    for group in others:  # let it start meanwhile: they could be done before
        job.signal(group, signal.SIGSTOP)
    job.start(victim, *options, groups=3)
    job.said(victim, f"group {victim} of 3", times=2)
    for group in others:
        job.signal(group, signal.SIGCONT)
    job.succeed()
    survivors = job.records(2, "outer")
    assert [record["outer_step"] for record in survivors] == list(range(1, 16)), "no step was lost, none done twice"
    assert [record["left"] for record in survivors if record["left"]] == [[victim]]
    assert [record["joined"] for record in survivors[3:] if record["joined"]] == [[victim]]
    back = next(record for record in job.records(victim, "outer") if record["recovered"])
    assert back["averaged"] == 2, "what it does before it has the state counts for nothing"
    checksums = {record["outer_step"]: record["checksum"] for record in survivors}
    assert all(record["checksum"] == checksums[record["outer_step"]] for record in job.records(victim, "outer"))


def test_with_two_groups_the_survivor_waits_for_the_other(job: Job) -> None:
    job.start_all("--steps", 60)
    job.until(0, "outer", "outer_step", 2)
    job.kill(1)
    time.sleep(3)
    reached = job.records(0, "outer")[-1]["outer_step"]
    assert reached < 6
    time.sleep(2)
    assert job.records(0, "outer")[-1]["outer_step"] == reached, "a group alone is not a quorum"
    job.start(1, "--steps", 60)
    job.succeed()


def test_the_lighthouse_dies_and_comes_back_on_its_address(job: Job) -> None:
    job.start_all(*THREE, "--steps", 60, groups=3)
    job.until(0, "outer", "outer_step", 2)
    assert job.lighthouse
    job.lighthouse.kill()
    job.lighthouse.wait()
    job.kill(1)
    job.light()
    job.start(1, *THREE, "--steps", 60, groups=3)
    job.succeed()
    assert [record["outer_step"] for record in job.records(0, "outer")] == [1, 2, 3, 4, 5, 6]


def test_a_stopped_group_is_left_behind_and_catches_up(job: Job) -> None:
    job.start_all(*THREE, groups=3)
    job.until(1, "outer", "outer_step", 2)
    job.signal(1, signal.SIGSTOP)
    before = job.records(0, "outer")[-1]["outer_step"]
    job.until(0, "outer", "outer_step", before + 3)
    job.signal(1, signal.SIGCONT)
    job.succeed()
    assert [record["outer_step"] for record in job.records(0, "outer")] == list(range(1, 16))


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize(
    "options",
    [(), ("--fragments", 2, "--bits", 4), ("--fragments", 2, "--overlap", 2)],
    ids=["plain", "fragments, 4-bit", "overlap"],
)
def test_a_job_that_was_stopped_or_killed_ends_as_if_it_never_had_been(
    job: Job, options: tuple[object, ...], way: signal.Signals, plain: str
) -> None:
    whole = plain
    if "--bits" in options:
        job.start_all(*options)
        whole = job.succeed()[0]["sha256"]
        shutil.rmtree(job.run_dir)
        job.run_dir.mkdir()
    job.start_all(*options)
    job.until(0, "step", "step", random.Random(way).randrange(11, 18))
    job.signal(0, way)
    time.sleep(0.05)  # so that they stop at different steps
    job.signal(1, way)
    assert job.codes() == ({143} if way == signal.SIGTERM else {-9}), job.output()
    if way == signal.SIGTERM:
        assert json.loads((job.run_dir / "replica-0" / "state" / "ended.json").read_text())["state"] == "stopped"
    job.start_all(*options)
    final = job.succeed()[0]
    assert job.records(0, "resumed")
    # An average that was under way is started anew, from parameters of a later step: with overlap the sums differ.
    # A group that was killed before it had saved what another had takes that one's, without what quantising owes.
    behind = any(f"replica-{group}/" not in job.records(group, "resumed")[0]["path"] for group in (0, 1))
    assert final["sha256"] == whole or "--overlap" in options or (behind and way == signal.SIGKILL)


@pytest.mark.parametrize(
    "options",
    [pytest.param(("--bits", 4), id="4-bit"), pytest.param(("--top-k", 0.05), id="top-k", marks=pytest.mark.smoke)],
)
def test_two_ranks_of_a_group_go_on_with_what_each_still_owes(job: Job, options: tuple[object, ...]) -> None:
    """Each rank keeps the residuals of its own part of the model. The checkpoint had rank 0's alone, and all took them."""
    options = (*options, "--inside", "ddp", "--steps", 20, "--sync-every", 5, "--fragments", 1)
    alone: dict[str, Any] = {"groups": 1, "ranks": 2, "env": {"TORCHFT_LIGHTHOUSE": ""}}
    job.start(0, *options, **alone)
    whole = job.succeed()[0]["sha256"]
    losses = {record["step"]: record["loss"] for record in job.records(0, "step")}
    shutil.rmtree(job.run_dir)
    job.run_dir.mkdir()
    job.start(0, *options, **alone)
    job.until(0, "step", "step", 7)
    job.signal(0, signal.SIGTERM)
    assert job.codes() == {143}, job.output()
    job.start(0, *options, **alone)
    assert job.succeed()[0]["sha256"] == whole
    assert 7 <= job.records(0, "resumed")[0]["step"] < 20
    assert {record["step"]: record["loss"] for record in job.records(0, "step")} == losses


@pytest.mark.parametrize(("inside", "ranks"), [("ddp", 1), ("fsdp", 2)])
def test_checkpoints_written_in_the_background_are_gone_on_from(job: Job, inside: str, ranks: int) -> None:
    options = ("--steps", 20, "--inside", inside, "--checkpoint-async")
    alone: dict[str, Any] = {"groups": 1, "ranks": ranks, "env": {"TORCHFT_LIGHTHOUSE": ""}}
    job.start(0, *options, **alone)
    job.succeed()
    job.start(0, *options, "--steps", 30, **alone)
    job.succeed()
    assert job.records(0, "resumed")[0]["outer"] == 2


def test_a_group_with_other_parameters_takes_those_of_the_others(job: Job) -> None:
    job.start(0, "--steps", 10)
    job.start(1, "--steps", 10, env={"KIT_SEED": "8"})
    job.succeed()
    assert [record["averaged"] for record in job.records(1, "outer")] == [2]


def test_another_number_of_groups_goes_on(job: Job) -> None:
    job.start_all("--steps", 20)
    job.succeed()
    job.start_all("--steps", 40, groups=4)
    finals = job.succeed()
    assert {final["outer"] for final in finals} == {4}
    assert job.records(3, "resumed")[0]["outer"] == 2
    assert job.records(0, "outer")[-1]["averaged"] == 4


def test_a_group_that_missed_the_end_takes_the_result(job: Job) -> None:
    job.start_all("--steps", 20)
    job.succeed()
    shutil.rmtree(job.run_dir / "checkpoints" / "replica-1")
    job.start(1, "--steps", 20)
    job.succeed()
    assert job.records(1, "resumed")[-1]["path"].endswith("replica-0/step-00000022")


def test_no_quorum_is_an_exit_code_of_its_own(job: Job) -> None:
    job.start(0, "--quorum-timeout", 3)
    assert job.codes() == {75}
    assert "error: no quorum of 2 groups in 3 s" in job.output()
    assert json.loads((job.run_dir / "replica-0" / "state" / "ended.json").read_text())["code"] == 75


def test_one_group_needs_no_lighthouse(job: Job) -> None:
    job.start(0, groups=1, env={"TORCHFT_LIGHTHOUSE": ""})
    assert job.succeed()[0]["test_loss"] < 4.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch-size", 31), "--batch-size 31 cannot be divided over 2 ranks"),
        (("--sync-every", 9, "--fragments", 2), "--sync-every 9 must be a multiple of --fragments 2"),
        (("--overlap", 10), "--overlap 10 must be below sync-every / fragments, 10"),
        (("--fragments", 3, "--sync-every", 9), "--fragments 3 must be from 1 to 2"),
    ],
)
def test_what_cannot_be_is_refused_with_its_numbers(job: Job, options: tuple[object, ...], message: str) -> None:
    job.start(0, *options)
    assert job.codes() == {1}
    assert message in job.output()
    assert "Traceback" not in job.output()
