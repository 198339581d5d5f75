"""A user of the sweep generator for DDP and DiLoCo types its options, overrides and Python configurations."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kit import cli
from kit.errors import KitError
from kit.planning.sbatch_header import header
from tests.unit.test_generate import embedded, job_arguments

CLUSTER = """
default_qos = "normal"
[node]
cpus = 128
gpus = 8
[qos.normal]
account = "research"
partition = "gpu"
memory = "500G"
time = "72:00:00"
[qos.high]
account = "urgent"
partition = "gpu"
time = "72:00:00"
"""
TOML = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 4\nsteps = 1000\n'
# Of the form of a fork's files: dictionaries, None, a trailing comma, numbers that are computed, keys that no release has.
MUON = """
optimizer = {'name': 'Muon', 'lr': 0.01, 'weight_decay': 1e-4, 'nesterov': False, 'mu': 0.9}
memory_estimation = {'enabled': False},
outer_optimizer = {'kwargs': {'lr': 0.9, 'nesterov': True}, 'class_name': 'sgd'}
model = dict(name='llama3', flavor='llama3-w1024-d12-h8', converters=[])
lr_scheduler = {'decay_ratio': None, 'warmup_steps': 300}
training = {'steps': 10 * 1000, 'local_batch_size': 16, 'global_batch_size': 512, 'seed': 42, 'compile': True}
"""
GROUPS = "fault_tolerance = {'enable': False, 'semi_sync_method': 'diloco', 'sync_steps': 30}\n"
# Of the form in which forks and v0.1 declare their options.
CHECKOUT = """
class Optimizer:
    name: Literal["AdamW", "Muon"] = "AdamW"
    lr: float = 8e-4
    cautious_wd: bool = False
class OuterOptimizer:
    kwargs: dict[Any, Any] | None = None
class Training:
    steps: int = 10
class JobConfig:
    optimizer: Optimizer = field(default_factory=Optimizer)
    outer_optimizer: OuterOptimizer = field(default_factory=OuterOptimizer)
    training: Training = field(default_factory=Training)
"""


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    for name, text in {
        "clusters/here.toml": CLUSTER,
        "llama3.toml": TOML,
        "diloco.toml": f'{TOML}[fault_tolerance]\nenable = true\nsemi_sync_method = "diloco"\n',
        "config/ddp/muon.py": MUON,
        "config/diloco/2x_4gpu_muloco.py": MUON + GROUPS,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


@dataclass(frozen=True)
class Typed:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


def typed(line: str) -> Typed:
    """What `kit generate` makes of the generator's words, in this process: a new one for each line would take a minute."""
    done = CliRunner().invoke(cli.app, ["generate", "--cluster", "here", "--no-container", *shlex.split(line)])
    if isinstance(done.exception, KitError):
        return Typed(done.exception.exit_code, done.stdout, f"{done.exception}\n  try: {done.exception.hint}")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Typed(done.exit_code, done.stdout, done.stderr)


def words(done: Typed, program: str = "program.sh") -> list[str]:
    """What the program is started with."""
    assert done.returncode == 0, done.stderr
    return [shlex.split(word)[0] for word in job_arguments(done.stdout, program)]


def test_a_published_toml_is_one_training_of_all_ranks() -> None:
    """It became eight replica groups silently."""
    done = typed("--config-file llama3.toml --nodes 8")
    assert words(done) == []
    assert "one training of 64 ranks on 8 nodes, sharded as the configuration says" in done.stderr
    assert "--nodes=8" in header(done.stdout)


def test_a_line_of_the_sweep_with_ddp() -> None:
    done = typed(
        "--config-file config/ddp/muon.py --job-name muon_lr0.03125 --qos high --nodes 4 --gpus-per-node 8 --mem 1000G "
        "--time 24:00:00 --use-ddp --mail-type BEGIN,END,FAIL --mail-user you@example.com --partition h100 --account optim "
        '--output logs/%j.out --error logs/%j.err --extra-args "lr_scheduler.warmup_steps=500 model.flavor=llama3-w2048 '
        'optimizer.lr=0.03125 training.global_batch_size=512 training.local_batch_size=16 training.steps=8160"'
    )
    assert words(done) == [
        "--parallelism.data_parallel_replicate_degree=32",
        "--parallelism.data_parallel_shard_degree=1",
        "--cfg_options",
        "lr_scheduler.warmup_steps=500",
        "model.flavor=llama3-w2048",
        "optimizer.lr=0.03125",
        "training.global_batch_size=512",
        "training.local_batch_size=16",
        "training.steps=8160",
    ]
    wanted = {"--mail-type=BEGIN,END,FAIL", "--mail-user=you@example.com", "--mem=1000G", "--account=optim"}
    assert wanted | {"--partition=h100", "--qos=high", "--time=24:00:00"} <= set(header(done.stdout))
    assert embedded(done.stdout, "config.py") == MUON.rstrip("\n"), "as it is: the fork's own parser reads it"
    assert "export KIT_SEED=42" in embedded(done.stdout, "worker.sh")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("config/diloco/2x_4gpu_muloco.py --nodes 2", "16 replica groups of 1 rank on 2 nodes"),
        ("diloco.toml --nodes 2", "16 replica groups of 1 rank on 2 nodes"),
        (
            "config/diloco/2x_4gpu_muloco.py --nodes 16 --num-ft-replicas-per-node 8 --nodes-per-replica 1",
            "128 replica groups of 1 rank on 16 nodes",
        ),
        ("llama3.toml --nodes 4 --nodes-per-replica 2", "2 replica groups of 16 ranks on 4 nodes"),
        ("llama3.toml --nodes 4 --nodes-per-replica 2 --num-ft-replicas-per-node 8", "2 replica groups of 16 ranks"),
        ("diloco.toml --nodes 2 --use-ddp", "one training of 16 ranks on 2 nodes, a copy of the model on each"),
        (
            "diloco.toml --extra-args 'fault_tolerance.enable=False fault_tolerance.semi_sync_method=None'",
            "one training of 8",
        ),
    ],
)
def test_which_of_the_three_modes(line: str, said: str) -> None:
    """DDP if asked for; replica groups by an option or by the file, eight a node; else one training."""
    done = typed(f"--config-file {line}")
    assert done.returncode == 0, done.stderr
    assert said in done.stderr


def test_overrides_become_options_of_the_release() -> None:
    done = typed(
        '--config-file llama3.toml --extra-args "--cfg_options training.steps=5 model.converters=[float8,mx] '
        "compile.enable=False metrics.enable_wandb=true job.description='a  b' --training.seq_len 64\""
    )
    assert words(done) == [
        "--training.seq_len",
        "64",
        "--training.steps=5",
        "--model.converters=float8,mx",
        "--compile.no_enable",
        "--metrics.enable_wandb",
        "--job.description=a  b",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('llama3.toml --extra-args "training.stps=5"', "did you mean '--training.steps'?"),
        ('llama3.toml --extra-args "training.steps 5"', 'try: --extra-args "training.steps=5"'),
        ('llama3.toml --extra-args "training.steps=five"', "training.steps=five: the key takes an integer"),
        ('llama3.toml --extra-args "optimizer.lr=fast"', "optimizer.lr=fast: the key takes a number"),
        ('llama3.toml --extra-args "compile.enable=maybe"', "compile.enable=maybe: the key is true or false"),
        ('config/ddp/muon.py --extra-args "optimizer.wieght_decay=0.1"', "try: optimizer.weight_decay=0.1"),
        (
            'config/ddp/muon.py --extra-args "optimizer.cautious_wd=True"',
            "neither the program nor config/ddp/muon.py has",
        ),
        ('config/ddp/muon.py --extra-args "training.compile=2"', "training.compile=2: the key is true or false"),
        ("llama3.toml --nodes 1 --extra-args parallelism.data_parallel_shard_degree=16", "try: --nodes 2"),
    ],
)
def test_what_is_wrong_is_told_by_name(line: str, said: str) -> None:
    """Unknown keys were ignored silently, and the default was trained."""
    done = typed(f"--config-file {line}")
    assert (done.returncode, done.stdout) == (3, "")
    assert said in done.stderr


def test_keys_of_a_checkout_are_known_though_the_file_lacks_them(tmp_path: Path) -> None:
    (tmp_path / "torchtitan").mkdir()
    (tmp_path / "torchtitan" / "config_manager.py").write_text(CHECKOUT)
    line = "--config-file config/ddp/muon.py --extra-args"
    said = words(typed(f"{line} 'optimizer.cautious_wd=False outer_optimizer.kwargs.quantization_bins=[4,16]'"))
    assert said[-2:] == ["optimizer.cautious_wd=False", "outer_optimizer.kwargs.quantization_bins=[4,16]"]
    assert "takes one of AdamW, Muon" in typed(f"{line} optimizer.name=muonn").stderr
    assert "takes an integer" in typed(f"{line} training.steps=1e3").stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os\noptimizer = {'lr': 0.1}\n", "line 1: 'import os' has to be executed"),
        ("optimizer = {\n 'lr': open('x')}\n", "line 2: \"'lr': open('x')}\" has to be executed"),
        ("a = 9 ** 9 ** 9\n", "line 1: 'a = 9 ** 9 ** 9' has to be executed"),
        ("a = 'x' * 9999999999\n", "has to be executed"),
        ("optimizer = {\n", "not valid Python"),
        ("a = " + "(" * 3000 + ")" * 3000, "not valid Python"),
    ],
)
def test_nothing_of_a_python_configuration_is_executed(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config" / "ddp" / "muon.py").write_text(text)
    done = typed("--config-file config/ddp/muon.py")
    assert (done.returncode, done.stdout) == (3, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
