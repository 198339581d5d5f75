"""Gives what launchers/torchtitan/run.py adds to TorchTitan's own parsers: TORCHTITAN=<checkout>[:<checkout>...] names them.

Each needs what its configuration imports: torch, tyro, triton, torchdata, tensorboard.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from kit import shell
from tests.support import REPO

CHECKOUTS = [Path(place) for place in os.environ.get("TORCHTITAN", "").split(":") if place]
# The release's own parser reads the words; what it understood comes back as JSON.
PARSES = """
import importlib.util, json, os, sys
sys.path[:0] = [os.environ["LAUNCHER"], os.environ["TORCHTITAN"]]
import run
release = run.release_of(run.find())
words = [*run.added(release, sys.argv[1:]), *sys.argv[1:]]
module = "torchtitan.config_manager" if release.name == "v0.1.0" else "torchtitan.config"
manager = __import__(module, fromlist=["ConfigManager"]).ConfigManager()
config = manager.parse_args(words)
seed = config.debug.seed if release.seed == "--debug.seed" else config.training.seed
groups = getattr(config, "fault_tolerance", None)
print(json.dumps({
    "release": release.name,
    "module": run.module_of(release),
    "found": importlib.util.find_spec(run.module_of(release)) is not None,
    "seed": seed,
    "outputs": config.job.dump_folder if hasattr(config, "job") else config.dump_folder,
    "groups": groups and [groups.enable, groups.replica_id, groups.group_size],
    "steps": config.training.steps,
}))
"""


@pytest.fixture(scope="module", params=CHECKOUTS, ids=lambda place: place.name)
def checkout(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def some_checkout() -> None:
    if not CHECKOUTS:
        pytest.skip("TORCHTITAN names no checkout of TorchTitan")


def understood(checkout: Path, run_dir: Path, **env: str) -> dict[str, Any]:
    """What the release makes of a run's environment and one option of the user's."""
    python_configuration = not any(
        (checkout / "torchtitan" / name).is_file() for name in ("config_manager.py", "config/job_config.py")
    )
    # In 0.3 replica groups are a configuration of their own.
    named = (
        ("torchft.llama3", "llama3_torchft_debugmodel")
        if "REPLICA_GROUP_ID" in env
        else ("llama3", "llama3_debugmodel")
    )
    args = ["--module", named[0], "--config", named[1]] if python_configuration else []
    (run_dir / "config.toml").write_text("[training]\nsteps = 9\n", encoding="utf-8")
    done = shell.run(
        [sys.executable, "-c", PARSES, *args, "--training.steps=3"],
        env={
            **os.environ,
            "TORCHTITAN": str(checkout),
            "LAUNCHER": str(REPO / "launchers" / "torchtitan"),
            "KIT_RUN_DIR": str(run_dir),
            "KIT_SEED": "1234",
            **env,
        },
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.usefixtures("some_checkout")
def test_a_release_is_named() -> None:
    assert all((place / "torchtitan").is_dir() for place in CHECKOUTS)


def test_the_release_understands_what_it_is_told(checkout: Path, tmp_path: Path) -> None:
    found = understood(checkout, tmp_path)
    assert (found["seed"], found["steps"], found["outputs"]) == (1234, 3, str(tmp_path / "outputs"))
    assert (found["module"], found["found"]) == ("torchtitan.train", True)


def test_the_release_knows_its_replica_group(checkout: Path, tmp_path: Path) -> None:
    found = understood(checkout, tmp_path, REPLICA_GROUP_ID="1", NUM_REPLICA_GROUPS="3")
    assert found["groups"] == [True, 1, 3]
    assert found["found"], f"{found['module']} is not in {found['release']}"
