"""Runs the training programs as users do: under torchrun, or a process a rank with what the worker script sets.

A start of torch is 1.8 CPU seconds, most of what a run of a few steps costs. So the ranks of `Training.run` are forked from a
process that has imported it, by the kit's own `[retry] warm`, whose tests show that such a rank is as a plain one.
`Training.start`, torchrun and the tests of clusters start plain ones. KIT_TEST_STARTS=1: all ranks are plain.
"""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LAUNCHERS = Path(__file__).parents[2] / "launchers"
NODE = Path(__file__).parents[2] / "templates" / "kit_node"
# What any training imports: an optimizer imports torch._dynamo. No more, lest a program that forgot an import had it from here.
WARM = "torch,torch.distributed,torch.nn.parallel,torch._dynamo,numpy"

# What the environment of every rank has: as this process began, since modules that tests import add to it (scikit-learn does).
ENV = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("KIT_", "SLURM_", "PYTEST_"))},
    "PYTHONPATH": str(LAUNCHERS),
    "OMP_NUM_THREADS": "1",
    "TORCHFT_LIGHTHOUSE": "",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    if importlib.util.find_spec("torch") is None:
        skip = pytest.mark.skip(reason="torch is not installed (make training)")
        for item in items:
            if here in item.path.parents:
                item.add_marker(skip)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Started:
    """The processes of one start of a program; output in one file for each."""

    def __init__(self, processes: list[subprocess.Popen[bytes]], logs: list[Path], run_dir: Path) -> None:
        self.processes, self.logs, self.run_dir = processes, logs, run_dir

    def output(self) -> str:
        return "".join(log.read_text(errors="replace") for log in self.logs)

    def wait(self, seconds: float = 120) -> list[int]:
        deadline = time.monotonic() + seconds
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]

    def until(self, ready: Callable[[], object], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < deadline, self.output()
            assert all(process.poll() is None for process in self.processes), self.output()
            time.sleep(0.01)

    def until_step(self, step: int) -> None:
        """Wait until metrics.jsonl (with --log-every 1) tells of this step."""
        self.until(lambda: any(record.get("step", 0) >= step for record in records(self.run_dir)))

    def kill(self) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def records(run_dir: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The records of metrics.jsonl; a last line that is being written is left out."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [record for record in map(json.loads, lines) if kind in (None, record["kind"])]


class Training:
    """Starts programs of launchers/ in a folder of the test's own."""

    def __init__(self, folder: Path, warm: list[str]) -> None:
        """warm: the words before those of a rank that is forked."""
        self.folder = folder
        self._warm = warm
        self._started: list[Started] = []

    def start(
        self,
        program: str,
        run: str,
        *args: object,
        ranks: int = 2,
        shape: str = "srun",
        env: dict[str, str] | None = None,
        largest_file: int | None = None,
        forked: bool = False,
    ) -> Started:
        """largest_file: bytes that the last rank can write into one, as if its disk were full.

        forked: from the warm process, where its environment is the same. A signal that a test sends would reach it later.
        """
        run_dir = self.folder / run
        run_dir.mkdir(exist_ok=True)
        base = ENV | {"KIT_RUN_DIR": str(run_dir), "KIT_SEED": "7", **(env or {})}
        argv = [sys.executable, str(LAUNCHERS / program), "--device", "cpu", *map(str, args)]
        if forked:
            argv = [*self._warm, *argv]
        if shape == "torchrun":
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            commands, environs = [[*torchrun, *argv[1:]]], [base]
        elif shape == "single":
            commands, environs = [argv], [base]
        else:
            shared = {
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
                "NODE_RANK": "0",
            }
            commands = [argv] * ranks
            environs = [base | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
        processes, logs = [], []
        for number, (command, environ) in enumerate(zip(commands, environs, strict=True)):
            logs.append(self.folder / f"{run}-{len(self._started)}-{number}.log")
            if largest_file is not None and number == len(commands) - 1:
                command = ["prlimit", f"--fsize={largest_file}", *command]  # noqa: PLW2901
            with logs[-1].open("wb") as log:
                processes.append(
                    subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
                )
        self._started.append(Started(processes, logs, run_dir))
        return self._started[-1]

    def run(self, program: str, run: str, *args: object, **options: Any) -> Started:
        """Start and wait for the end, which must be a success."""
        started = self.start(program, run, *args, **{"forked": options.get("shape") != "torchrun", **options})
        codes = started.wait()
        assert set(codes) == {0}, started.output()
        return started

    def end(self) -> None:
        for started in self._started:
            started.kill()


@pytest.fixture(scope="session")
def warm_words() -> Iterator[list[str]]:
    """The words before those of a rank that is forked from a process with torch; none with KIT_TEST_STARTS=1."""
    if os.environ.get("KIT_TEST_STARTS") == "1":
        yield []
        return
    name = f"kit-test-training-{os.getpid()}"
    program = [sys.executable, str(LAUNCHERS / "ddp" / "train.py")]
    server = [sys.executable, str(NODE / "warm_ranks.py"), name, WARM, *program]
    # Room for a rank's variables in /proc (warm_request.PAD).
    process = subprocess.Popen(server, env={**ENV, "KIT_WARM_ROOM": " " * 60_000}, stdin=subprocess.DEVNULL)
    yield [sys.executable, "-I", "-S", str(NODE / "warm_client.py"), name, "60", str(os.getpid())]
    process.kill()
    process.wait()


@pytest.fixture
def training(tmp_path: Path, warm_words: list[str]) -> Iterator[Training]:
    made = Training(tmp_path, warm_words)
    yield made
    made.end()


@pytest.fixture(scope="module")
def module_training(tmp_path_factory: pytest.TempPathFactory, warm_words: list[str]) -> Iterator[Training]:
    """For the uninterrupted run that several tests of a module compare with."""
    made = Training(tmp_path_factory.mktemp("uninterrupted"), warm_words)
    yield made
    made.end()


def curve(run_dir: Path, *names: str) -> dict[int, tuple[float, ...]]:
    """step -> the named values, the latest record of each step, from every record that has them all."""
    return {r["step"]: tuple(r[name] for name in names) for r in records(run_dir) if all(name in r for name in names)}


@pytest.fixture(name="free_port", scope="session")
def free_port_fixture() -> Callable[[], int]:
    """free_port, for tests."""
    return free_port


@pytest.fixture(scope="session")
def tools() -> Any:
    """The functions above, for tests (a conftest cannot be imported)."""

    class Tools:
        records = staticmethod(records)
        curve = staticmethod(curve)

    return Tools
