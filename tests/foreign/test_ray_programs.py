"""verl and NeMo-RL on launcher ray: their own parsers take the options of the examples, and what starts on CPUs is started.

NEMO_RL=<checkout> names NeMo-RL, which pip does not have.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab
from tests.foreign.conftest import FOLDER, PYTHON
from tests.foreign.test_ray import left, said
from tests.support import REPO

VERL = FOLDER.parent / "verl"
NEMO_RL = Path(os.environ.get("NEMO_RL", "none"))
# verl's driver as a job starts it; its worker groups are its own, on CPUs.
VERL_START = """\
import os, sys
import ray
from omegaconf import OmegaConf
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
print("drivers ranks", [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in os.environ])
ray.init(runtime_env=OmegaConf.to_container(OmegaConf.create(get_ppo_ray_runtime_env())))
@ray.remote
class Reporter(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def place(self):
        import torch
        torch.distributed.init_process_group("gloo")
        mine = torch.tensor([self.rank + 1])
        torch.distributed.all_reduce(mine)
        return os.environ["SLURMD_NODENAME"], self.rank, self.world_size, mine.item()
pool = RayResourcePool(process_on_nodes=[2, 2], use_gpu=False, max_colocate_count=1)
group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(cls=Reporter), device_name="cpu")
print("places", sorted(group.place(), key=lambda place: place[1]))
"""
NEMO_START = """\
import os
import ray
from nemo_rl.distributed.virtual_cluster import RayVirtualCluster, init_ray
init_ray()
cluster = RayVirtualCluster(bundle_ct_per_node_list=[4, 4], use_gpus=False, max_colocated_worker_groups=1, name="kit")
groups = cluster.get_placement_groups()
@ray.remote(num_cpus=1)
def place():
    # init_ray gives all tasks the driver's environment, SLURMD_NODENAME with it.
    return ray.util.get_node_ip_address(), [name for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") if name in os.environ]
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as In
asked = [
    place.options(scheduling_strategy=In(placement_group=group, placement_group_bundle_index=index)).remote()
    for group in groups
    for index in range(group.bundle_count)
]
print("places", sorted(ray.get(asked)))
cluster.shutdown()
"""
NEMO_PARSES = """\
import json, sys
from omegaconf import OmegaConf
from nemo_rl.utils.config import load_config, parse_hydra_overrides, register_omegaconf_resolvers
register_omegaconf_resolvers()
config = parse_hydra_overrides(load_config(sys.argv[1]), sys.argv[2:])
print(json.dumps(OmegaConf.to_container(config, resolve=True), default=str))
"""


def has(*modules: str, path: Path) -> bool:
    """Whether the programs' Python imports these, with a folder of packages."""
    argv = [PYTHON, "-c", f"import {', '.join(modules)}"]
    return (
        Path(PYTHON).exists()
        and not subprocess.run(argv, check=False, env=with_path(path), capture_output=True).returncode
    )


def with_path(*paths: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": ":".join(map(str, paths))}


needs_verl = pytest.mark.skipif(not has("hydra", "ray", path=VERL), reason="verl is not here: make foreign")
needs_nemo = pytest.mark.skipif(
    not (NEMO_RL / "nemo_rl").is_dir(), reason="NEMO_RL names no checkout of NeMo-RL, which pip does not have"
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two nodes."""
    store = tmp_path_factory.mktemp("store")
    # Other numbers than those of test_ray's jobs: the names of Ray's folders have them.
    with lab_on("rayprog", 2, store, tmp_path_factory.mktemp("project"), {"FirstJobId": "5000"}) as lab:
        yield lab


def words_of(example: str) -> list[str]:
    """The options that an example gives its program."""
    job = tomllib.loads((REPO / "examples" / example / "job.toml").read_text(encoding="utf-8"))
    return [word.replace("{run}", "/run") for word in job["command"] if re.match(r"[+~a-z_.]+=", word)]


def value(config: Any, key: str) -> Any:
    for name in key.split("."):
        config = config[name]
    return config


def compare(config: Any, words: list[str]) -> None:
    """Each option of the command line is a value of the configuration."""
    for key, text in (word.split("=", 1) for word in words):
        assert str(value(config, key)) == {"[console]": "['console']"}.get(text, text)


@needs_verl
def test_verls_own_parser_takes_the_examples_options() -> None:
    words = words_of("verl")
    read = "import sys, json, yaml; print(json.dumps(yaml.safe_load(sys.stdin)))"
    argv = [PYTHON, "-m", "verl.trainer.main_ppo", "--cfg", "job", "--resolve", *words]
    shown = subprocess.run(argv, env=with_path(VERL), capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr[-3000:]
    text = shown.stdout[shown.stdout.index("actor_rollout_ref:") :]
    done = subprocess.run([PYTHON, "-c", read], input=text, capture_output=True, text=True, check=True)
    assert len(words) > 10
    compare(json.loads(done.stdout), words)


@needs_verl
def test_verl_refuses_a_misspelt_option() -> None:
    argv = [PYTHON, "-m", "verl.trainer.main_ppo", "--cfg", "job", "trainer.nodes=4"]
    assert subprocess.run(argv, env=with_path(VERL), capture_output=True, check=False).returncode != 0


@needs_nemo
def test_nemo_rls_own_parser_takes_the_examples_options() -> None:
    job = tomllib.loads((REPO / "examples" / "nemo-rl" / "job.toml").read_text(encoding="utf-8"))
    program, config = job["command"][1], job["command"][2].removeprefix("--config=")
    here = [Path(path.replace("/opt/nemo-rl", str(NEMO_RL))) for path in (program, config)]
    assert all(path.is_file() for path in here)
    words = words_of("nemo-rl")
    argv = [PYTHON, "-c", NEMO_PARSES, str(here[1]), *words]
    done = subprocess.run(argv, env=with_path(NEMO_RL, VERL), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    compare(json.loads(done.stdout.splitlines()[-1]), words)


def write(lab: Lab, program: str, *paths: Path, setup: list[str] | None = None) -> None:
    env = f'[env]\nPYTHONPATH = "{":".join(map(str, paths))}"\n'
    top = f'script = "program.py"\npython = "{PYTHON}"\nsetup = {json.dumps(setup or [])}\n'
    job = f"{top}[resources]\nnodes = 2\ngpus_per_node = 2\n{env}"
    lab.write(f"{job}[preflight]\nfree_disk_gb = 0\n", program, launcher="ray")


@needs_verl
@pytest.mark.cluster
def test_verls_worker_groups_start_on_the_jobs_nodes(lab: Lab) -> None:
    setup = tomllib.loads((REPO / "examples" / "verl" / "job.toml").read_text(encoding="utf-8"))["setup"]
    write(lab, VERL_START, VERL, setup=setup)
    run = lab.run("--no-container")
    text = said(run.folder)
    assert run.done.returncode == 0, text[-5000:]
    first, second = (node.name for node in lab.cluster.nodes)
    assert "drivers ranks []" in text
    places = [(first, 0, 4, 10), (first, 1, 4, 10), (second, 2, 4, 10), (second, 3, 4, 10)]
    turned = [(second, 0, 4, 10), (second, 1, 4, 10), (first, 2, 4, 10), (first, 3, 4, 10)]
    assert f"places {places}" in text or f"places {turned}" in text, text[-5000:]
    assert left(lab, run.folder) == []


@needs_nemo
@pytest.mark.cluster
def test_nemo_rls_cluster_is_that_of_the_job(lab: Lab) -> None:
    write(lab, NEMO_START, NEMO_RL, VERL)
    run = lab.run("--no-container")
    text = said(run.folder)
    assert run.done.returncode == 0, text[-5000:]
    places = re.search(r"^places (.*)$", text, re.MULTILINE)
    assert places, text[-5000:]
    found = ast.literal_eval(places[1])
    assert [ranks for _, ranks in found] == [[]] * 8
    assert sorted(Counter(address for address, _ in found).values()) == [4, 4]
    assert left(lab, run.folder) == []
