"""Checkpoints: the state of one step while training continues, kept through kill -9, and read by each rank for itself."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

LAUNCHERS = Path(__file__).parents[2] / "launchers"
BIG = 1 << 20  # float32 values: far above the size that is copied at once


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Import as the programs do."""
    monkeypatch.syspath_prepend(str(LAUNCHERS))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The only rank of a process group."""
    from lib import ranks

    monkeypatch.delenv("RANK", raising=False)
    with ranks.started("cpu") as world:
        yield world


class Training:
    """A model whose optimizer moves it by 1 in each step."""

    def __init__(self, world: Any, folder: Path, *, background: bool = True) -> None:
        import torch
        from lib import checkpoint

        self.net = torch.nn.BatchNorm1d(BIG, affine=True)
        self.optimizer = torch.optim.SGD([self.net.weight], lr=1.0)
        self.net.weight.grad = -torch.ones(BIG)
        self.seconds: list[tuple[int, float]] = []
        self.checkpoints = checkpoint.Checkpoints(
            folder, world, {}, background=background, saved=lambda *told: self.seconds.append(told)
        )

    def save(self, step: int, *, last: bool = False) -> None:
        from lib import host_copy

        def start(folder: Path) -> Any:
            kept = self.checkpoints.kept(self.net.state_dict(), host_copy.written_by_step(self.net, self.optimizer))
            return lambda: self.checkpoints.write(kept(), folder / "state.pt")

        self.checkpoints.save(step, start, last=last)

    def saved(self) -> Any:
        import torch

        folder = self.checkpoints.newest()
        assert folder is not None
        return torch.load(folder / "state.pt")


@pytest.fixture
def slow_copies(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Copies start only when the test sets this event, or when the training loop makes them itself."""
    import threading

    from lib.host_copy import HostCopy

    may, run = threading.Event(), HostCopy.run
    monkeypatch.setattr(HostCopy, "run", lambda self: (may.wait(60), run(self))[1])
    return may


@pytest.mark.smoke
def test_an_optimizer_step_waits_for_the_copy(alone: Any, tmp_path: Path, slow_copies: Any) -> None:
    training = Training(alone, tmp_path)
    training.save(1)
    before = training.net.weight.detach().clone()
    training.optimizer.step()  # nothing is copied yet: this copies first
    slow_copies.set()
    training.checkpoints.wait()
    assert training.saved()["weight"].equal(before)
    assert not training.net.weight.equal(before)
    assert [step for step, _ in training.seconds] == [1]


@pytest.mark.smoke
def test_what_a_forward_pass_writes_is_copied_at_once(alone: Any, tmp_path: Path, slow_copies: Any) -> None:
    import torch

    training = Training(alone, tmp_path)
    before = training.net.running_mean.clone()
    training.save(1)
    training.net(torch.randn(2, BIG))
    slow_copies.set()
    training.checkpoints.wait()
    assert training.saved()["running_mean"].equal(before)
    assert not training.net.running_mean.equal(before)


@pytest.mark.smoke
def test_the_copy_keeps_its_memory_and_a_save_in_the_foreground_makes_none(alone: Any, tmp_path: Path) -> None:
    training = Training(alone, tmp_path)
    memory = []
    for step in (1, 2):
        training.save(step)
        training.checkpoints.wait()
        memory.append({path: one.data_ptr() for path, one in training.checkpoints._copy._buffers.items()})
        training.optimizer.step()
    assert memory[0] == memory[1]
    training.save(3, last=True)
    assert training.saved()["weight"].equal(training.net.weight)
    assert [step for step, _ in training.seconds] == [1, 2, 3]


@pytest.mark.smoke
def test_a_copy_that_fails_ends_the_training_with_its_error(
    alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lib.host_copy import HostCopy

    training = Training(alone, tmp_path)

    def fail(*_: Any) -> None:
        raise MemoryError("no room for the copy")

    monkeypatch.setattr(HostCopy, "_buffer", fail)
    monkeypatch.setattr("lib.host_copy._AT_ONCE_BYTES", 0)
    training.net.register_buffer("running_mean", None)
    training.net.register_buffer("running_var", None)
    training.net.register_buffer("num_batches_tracked", None)
    training.save(1)
    training.optimizer.step()
    with pytest.raises(RuntimeError, match="no room for the copy"):
        training.checkpoints.wait()


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from lib import checkpoint, ranks

folder, step = Path(sys.argv[1]), int(sys.argv[2])
with ranks.started("cpu") as world:
    checkpoints = checkpoint.Checkpoints(folder, world, {}, background=True)
    found = checkpoints.newest()
    print(found.name if found else None, torch.load(found / "state.pt")["value"].mean().item() if found else None)

    def start(target):
        kept = checkpoints.kept({"value": torch.full((1 << 20,), float(step))}, [])

        def finish():
            checkpoints.write(kept(), target / "state.pt")
            if sys.argv[3] == "die":
                os.truncate(target / "state.pt", 1000)
                os.kill(os.getpid(), signal.SIGKILL)

        return finish

    checkpoints.save(step, start)
    checkpoints.wait()
"""


def test_kill_9_in_the_middle_of_a_save_leaves_the_previous_one(tmp_path: Path) -> None:
    def run(step: int, end: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-c", KILLED, str(tmp_path), str(step), end]
        return subprocess.run(argv, capture_output=True, text=True, env={"PYTHONPATH": str(LAUNCHERS)}, check=False)

    assert run(1, "live").returncode == 0
    assert run(2, "die").returncode == -9
    assert list(tmp_path.glob(".tmp-*"))
    last = run(2, "live")
    assert last.stdout == "step-00000001 1.0\n", last.stderr
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000001", "step-00000002"]
    assert not list(tmp_path.glob(".tmp-*"))


class Case(NamedTuple):
    program: str
    options: tuple[object, ...]
    all_need: str = "none"  # the files that every rank needs


GPT = ("--layers", 2, "--dim", 256, "--heads", 4, "--context", 16, "--test-windows", 1)
CASES = [
    Case("ddp/train_gpt.py", (*GPT, "--batch-size", 4)),
    Case("fsdp/train.py", (*GPT, "--batch-size", 4)),
    Case("deepspeed/train.py", GPT, all_need="model_states"),
    Case("megatron/train.py", (*GPT, "--batch-size", 4, "--tp", 2)),
    Case("diloco/train.py", (*GPT, "--batch-size", 4, "--sync-every", 2, "--inside", "fsdp")),
    Case("sft/train.py", ("--dim", 256, "--max-steps", 2, "--batch-size", 4, "--test-rollouts", 1)),
]
# Notes at its end how many bytes a process has read: sitecustomize.py.
COUNTED = """
import atexit, os, pathlib
def note():
    read = pathlib.Path("/proc/self/io").read_text().split()[1]
    pathlib.Path(os.environ["KIT_RUN_DIR"], "read-" + os.environ["RANK"]).write_text(read)
if "RANK" in os.environ:
    atexit.register(note)
"""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.program.split("/")[0])
def test_a_rank_reads_its_own_part_of_a_checkpoint(case: Case, training: Any, tmp_path: Path) -> None:
    """Twice: for the check, and for the load. Not counted: what a start without a checkpoint reads."""
    if case.program.startswith(("deepspeed", "megatron")):
        pytest.importorskip("megatron.core" if "megatron" in case.program else "deepspeed")
    texts = [json.dumps({"text": f"Text {number}, which is short and read at once. " * 20}) for number in range(40)]
    (tmp_path / "text.jsonl").write_text("\n".join(texts))
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "sitecustomize.py").write_text(COUNTED)
    env = {"PYTHONPATH": f"{tmp_path / 'hooks'}:{LAUNCHERS}"}

    def read(run: str, steps: int) -> list[int]:
        limit = ("--max-steps" if "sft" in case.program else "--steps", steps)
        options = (*case.options, *limit, "--checkpoint-dir", tmp_path / f"{run}-saves")
        if "--context" in options:
            options += ("--data", tmp_path / "text.jsonl", "--validation", 0.3)
        started = training.start(case.program, run, *options, env=env)
        assert set(started.wait(400)) == {0}, started.output()
        return [int((started.run_dir / f"read-{rank}").read_text()) for rank in (0, 1)]

    read("whole", 2)
    fresh, resumed = read("fresh", 2), read("whole", 2)
    (newest,) = tmp_path.glob("whole-saves/**/step-*")
    told = json.loads((newest / "complete.json").read_text())
    sizes = {name: size for name, (size, _) in told["files"].items()}
    shared = sum(size for name, size in sizes.items() if case.all_need in name)
    for rank in (0, 1):
        own = sum(sizes[name] for name, writer in told["writers"].items() if writer == rank)
        assert resumed[rank] - fresh[rank] < 2 * (own + shared) + 2_000_000, (sizes, told["writers"], fresh, resumed)
    assert sum(sizes.values()) > 20_000_000
