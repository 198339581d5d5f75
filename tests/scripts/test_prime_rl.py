"""The scripts that start prime-rl's programs: what these would be given. They need GPUs; here stand-ins print their words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import REPO

SCRIPTS = REPO / "launchers" / "rl" / "prime-rl"
SFT = REPO / "launchers" / "sft" / "prime-rl.sh"
ROLES = {
    "RANK": "0",
    "SLURM_JOB_ID": "17",
    "KIT_RESTART_COUNT": "0",
    "KIT_ROLE_TRAINER_ADDR": "10.0.0.1",
    "KIT_ROLE_TRAINER_PORT_BROADCAST": "20001",
    "KIT_ROLE_INFERENCE_NODES": "10.0.0.2 10.0.0.3",
    "KIT_ROLE_INFERENCE_PORT_HTTP": "20002",
    "KIT_ROLE_ROUTER_ADDR": "10.0.0.2",
    "KIT_ROLE_ROUTER_PORT_HTTP": "20003",
    "KIT_ROLE_ROUTER_PORT_METRICS": "20005",
    "KIT_ROLE_ENVIRONMENTS_PORT_FIRST": "20006",
    "KIT_ROLE_ORCHESTRATOR_ADDR": "10.0.0.1",
    "KIT_ROLE_ORCHESTRATOR_PORT_ROLLOUTS": "20004",
}


def stand_in(program: str, folder: Path, text: str) -> dict[str, str]:
    """The environment in which `program` is this script."""
    (folder / program).write_text(f"#!/bin/bash\n{text}\n")
    (folder / program).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin", **ROLES}


def words(script: str | Path, program: str, *args: str, folder: Path, **env: str) -> list[str]:
    """The words that `program` gets from a script."""
    known = stand_in(program, folder, 'printf "%s\\n" "$@"') | env
    done = subprocess.run([str(SCRIPTS / script), *args], env=known, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def after(option: str, found: list[str]) -> list[str]:
    """The values of an option."""
    rest = found[found.index(option) + 1 :]
    return rest[: next((n for n, word in enumerate(rest) if word.startswith("--")), len(rest))]


@pytest.mark.parametrize("broadcast", ["filesystem", "nccl"])
def test_orchestrator(broadcast: str, tmp_path: Path) -> None:
    args = ["/kit/run/configs/orchestrator.toml", broadcast, "/kit/run/outputs", "/kit/run/outputs"]
    found = words("orchestrator.sh", "orchestrator", *args, folder=tmp_path)
    assert found[:2] == ["@", "/kit/run/configs/orchestrator.toml"]
    assert after("--model.client.base-url", found) == ["http://10.0.0.2:20003/v1"]
    assert after("--model.client.admin-base-url", found) == ["http://10.0.0.2:20002/v1", "http://10.0.0.3:20002/v1"]
    assert after("--rollout_transport.port", found) == ["20004"]
    assert after("--env-server-base-port", found) == ["20006"]
    assert ("--weight_broadcast.host" in found) == (broadcast == "nccl")
    assert not any("resume" in word for word in found)


@pytest.mark.parametrize(("script", "program"), [("trainer.sh", "python"), ("orchestrator.sh", "orchestrator")])
def test_both_are_one_run_of_wandb(script: str, program: str, tmp_path: Path) -> None:
    """PRL_RUN_ID was not set: each drew one of its own, and there were two runs."""
    known = stand_in(program, tmp_path, 'printf "%s\\n" "${PRL_RUN_ID}" "${WANDB_RUN_ID}" "${WANDB_SHARED_RUN_ID}"')
    argv = [str(SCRIPTS / script), "c.toml", "filesystem", "out", "out"]
    for env, said in (({}, "slurm-17"), ({"SLURM_CLUSTER_NAME": "h", "KIT_RESTART_COUNT": "1"}, "h-17")):
        done = subprocess.run(argv, env=known | env, check=True, capture_output=True, text=True)
        assert done.stdout.split() == [said] * 3
    done = subprocess.run(argv, env={**known, "PRL_RUN_ID": "mine"}, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["mine"] * 3


def test_trainer_inference_and_router(tmp_path: Path) -> None:
    trainer = words("trainer.sh", "python", "trainer.toml", "nccl", "out", "out", folder=tmp_path)
    assert trainer[:4] == ["-m", "prime_rl.trainer.rl.train", "@", "trainer.toml"]
    assert after("--weight_broadcast.port", trainer) == ["20001"]
    by_files = words("trainer.sh", "python", "trainer.toml", "filesystem", "out", "out", folder=tmp_path)
    assert "--weight_broadcast.host" not in by_files
    inference = words("inference.sh", "inference", "inference.toml", folder=tmp_path)
    assert after("--server.port", inference) == ["20002"]
    assert after("--router", inference) == ["None"]
    router = words("router.sh", "vllm-router", "4", folder=tmp_path)
    assert after("--worker-urls", router) == ["http://10.0.0.2:20002", "http://10.0.0.3:20002"]
    assert after("--intra-node-data-parallel-size", router) == ["4"]
    assert after("--prometheus-port", router) == ["20005"]


def saved(outputs: Path, step: int, *, trainer: bool = True, orchestrator: bool = True) -> None:
    """What prime-rl leaves of a checkpoint, whole or half."""
    folder = outputs / "checkpoints" / f"step_{step}"
    for part in ("trainer", "orchestrator"):
        (folder / part).mkdir(parents=True)
    if trainer:
        (folder / "trainer" / ".metadata").touch()
    if orchestrator:
        (folder / "orchestrator" / "progress.pt").touch()


@pytest.mark.parametrize(("script", "program"), [("trainer.sh", "python"), ("orchestrator.sh", "orchestrator")])
def test_a_second_start_goes_on_from_the_newest_whole_checkpoint(script: str, program: str, tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    args = ["c.toml", "filesystem", str(outputs), str(outputs)]
    assert "--resume.step" not in words(script, program, *args, folder=tmp_path, KIT_RESTART_COUNT="1")
    saved(outputs, 9)
    saved(outputs, 10)
    saved(outputs, 20, trainer=False)
    saved(outputs, 30, orchestrator=False)
    assert after("--resume.step", words(script, program, *args, folder=tmp_path, KIT_RESTART_COUNT="1")) == ["10"]
    assert "--resume.step" not in words(script, program, *args, folder=tmp_path)


def test_the_first_rank_of_a_second_start_clears_what_the_first_start_announced(tmp_path: Path) -> None:
    stale = tmp_path / "outputs" / "broadcasts" / "step_3"
    stale.mkdir(parents=True)
    saved(tmp_path / "outputs", 2)
    args = ["trainer.sh", "python", "c.toml", "filesystem", str(tmp_path / "outputs"), str(tmp_path / "outputs")]
    words(*args, folder=tmp_path)
    words(*args, folder=tmp_path, KIT_RESTART_COUNT="1", RANK="1")
    assert stale.exists()
    words(*args, folder=tmp_path, KIT_RESTART_COUNT="1")
    assert not stale.parent.exists()
    assert (tmp_path / "outputs" / "checkpoints" / "step_2").exists()


def test_fine_tuning(tmp_path: Path) -> None:
    first = words(SFT, "python", "c.toml", str(tmp_path), folder=tmp_path)
    assert first == ["-m", "prime_rl.trainer.sft.train", "@", "c.toml", "--run.dir", "."]
    saved(tmp_path, 9, orchestrator=False)
    saved(tmp_path, 10, orchestrator=False)
    saved(tmp_path, 20, trainer=False)
    again = words(SFT, "python", "c.toml", str(tmp_path), folder=tmp_path, KIT_RESTART_COUNT="1")
    assert after("--resume.step", again) == ["10"]


SOURCES = """\
[log]
vf_level = "debug"
[[train.source]]
name = "a"
env = { taskset = { id = "reverse-text" } }
serve = { pool = { type = "static", num_workers = 2 } }
[[train.source]]
env = { taskset = { id = "elsewhere" } }
serve = { address = "tcp://10.0.0.9:5000" }
[[eval.source]]
env = { taskset = { id = "gsm8k" } }
"""


def environments(folder: Path, server: str, sources: str = SOURCES) -> subprocess.Popen[str]:
    """environments.py, with a script instead of env-server."""
    env = stand_in("env-server", folder, server)
    (folder / "orchestrator.toml").write_text(sources)
    argv = [
        sys.executable,
        str(SCRIPTS / "environments.py"),
        str(folder / "orchestrator.toml"),
        str(folder / "options"),
    ]
    return subprocess.Popen(argv, env=env, text=True)


def test_an_environment_server_for_each_source_where_the_orchestrator_looks(tmp_path: Path) -> None:
    process = environments(tmp_path, 'echo "$$ $*" >>"${0%/*}/started"; exec sleep 60')
    started = tmp_path / "started"
    until = time.monotonic() + 30
    while not started.exists() or len(started.read_text().splitlines()) < 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    lines = [line.split() for line in sorted(started.read_text().splitlines(), key=lambda line: line.split()[-1])]
    assert [rest for _, *rest in lines] == [["@", f"{tmp_path}/options/0.json"], ["@", f"{tmp_path}/options/2.json"]]
    assert json.loads((tmp_path / "options" / "0.json").read_text()) == {
        "env": {"taskset": {"id": "reverse-text"}},
        "serve": {"pool": {"type": "static", "num_workers": 2}, "address": "tcp://127.0.0.1:20006"},
        "log": {"level": "debug", "json_logging": False},
    }
    assert json.loads((tmp_path / "options" / "2.json").read_text())["serve"] == {"address": "tcp://127.0.0.1:20008"}
    servers = {pid: began(pid) for pid, *_ in lines}
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    for pid, start in servers.items():
        while began(pid) == start:
            assert time.monotonic() < until + 30
            time.sleep(0.05)


def began(pid: str) -> str | None:
    """When a process began, in ticks since boot: its number may soon be another's. None for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


@pytest.mark.parametrize(("server", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_the_end_of_an_environment_server_is_the_end_of_all(server: str, code: int, tmp_path: Path) -> None:
    text = f'[[ "$2" == */0.json ]] && {{ {server}; }}; exec sleep 60'
    assert environments(tmp_path, text).wait(30) == code


def test_sources_that_are_all_served_elsewhere(tmp_path: Path) -> None:
    process = environments(tmp_path, "exit 1", '[[train.source]]\nserve = { address = "tcp://10.0.0.9:5000" }\n')
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_server_may_open_many_files(tmp_path: Path) -> None:
    """As many as it wants, or as the node allows; a login's soft limit is not the last word."""
    (tmp_path / "inference").write_text("#!/bin/bash\nulimit -n\n")
    (tmp_path / "inference").chmod(0o755)
    ask = f"ulimit -Sn 256; ulimit -Hn; exec {SCRIPTS / 'inference.sh'} inference.toml"
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", **ROLES}
    done = subprocess.run(["bash", "-c", ask], env=env, check=True, capture_output=True, text=True)
    hard, given = done.stdout.split()
    assert given == (hard if hard != "unlimited" and int(hard) < 65536 else "65536")


def test_only_infiniband_that_is_up_counts(tmp_path: Path) -> None:
    for card, port, layer, state in (
        ("mlx5_0", "1", "InfiniBand", "4: ACTIVE"),
        ("mlx5_0", "2", "InfiniBand", "4: ACTIVE"),
        ("mlx5_1", "1", "Ethernet", "4: ACTIVE"),
        ("mlx5_2", "1", "InfiniBand", "1: DOWN"),
        ("mlx5_3", "1", "InfiniBand", "4: ACTIVE"),
    ):
        folder = tmp_path / card / "ports" / port
        folder.mkdir(parents=True)
        (folder / "link_layer").write_text(f"{layer}\n")
        (folder / "state").write_text(f"{state}\n")
    ask = f"source {SCRIPTS}/infiniband.sh; infiniband::devices '{tmp_path}'; infiniband::devices '{tmp_path}/none'"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", ask], check=True, capture_output=True, text=True)
    assert done.stdout == "mlx5_0,mlx5_3\n\n"
