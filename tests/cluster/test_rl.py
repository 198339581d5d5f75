"""RL and SFT on the real cluster, in the container: three programs on their nodes that learn; and one of them dying."""

from __future__ import annotations

import json
import os
import signal
import time
import tomllib
from pathlib import Path

import pytest

from kit import shell
from kit.errors import KitError
from kit.images import check_against_lock, image_lock
from tests.cluster.lab import Lab, Run
from tests.support import REPO

pytestmark = pytest.mark.cluster


def options(*sets: str) -> list[str]:
    return [word for text in sets for word in ("--set", text)]


@pytest.fixture
def example(lab: Lab) -> Lab:
    """The lab with examples/rl as its job; its image is there."""
    return of_example(lab, "rl", "frameworks-cpu")


def of_example(lab: Lab, name: str, image: str) -> Lab:
    text = (REPO / "examples" / name / "job.toml").read_text(encoding="utf-8")
    (lab.project / "job.toml").write_text(text, encoding="utf-8")
    store = (lab.project / "clusters" / f"{lab.cluster.name}.toml").read_text().split('store = "')[1].split('"')[0]
    lock = image_lock.read_lock(REPO / "containers" / image / "image.lock")
    try:
        check_against_lock.check(lock, Path(store), full=False)
    except KitError:
        pytest.skip(f"image {image} is not in the store: kit build-image {image}")
    if name == "rl" and "aiohttp" not in lock.packages.pip:
        pytest.skip(f"image {image} lacks aiohttp: kit build-image {image}")
    return lab


def records(run: Path, kind: str) -> list[dict[str, float]]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [r for r in (json.loads(line) for line in lines if line.endswith("}")) if r["kind"] == kind]


def logs(run: Run) -> str:
    return "\n".join(run.log(name) for name in ("batch", "trainer/rank-0", "orchestrator/rank-0", "inference/rank-0"))


def test_one_train_and_one_inference_node_learn(example: Lab, tmp_path: Path) -> None:
    run = example.run(*options("rl.max_steps=25", "checkpoint.every=10", "seed=7"))
    assert run.done.returncode == 0, logs(run)
    (final,) = records(run.folder, "final")
    assert final["reward"] > final["reward_before"] + 0.1, final
    assert example.settled(run.folder) == []  # the services were stopped, nothing is left
    # Where docs/guides/rl.md says.
    trainer = tomllib.loads((run.folder / "configs" / "trainer.toml").read_text())
    assert (trainer["max_steps"], trainer["checkpoint"]["every"]) == (25, 10)
    assert {p.name for p in (run.folder / "configs").iterdir()} == {
        "trainer.toml",
        "orchestrator.toml",
        "inference.toml",
    }
    for role in ("trainer", "orchestrator", "inference"):
        link = run.folder / "logs" / f"latest_{role}_node_rank_0.log"
        assert link.is_symlink()
        assert link.resolve() == run.folder / "logs" / role / "rank-0.log"
        assert link.read_text()
    for theirs, ours in (("train_node_rank_0", "trainer"), ("infer_node_rank_0", "inference"), ("orchestrator",) * 2):
        link = run.folder / "logs" / f"latest_{theirs}.log"
        assert link.resolve() == run.folder / "logs" / ours / "rank-0.log"
    assert (run.folder / "orchestrator" / "metrics.jsonl").exists()
    assert "step 25" in example.kit("logs", run.folder.name, "trainer").stdout
    assert "step 25" in panes(example, run.folder.name, tmp_path)["trainer"]


def panes(lab: Lab, run: str, folder: Path) -> dict[str, str]:
    """What `kit tmux` shows of a run, role by role, in a tmux of the test's own."""
    if shell.which("tmux") is None:
        pytest.skip("tmux is not installed")
    env = {"TMUX_TMPDIR": str(folder), "TMUX": "", "TERM": "xterm"}
    session = lab.kit("tmux", run, "--detach", env=env).stdout

    def ask(*words: str) -> list[str]:
        return shell.run(["tmux", *words], env={**os.environ, **env}).stdout.splitlines()

    try:
        form = "#{pane_title} #{pane_id} #{pane_dead}"
        end = time.monotonic() + 60  # each pane's `kit logs` prints all and ends, since the run has ended
        while any(line.endswith(" 0") for line in ask("list-panes", "-t", f"{session}:logs", "-F", form)):
            assert time.monotonic() < end
            time.sleep(0.2)
        found = [line.split() for line in ask("list-panes", "-t", f"{session}:logs", "-F", form)]
        return {role: "\n".join(ask("capture-pane", "-p", "-S", "-", "-t", pane)) for role, pane, _ in found}
    finally:
        ask("kill-server")


@pytest.mark.slow
@pytest.mark.parametrize("broadcast", ["filesystem", "nccl"])
def test_two_and_two(wide_lab: Lab, broadcast: str) -> None:
    example = of_example(wide_lab, "rl", "frameworks-cpu")
    run = example.run(
        *options("rl.num_train_nodes=2", "rl.num_infer_nodes=2", f"rl.weight_broadcast={broadcast}"),
        *options("rl.nodes_per_fsdp_group=2", "rl.max_steps=25", "seed=7"),
    )
    assert run.done.returncode == 0, logs(run)
    (final,) = records(run.folder, "final")
    assert final["world_size"] == 2
    assert final["reward"] > final["reward_before"] + 0.1, final
    roles = json.loads((run.folder / "state" / "roles.json").read_text())
    assert (len(roles["trainer"]["nodes"]), len(roles["inference"]["nodes"])) == (2, 2)
    assert not set(roles["trainer"]["nodes"]) & set(roles["inference"]["nodes"])
    assert roles["orchestrator"]["nodes"] == roles["trainer"]["nodes"][:1]
    for number in range(2):
        assert "weights of version 25" in run.log(f"inference/rank-{number}")
    assert example.settled(run.folder) == []


def test_a_dry_run_writes_all_and_submits_nothing(example: Lab) -> None:
    folder, before = example.project / "rendered", list(example.project.glob("runs/*"))
    done = example.kit("submit", "--dry-run", "--cluster", example.cluster.name, "-o", str(folder))
    assert done.returncode == 0
    assert {p.name for p in (folder / "configs").iterdir()} == {"trainer.toml", "orchestrator.toml", "inference.toml"}
    assert (folder / "roles" / "orchestrator" / "program.sh").exists()
    assert not example.slurm("squeue", "--noheader")
    assert list(example.project.glob("runs/*")) == before


def pid_of(run: Path, program: str, lab: Lab) -> int:
    """The Python process of a role's program."""
    return next(p.pid for p in lab.processes(run) if p.argv[0].endswith("python3") and f"/{program}" in p.line)


def test_a_server_that_dies_is_started_again(example: Lab) -> None:
    run = example.submit(*options("rl.max_steps=30", "seed=7"))
    example.wait(lambda: len(records(run, "step")) >= 3, run)
    os.kill(pid_of(run, "inference.py", example), signal.SIGKILL)
    ended = example.wait_end(run)
    assert ended["ExitCode"] == "0:0", (run / "logs" / "batch.log").read_text()
    assert len(records(run, "step")) == 30
    text = (run / "logs" / "inference" / "rank-0.log").read_text()
    assert text.count("listening on") == 2


def test_the_death_of_the_orchestrator_ends_the_job(example: Lab) -> None:
    run = example.submit(*options("rl.max_steps=10000", "seed=7"))
    example.wait(lambda: len(records(run, "step")) >= 2, run)
    os.kill(pid_of(run, "orchestrator.py", example), signal.SIGKILL)
    ended = example.wait_end(run, seconds=60)
    assert ended["ExitCode"] == "137:0", (run / "logs" / "batch.log").read_text()
    assert "orchestrator" in (run / "logs" / "batch.log").read_text()
    assert example.settled(run) == []


def test_a_server_that_never_gets_ready_is_named(example: Lab) -> None:
    never = 'roles.inference={ports=["http"], ready={http="http", path="/nothing", timeout_s=5}}'
    run = example.run(*options(never, "seed=7"))
    assert run.done.returncode == 74, logs(run)
    assert "inference" in run.done.stderr + run.log("batch")
    assert example.settled(run.folder) == []


@pytest.mark.slow
def test_sft_learns_and_its_checkpoint_starts_the_rl(lab: Lab) -> None:
    of_example(lab, "sft", "train-cpu")
    run = lab.run(*options("sft.max_steps=120", "seed=7"))
    assert run.done.returncode == 0, run.log("batch") + run.log("trainer/rank-0")
    (final,) = records(run.folder, "final")
    assert final["accuracy"] > 0.3
    assert final["world_size"] == 2
    of_example(lab, "rl", "frameworks-cpu")
    saved = lab.project / "sft"
    (run.folder / "checkpoints").rename(saved)
    after = lab.run(*options("rl.model=/workspace/sft", "rl.max_steps=2", "seed=7"))
    assert after.done.returncode == 0, logs(after)
    assert records(after.folder, "final")[0]["accuracy_before"] == final["accuracy"]
