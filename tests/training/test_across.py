"""launchers/diloco over two clusters: each side's groups reach the other's through their gate and the relay alone."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LAUNCHERS = Path(__file__).parents[2] / "launchers"
TOKEN = "6b4b6f9d0d6a4ce8"
SMALL = ["--layers", "2", "--dim", "32", "--heads", "2", "--context", "32", "--batch-size", "24", "--sync-every", "10"]
SMALL += ["--log-every", "10", "--timeout", "10", "--outer-lr", "1.0", "--outer-momentum", "0.0", "--min-replicas", "1"]

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft is not installed (make training)"),
]


class Side:
    """One cluster's job: a lighthouse, a gate, and its groups. It has a run folder of its own."""

    def __init__(self, folder: Path, relay: int, free_port: Callable[[], int], first_group: int, count: int) -> None:
        self.run_dir, self._relay, self._free_port = folder, relay, free_port
        self.groups, self.total = range(first_group, first_group + count), 0
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir()

    def start(self, total: int, *args: str, env: dict[str, str] | None = None) -> None:
        """All of it, as the job's steps would; a second time, as after a requeue."""
        lighthouse, gate, clients = self._free_port(), self._free_port(), self._free_port()
        program = str(Path(sys.executable).with_name("torchft_lighthouse"))
        options = ["--min_replicas", "1", "--heartbeat_timeout_ms", "1500", "--join_timeout_ms", "20000"]
        self._run("lighthouse", [program, "--bind", f"0.0.0.0:{lighthouse}", *options], {})
        words = ["--relay", f"127.0.0.1:{self._relay}", "--own", f"127.0.0.1:{lighthouse}", "--groups", str(gate)]
        first = ["--first"] if self.groups[0] == 0 else []
        gate_argv = [sys.executable, str(LAUNCHERS / "diloco/gate.py"), *words, "--lighthouse", str(clients), *first]
        self._run("gate", gate_argv, {"KIT_RELAY_TOKEN": TOKEN})
        for group in self.groups:
            own = {
                "PYTHONPATH": str(LAUNCHERS),
                "OMP_NUM_THREADS": "1",
                "KIT_RUN_DIR": str(self.run_dir),
                "KIT_SEED": "7",
                "KIT_RELAY_TOKEN": TOKEN,
                "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{clients}",
                "REPLICA_GROUP_GATE": f"127.0.0.1:{gate}",
                "REPLICA_GROUPS_HERE": f"{self.groups[0]} {len(self.groups)}",
                "REPLICA_GROUP_ID": str(group),
                "NUM_REPLICA_GROUPS": str(total),
                "WORLD_SIZE": "1",
                "RANK": "0",
                "LOCAL_RANK": "0",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._free_port()),
                **(env or {}),
            }
            argv = [sys.executable, str(LAUNCHERS / "diloco/train.py"), "--device", "cpu", *SMALL, *args]
            self._run(f"group-{group}", argv, own)

    def _run(self, name: str, argv: list[str], env: dict[str, str]) -> None:
        base = {key: value for key, value in os.environ.items() if not key.startswith(("KIT_", "SLURM_"))}
        with (self.run_dir / f"{name}.log").open("ab") as log:
            made = subprocess.Popen(argv, env=base | env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self.processes.append(made)

    def wait(self, seconds: float = 240) -> set[int]:
        """Until all groups have ended; their codes."""
        deadline = time.monotonic() + seconds
        codes = {process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes[2:]}
        self.kill()
        return codes

    def kill(self) -> None:
        """As when Slurm takes all nodes away."""
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.processes = []

    def records(self, group: int, kind: str) -> list[dict[str, Any]]:
        path = self.run_dir / f"replica-{group}" / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def logs(self) -> str:
        return "\n".join(f"==> {one} <==\n{one.read_text()[-4000:]}" for one in sorted(self.run_dir.glob("*.log")))


class Pair:
    """Two sides and the relay between them."""

    def __init__(self, folder: Path, free_port: Callable[[], int], counts: tuple[int, int]) -> None:
        port, run = free_port(), folder / "relay"
        (run / "state").mkdir(parents=True)
        (run / ".secrets").write_text(f"export KIT_RELAY_TOKEN={TOKEN}\n")
        argv = [
            sys.executable,
            str(LAUNCHERS / "diloco/relay.py"),
            str(run),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        self.relay = subprocess.Popen([*argv, "--bind", "127.0.0.1"], stderr=subprocess.PIPE)
        self.total = sum(counts)
        self.a = Side(folder / "a", port, free_port, 0, counts[0])
        self.b = Side(folder / "b", port, free_port, counts[0], counts[1])

    def start(self, *args: str) -> None:
        self.a.start(self.total, *args)
        self.b.start(self.total, *args)

    def until(self, condition: Callable[[], object], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.a.logs() + self.b.logs()
            time.sleep(0.1)

    def end(self) -> None:
        self.a.kill()
        self.b.kill()
        self.relay.terminate()
        self.relay.communicate(timeout=30)


@pytest.fixture
def pair_of(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Callable[[int, int], Pair]]:
    made: list[Pair] = []

    def make(a: int, b: int) -> Pair:
        made.append(Pair(tmp_path, free_port, (a, b)))
        return made[-1]

    yield make
    for one in made:
        one.end()


def last_groups(side: Side, group: int) -> list[int]:
    found = side.records(group, "outer")
    return list(found[-1]["groups"]) if found else []


@pytest.mark.parametrize(
    "options",
    [pytest.param((), marks=pytest.mark.smoke), ("--bits", "4"), ("--top-k", "0.1")],
    ids=["plain", "bits", "top-k"],
)
def test_groups_on_two_sides_learn_and_end_with_the_same_parameters(
    pair_of: Callable[[int, int], Pair], options: tuple[str, ...]
) -> None:
    pair = pair_of(1, 2)
    pair.start("--steps", "60", *options)
    assert (pair.a.wait(), pair.b.wait()) == ({0}, {0}), pair.a.logs() + pair.b.logs()
    finals = [*pair.a.records(0, "final"), *pair.b.records(1, "final"), *pair.b.records(2, "final")]
    assert len(finals) == 3
    assert len({final["sha256"] for final in finals}) == 1
    outer = pair.a.records(0, "outer")
    assert [record["groups"] for record in outer] == [[0, 1, 2]] * len(outer)
    steps = pair.a.records(0, "step")
    assert steps[-1]["loss"] < steps[0]["loss"]


@pytest.mark.parametrize("which", ["first", "second"])
def test_one_side_goes_and_comes_back_and_the_other_goes_on_meanwhile(
    pair_of: Callable[[int, int], Pair], which: str
) -> None:
    """Whichever goes: with the first the lighthouse goes, too, and the second's own takes over."""
    pair = pair_of(1, 1)
    steps = ("--steps", "1000000", "--checkpoint-every", "10")
    pair.start(*steps)
    stays, goes = (pair.b, pair.a) if which == "first" else (pair.a, pair.b)
    own, other = stays.groups[0], goes.groups[0]
    pair.until(lambda: last_groups(stays, own) == [0, 1])
    goes.kill()
    pair.until(lambda: last_groups(stays, own) == [own])
    alone = stays.records(own, "outer")[-1]["outer_step"]
    pair.until(lambda: stays.records(own, "outer")[-1]["outer_step"] > alone + 3)
    goes.start(pair.total, *steps)
    pair.until(lambda: last_groups(stays, own) == [0, 1])
    pair.until(lambda: last_groups(goes, other) == [0, 1])
    numbers = [record["outer_step"] for record in stays.records(own, "outer")]
    assert numbers == list(range(1, len(numbers) + 1))  # none lost, none done twice
    joined = [record for record in goes.records(other, "outer") if record["recovered"]]
    assert joined, "the one that came back took the other's state"
    same = {r["outer_step"]: r["checksum"] for r in stays.records(own, "outer")}
    for record in goes.records(other, "outer"):
        if record["groups"] == [0, 1] and record["outer_step"] in same:
            assert record["checksum"] == same[record["outer_step"]]
