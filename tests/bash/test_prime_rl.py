"""The scripts that start prime-rl's programs: what these would be given. They need GPUs; here stand-ins print their words."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import REPO

SCRIPTS = REPO / "launchers" / "rl" / "prime-rl"
ROLES = {
    "KIT_ROLE_TRAINER_ADDR": "10.0.0.1",
    "KIT_ROLE_TRAINER_PORT_BROADCAST": "20001",
    "KIT_ROLE_INFERENCE_NODES": "10.0.0.2 10.0.0.3",
    "KIT_ROLE_INFERENCE_PORT_HTTP": "20002",
    "KIT_ROLE_ROUTER_ADDR": "10.0.0.2",
    "KIT_ROLE_ROUTER_PORT_HTTP": "20003",
    "KIT_ROLE_ORCHESTRATOR_ADDR": "10.0.0.1",
    "KIT_ROLE_ORCHESTRATOR_PORT_ROLLOUTS": "20004",
}


def words(script: str, program: str, *args: str, folder: Path) -> list[str]:
    """The words that `program` gets from a script."""
    (folder / program).write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (folder / program).chmod(0o755)
    done = subprocess.run(
        [str(SCRIPTS / script), *args],
        env={"PATH": f"{folder}:/usr/bin:/bin", **ROLES},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


def after(option: str, found: list[str]) -> list[str]:
    """The values of an option."""
    rest = found[found.index(option) + 1 :]
    return rest[: next((n for n, word in enumerate(rest) if word.startswith("--")), len(rest))]


@pytest.mark.parametrize("broadcast", ["filesystem", "nccl"])
def test_orchestrator(broadcast: str, tmp_path: Path) -> None:
    found = words("orchestrator.sh", "orchestrator", "/kit/run/configs/orchestrator.toml", broadcast, folder=tmp_path)
    assert found[:2] == ["@", "/kit/run/configs/orchestrator.toml"]
    assert after("--model.client.base-url", found) == ["http://10.0.0.2:20003/v1"]
    assert after("--model.client.admin-base-url", found) == ["http://10.0.0.2:20002/v1", "http://10.0.0.3:20002/v1"]
    assert after("--rollout_transport.port", found) == ["20004"]
    assert ("--weight_broadcast.host" in found) == (broadcast == "nccl")


def test_trainer_inference_and_router(tmp_path: Path) -> None:
    trainer = words("trainer.sh", "python", "trainer.toml", "nccl", folder=tmp_path)
    assert trainer[:4] == ["-m", "prime_rl.trainer.rl.train", "@", "trainer.toml"]
    assert after("--weight_broadcast.port", trainer) == ["20001"]
    assert "--weight_broadcast.host" not in words("trainer.sh", "python", "trainer.toml", "filesystem", folder=tmp_path)
    inference = words("inference.sh", "inference", "inference.toml", folder=tmp_path)
    assert after("--server.port", inference) == ["20002"]
    router = words("router.sh", "vllm-router", folder=tmp_path)
    assert after("--worker-urls", router) == ["http://10.0.0.2:20002", "http://10.0.0.3:20002"]


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
