"""launchers/torchtitan/run.py on outlines of TorchTitan's releases: each is told what it reads, by its own options.

tests/training/test_torchtitan.py gives the same to the real parsers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kit import shell
from kit.shell import Completed
from tests.support import REPO

RUN = REPO / "launchers" / "torchtitan" / "run.py"
# As in all releases up to v0.2.2: the arguments are those of the time of the import.
PARSER = "import sys\n\n\ndef parse_args(args=sys.argv[1:]):\n    return args\n"
SAYS = "from torchtitan.parser import parse_args\nprint(__spec__.name, *parse_args())\n"
# The kit's reports wrap TorchTitan's classes, so they import its parser before the training begins.
CALLBACKS = "def torchtitan():\n    import torchtitan.parser\n"
# What tells the releases apart: files, and where the seed is.
OUTLINES = {
    "v0.1.0": {"config_manager.py": "", "train.py": SAYS},
    "v0.2.0": {"config/job_config.py": "class Training:\n    seed: int | None = None\n", "train.py": SAYS},
    "v0.2.2": {
        "config/job_config.py": "class Training:\n    steps: int = 1\n\n\nclass Debug:\n    seed: int | None = None\n",
        "train.py": SAYS,
        "experiments/ft/train.py": SAYS,
    },
    "0.3.0": {"config/manager.py": "", "train.py": SAYS},
    "fork": {"config_manager.py": "from mmengine.config import Config\n", "train.py": SAYS},
}


def checkout(folder: Path, release: str) -> Path:
    """A folder with a package torchtitan that says what it was started with."""
    package = folder / "torchtitan"
    for name, text in {"__init__.py": "", "parser.py": PARSER, **OUTLINES[release]}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "__init__.py").touch()
    return folder


def run(folder: Path, release: str, *args: str, **env: str) -> Completed:
    (folder / "lib").mkdir(exist_ok=True)
    (folder / "lib" / "kit_callbacks.py").write_text(CALLBACKS)
    given = {"PATH": os.environ["PATH"], "TORCHTITAN": str(checkout(folder, release)), "KIT_RUN_DIR": "/run"}
    given |= {"PYTHONPATH": str(folder / "lib"), **env}
    return shell.run([sys.executable, str(RUN), *args], env=given, check=False)


@pytest.mark.parametrize(
    ("release", "seed"), [("v0.1.0", "training"), ("v0.2.0", "training"), ("v0.2.2", "debug")], ids=str
)
def test_the_file_the_seed_and_the_output_folder(tmp_path: Path, release: str, seed: str) -> None:
    """--training.seed was given to every release: v0.2.1 and later end on an option that they do not have."""
    said = run(tmp_path, release, "--training.steps=3", KIT_SEED="5").stdout
    assert said == (
        "torchtitan.train --job.config_file /run/config.toml --job.dump_folder=/run/outputs "
        f"--{seed}.seed=5 --training.steps=3"
    )


@pytest.mark.parametrize(
    ("release", "module"),
    [("v0.1.0", "torchtitan.train"), ("v0.2.0", "torchtitan.train"), ("v0.2.2", "torchtitan.experiments.ft.train")],
)
def test_replica_groups_run_the_module_that_averages(tmp_path: Path, release: str, module: str) -> None:
    """torchtitan.train of v0.2.1 and later takes the options of groups, and trains each of them alone."""
    said = run(tmp_path, release, REPLICA_GROUP_ID="1", NUM_REPLICA_GROUPS="3").stdout
    assert said.startswith(f"{module} ")
    assert said.endswith("--fault_tolerance.enable --fault_tolerance.replica_id=1 --fault_tolerance.group_size=3")
    named = run(tmp_path, release, REPLICA_GROUP_ID="1", NUM_REPLICA_GROUPS="3", TORCHTITAN_MODULE="torchtitan.train")
    assert named.stdout.startswith("torchtitan.train ")


def test_a_release_that_reads_no_toml_wants_its_configuration_named(tmp_path: Path) -> None:
    done = run(tmp_path, "0.3.0", "--job.config_file=llama.toml")
    assert done.returncode == 1
    assert '["--module", "llama3", "--config", "llama3_8b"]' in done.stderr
    assert run(tmp_path, "0.3.0", "--module=llama3", "--config", "llama3_8b", KIT_SEED="5").stdout == (
        "torchtitan.train --dump_folder=/run/outputs --debug.seed=5 --module=llama3 --config llama3_8b"
    )


@pytest.mark.parametrize(
    ("text", "args", "added"),
    [
        ('[job]\ndump_folder = "./outputs"\n', [], True),
        ('[job]\ndump_folder = "/data/out"\n', [], False),
        ("", ["--job.dump_folder", "mine"], False),
        ("", ["--job.dump-folder=mine"], False),
    ],
)
def test_what_is_written_goes_into_the_run_folder_unless_a_place_is_named(
    tmp_path: Path, text: str, args: list[str], added: bool
) -> None:
    """Two runs of one folder continued from each other's checkpoints in ./outputs."""
    file = tmp_path / "llama.toml"
    file.write_text(text)
    said = run(tmp_path, "v0.2.2", "--job.config_file", str(file), *args).stdout
    assert ("--job.dump_folder=/run/outputs" in said) is added


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "TORCHTITAN": str(tmp_path)}
    lost = shell.run([sys.executable, str(RUN)], env=env, check=False)
    assert lost.returncode == 1
    assert "no TorchTitan in" in lost.stderr
    (tmp_path / "torchtitan").mkdir()
    (tmp_path / "torchtitan" / "__init__.py").touch()
    unknown = shell.run([sys.executable, str(RUN)], env=env, check=False)
    assert "does not know; it knows v0.1.0, v0.2.0, v0.2.1 and v0.2.2, 0.3" in unknown.stderr
    gone = run(tmp_path, "v0.2.2", TORCHTITAN_MODULE="torchtitan.experiments.gone")
    assert "has no module torchtitan.experiments.gone" in gone.stderr


def test_a_torch_for_gpus_that_finds_none_is_left_alone(tmp_path: Path) -> None:
    """A node whose driver is broken must end the job, and not train on its CPUs."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "torch.py").write_text(
        "class accelerator:\n    is_available = staticmethod(lambda: False)\n"
        "class backends:\n    class cuda:\n        is_built = staticmethod(lambda: True)\n"
    )
    done = run(tmp_path, "v0.2.2", "--training.steps=3")
    assert done.returncode == 0, done.stderr
    assert "runs on the CPU" not in done.stderr


def test_a_python_configuration_of_the_run_folder_for_a_fork_that_reads_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "own").mkdir()
    (run_dir / "config.py").write_text("training = {'steps': 3}\n")
    refused = run(tmp_path / "theirs", "v0.1.0", KIT_RUN_DIR=str(run_dir))
    assert refused.returncode == 1
    assert f"{run_dir}/config.py is a Python file" in refused.stderr
    said = run(tmp_path / "own", "fork", "--cfg_options", "training.steps=3", KIT_RUN_DIR=str(run_dir)).stdout
    assert said == (
        f"torchtitan.train --job.config_file {run_dir}/config.py --job.dump_folder={run_dir}/outputs "
        "--cfg_options training.steps=3"
    )
