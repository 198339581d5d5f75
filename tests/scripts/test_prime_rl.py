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

SCRIPTS = REPO / "launchers" / "lib" / "prime-rl"
SFT = SCRIPTS / "sft-trainer.sh"
ROLES = {
    "RANK": "0",
    "NODE_RANK": "0",
    "KIT_ROLE": "inference",
    "SLURM_JOB_ID": "17",
    "KIT_RESTART_COUNT": "0",
    "KIT_ROLE_TRAINER_ADDR": "10.0.0.1",
    "KIT_ROLE_TRAINER_PORT_BROADCAST": "20001",
    "KIT_ROLE_INFERENCE_NODES": "10.0.0.2 10.0.0.3",
    "KIT_ROLE_INFERENCE_PORT_HTTP": "20002",
    "KIT_ROLE_INFERENCE_PORT_RPC": "20500",
    "KIT_ROLE_INFERENCE_PORT_TRANSFER": "20600",
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


BOTH = [("trainer.sh", "python"), ("orchestrator.sh", "orchestrator")]


@pytest.mark.parametrize("broadcast", ["filesystem", "nccl"])
def test_orchestrator(broadcast: str, tmp_path: Path) -> None:
    args = ["/kit/run/configs/orchestrator.toml", broadcast, "/kit/run/outputs", "/kit/run/outputs", "2"]
    found = words("orchestrator.sh", "orchestrator", *args, folder=tmp_path)
    assert found[:2] == ["@", "/kit/run/configs/orchestrator.toml"]
    assert after("--model.client.base-url", found) == ["http://10.0.0.2:20003/v1"]
    each = [f"http://10.0.0.{node}:{port}/v1" for node in (2, 3) for port in (20002, 20003)]
    assert after("--model.client.admin-base-url", found) == each
    assert after("--rollout_transport.port", found) == ["20004"]
    assert after("--env-server-base-port", found) == ["20006"]
    assert ("--weight_broadcast.host" in found) == (broadcast == "nccl")
    assert not any("resume" in word for word in found)


@pytest.mark.parametrize(("script", "program"), [*BOTH, ("sft-trainer.sh", "python"), ("evals.sh", "evals")])
def test_both_are_one_run_of_wandb(script: str, program: str, tmp_path: Path) -> None:
    """PRL_RUN_ID was not set: each drew one of its own, and there were two runs."""
    known = stand_in(program, tmp_path, 'printf "%s\\n" "${PRL_RUN_ID}" "${WANDB_RUN_ID}" "${PRL_RUN_NAME}"')
    argv = [str(SCRIPTS / script), "c.toml", "filesystem", "out", "out", "1"]
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
    more = words("trainer.sh", "python", "c.toml", "filesystem", "out", "out", "--optim.lr", "1", folder=tmp_path)
    assert more[-2:] == ["--optim.lr", "1"]  # the job's own arguments: they were dropped


PAIR = """\
use_pd_kv_transfer = true
[vllm]
tensor_parallel_size = 2
enable_expert_parallel = true
"""


def served(folder: Path, config: str, copies: int, replicas: int, **env: str) -> list[dict[str, str]]:
    """What each server of a node gets: its words, with dashes, and its variables. The first ends after all have begun."""
    out = folder / "said"
    out.mkdir()
    text = (
        'n="$#"; printf "%s\\n" "$@" "CUDA_VISIBLE_DEVICES" "${CUDA_VISIBLE_DEVICES:-}" '
        '"TRANSFER" "${VLLM_NIXL_SIDE_CHANNEL_HOST:-}:${VLLM_NIXL_SIDE_CHANNEL_PORT:-}" "FOLDER" "${VLLM_RPC_BASE_PATH}" '
        f'>"{out}/$$.new" && mv "{out}/$$.new" "{out}/$$"; '
        f'until (($(ls "{out}" | grep -vc new) >= {copies})); do sleep 0.05; done; exit 3'
    )
    known = stand_in("inference", folder, text) | env
    (folder / "inference.toml").write_text(config)
    argv = [str(SCRIPTS / "inference.sh"), sys.executable, str(folder / "inference.toml"), str(copies), str(replicas)]
    done = subprocess.run(argv, env=known, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr  # the first that ends is the end of all
    found = []
    for path in out.iterdir():
        lines = path.read_text().splitlines()
        assert lines[:2] == ["@", str(folder / "inference.toml")]
        found.append(dict(zip(lines[2::2], lines[3::2], strict=True)))
        assert not Path(found[-1]["FOLDER"]).exists()
    return sorted(found, key=lambda one: int(one["--server.port"]))


def test_a_server_for_each_copy_of_the_model(tmp_path: Path) -> None:
    gpus = ",".join(map(str, range(8)))
    found = served(tmp_path, "[vllm]\ntensor_parallel_size = 4\n", 2, 2, CUDA_VISIBLE_DEVICES=gpus)
    assert [one["--server.port"] for one in found] == ["20002", "20003"]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["0,1,2,3", "4,5,6,7"]
    assert {one["--router"] for one in found} == {"None"}
    assert {one["--vllm.data-parallel-size"] for one in found} == {"1"}
    assert not any("rank" in word for one in found for word in one)  # vLLM refuses them of a server alone
    assert {one["TRANSFER"] for one in found} == {":"}


@pytest.mark.parametrize(
    ("replicas", "node", "size", "expected"),
    [
        (1, 0, "8", ["0", "1", "10.0.0.2"]),
        (1, 3, "8", ["6", "7", "10.0.0.2"]),
        (2, 3, "4", ["2", "3", "10.0.0.4"]),
        (4, 3, "2", ["0", "1", "10.0.0.5"]),
    ],
)
def test_servers_that_share_experts(replicas: int, node: int, size: str, expected: list[str], tmp_path: Path) -> None:
    *ranks, head = expected
    env = {"KIT_ROLE": "decode", "NODE_RANK": str(node), "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    env |= {f"KIT_ROLE_DECODE_PORT_{name}": str(port) for name, port in (("HTTP", 1), ("RPC", 50), ("TRANSFER", 90))}
    env["KIT_ROLE_DECODE_NODES"] = " ".join(f"10.0.0.{last}" for last in range(2, 6))
    found = served(tmp_path, PAIR, 2, replicas, **env)
    assert [one["--vllm.data-parallel-rank"] for one in found] == ranks
    assert {one["--vllm.data-parallel-size"] for one in found} == {size}
    assert {one["--vllm.data-parallel-address"] for one in found} == {head}
    assert {one["--vllm.data-parallel-rpc-port"] for one in found} == {"50"}
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["4,5", "6,7"]
    assert [one["TRANSFER"] for one in found] == [f"10.0.0.{node + 2}:90", f"10.0.0.{node + 2}:91"]


def routed(folder: Path, file: str, config: str, **env: str) -> list[str]:
    known = stand_in("vllm-router", folder, 'printf "%s\\n" "$@"') | env
    (folder / file).write_text(config)
    argv = [sys.executable, str(SCRIPTS / "router.py"), str(folder), "2"]
    return subprocess.run(argv, env=known, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_router_knows_every_server(tmp_path: Path) -> None:
    found = routed(tmp_path, "inference.toml", "")
    each = [f"http://10.0.0.{node}:{port}" for node in (2, 3) for port in (20002, 20003)]
    assert after("--worker-urls", found) == each
    assert after("--policy", found) == ["consistent_hash"]
    assert after("--prometheus-port", found) == ["20005"]
    found = routed(tmp_path, "inference.toml", '[router]\npolicy = "round_robin"\n')
    assert after("--policy", found) == ["round_robin"]


APART = {
    "KIT_ROLE_PREFILL_NODES": "10.0.0.7",
    "KIT_ROLE_PREFILL_PORT_HTTP": "21000",
    "KIT_ROLE_DECODE_NODES": "10.0.0.8 10.0.0.9",
    "KIT_ROLE_DECODE_PORT_HTTP": "22000",
    "KIT_ROLE_INFERENCE_NODES": "",
}


def test_servers_that_prefill_and_decode_apart(tmp_path: Path) -> None:
    found = routed(tmp_path, "decode.toml", "", **APART)
    assert "--vllm-pd-disaggregation" in found and "--worker-urls" not in found
    prefill = [found[place + 1] for place, word in enumerate(found) if word == "--prefill"]
    decode = [found[place + 1] for place, word in enumerate(found) if word == "--decode"]
    assert prefill == ["http://10.0.0.7:21000", "http://10.0.0.7:21001"]
    assert decode == [f"http://10.0.0.{node}:{port}" for node in (8, 9) for port in (22000, 22001)]
    argv = ["c.toml", "filesystem", "out", "out", "2"]
    admin = after(
        "--model.client.admin-base-url", words("orchestrator.sh", "orchestrator", *argv, folder=tmp_path, **APART)
    )
    assert admin == [f"{url}/v1" for url in (*prefill, *decode)]


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
    argv = ["c.toml", str(tmp_path), str(tmp_path / "out"), "none", "--data.batch-size", "32"]
    first = words(SFT, "python", *argv, folder=tmp_path)
    assert first == ["-m", "prime_rl.trainer.sft.train", "@", "c.toml", "--run.dir", ".", "--data.batch-size", "32"]
    saved(tmp_path, 9, orchestrator=False)
    saved(tmp_path, 10, orchestrator=False)
    saved(tmp_path, 20, trainer=False)
    again = words(SFT, "python", *argv, folder=tmp_path, KIT_RESTART_COUNT="1")
    assert after("--resume.step", again)[:1] == ["10"]


@pytest.mark.parametrize("broadcast", ["filesystem", "nccl"])
def test_evaluation_of_a_fine_tuning(broadcast: str, tmp_path: Path) -> None:
    trainer = words(SFT, "python", "c.toml", str(tmp_path), str(tmp_path / "out"), broadcast, folder=tmp_path)
    found = words("evals.sh", "evals", "c.toml", str(tmp_path), broadcast, "1", folder=tmp_path)
    assert after("--eval.client.base-url", found) == ["http://10.0.0.2:20003/v1"]
    assert after("--eval.client.admin-base-url", found) == ["http://10.0.0.2:20002/v1", "http://10.0.0.3:20002/v1"]
    assert after("--eval.env-server-base-port", found) == ["20006"]
    for program in (trainer, found):
        assert ("--weight_broadcast.port" in program) == (broadcast == "nccl")
        assert not any("resume" in word for word in program)
    saved(tmp_path, 10, orchestrator=False)
    again = words("evals.sh", "evals", "c.toml", str(tmp_path), broadcast, "1", folder=tmp_path, KIT_RESTART_COUNT="1")
    assert after("--online.resume-step", again) == ["10"]


def test_the_trainer_makes_the_run_of_wandb_and_the_evaluation_ends_it(tmp_path: Path) -> None:
    for env, last in (({}, "trainer"), ({"KIT_ROLE_EVALS_ADDR": "10.0.0.2"}, "evals")):
        known = (
            stand_in("python", tmp_path, 'printf "%s\\n" "${WANDB_SHARED_PRIMARY}" "${WANDB_SHARED_FINISHER}"') | env
        )
        argv = [str(SFT), "c.toml", "out", "out", "none"]
        done = subprocess.run(argv, env=known, check=True, capture_output=True, text=True)
        assert done.stdout.split() == ["trainer", last]


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
    (tmp_path / "inference.toml").touch()
    ask = f"ulimit -Sn 256; ulimit -Hn; exec {SCRIPTS / 'inference.sh'} {sys.executable} {tmp_path}/inference.toml 1 1"
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
