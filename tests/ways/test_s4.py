"""A user of rl_slurm and sft_slurm types his lines, with `kit submit` in place of `uv run rl_slurm`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from tests.cluster.lab import Lab, Run
from tests.ways.stand_ins import make_environment

pytestmark = pytest.mark.cluster

DENSE = """\
job_name = "sums"
output_dir = "outputs/sums"
num_train_nodes = 1
num_infer_nodes = 1
gpus_per_node = 2
max_steps = 5
seq_len = 2048
hf_hub_offline = true

[wandb]
project = "sums"
name = "first"
offline = true

[model]
name = "org/model"

[orchestrator]
batch_size = 128
rollouts_per_example = 16

[orchestrator.sampling]
max_tokens = 2048

[[orchestrator.env]]
id = "sums-env"
name = "sums"
args = { subset = "default" }

[inference.parallel]
tp = 1
dp = 2
"""
MOE = DENSE.replace("[wandb]", '[weight_broadcast]\ntype = "nccl"\n\n[wandb]') + (
    '[trainer.model]\nimpl = "custom"\nattn = "flash_attention_3"\noptim_cpu_offload = true\n'
    "[trainer.model.ac_offloading]\nmax_inflight_activations = 5\n[trainer.model.ac]\nfreq = 1\n"
)
SFT = """\
job_name = "sums-sft"
num_nodes = 2
gpus_per_node = 2
max_steps = 7
output_dir = "outputs/sft"

[model]
name = "org/model"
impl = "custom"

[model.compile]

[model.ac]
freq = 1

[data]
type = "sft"
name = "org/chats"
batch_size = 128
seq_len = 8192
"""
TEMPLATE = """\
#!/bin/bash
#SBATCH --nodes={{ num_train_nodes + num_infer_nodes }}
echo {{ job_name }} {{ config_dir }} {{ hf_hub_offline }}
"""


@pytest.fixture(scope="module")
def project(place: Lab) -> Iterator[Lab]:
    make_environment(place.project)
    (place.project / "examples").mkdir()
    for name, text in (("dense", DENSE), ("moe", MOE), ("sft", SFT)):
        (place.project / "examples" / f"{name}.toml").write_text(text)
    yield place


def test_a_dry_run_writes_a_file_for_each_role_and_the_script(project: Lab, tmp_path: Path) -> None:
    line = ["@", "examples/moe.toml", "--cluster", project.cluster.name, "--dry-run", "-o", str(tmp_path)]
    project.kit("submit", *line)
    assert sorted(path.name for path in (tmp_path / "configs").iterdir()) == [
        "inference.toml",
        "orchestrator.toml",
        "trainer.toml",
    ]
    trainer = tomllib.loads((tmp_path / "configs/trainer.toml").read_text())
    assert trainer["model"]["ac_offloading"] == {"max_inflight_activations": 5}
    assert trainer["weight_broadcast"] == {"type": "nccl", "inference_world_size": 2}
    assert "#SBATCH --nodes=2" in (tmp_path / "batch.sh").read_text()
    assert project.slurm("squeue", "--noheader") == ""


def test_a_template_of_his_own_has_the_variables_that_he_knows(project: Lab, tmp_path: Path) -> None:
    (project.project / "examples/my.sh.j2").write_text(TEMPLATE)
    line = ["--cluster", project.cluster.name, "--dry-run", "--set", "slurm.template=my.sh.j2", "-o", str(tmp_path)]
    project.kit("submit", "examples/dense.toml", *line)
    said = (tmp_path / "script").read_text()
    assert "--nodes=2" in said
    assert "echo sums " in said
    assert said.rstrip().endswith("/configs True")


def test_an_rl_run_and_the_places_where_its_logs_are(project: Lab) -> None:
    done = project.kit("submit", "examples/dense.toml", "--cluster", project.cluster.name, "--wait", check=False)
    run = Run(Path(done.stdout.splitlines()[0]), done)
    logs = run.folder / "logs"
    assert done.returncode == 0, (
        done.stderr + run.log("batch") + run.log("trainer/rank-0") + run.log("inference/rank-0")
    )
    assert "trained 5 steps of ['of-128']" in (logs / "latest_train_node_rank_0.log").read_text()
    assert "serves org/model {'tp': 1, 'dp': 2}" in (logs / "latest_infer_node_rank_0.log").read_text()
    assert "server answers: http://" in (logs / "latest_orchestrator.log").read_text()
    assert (run.folder / "outputs/sums/run_default/rollouts/of-128").exists()
    # The trainer's two ranks, by both names of its log.
    assert "trained 5 steps" in project.kit("logs", run.folder.name, "trainer", "--rank", "1").stdout
    if shell.which("tmux") is None:
        pytest.skip("tmux is not installed")
    env = {"TMUX_TMPDIR": str(project.project)}
    first, second = (project.kit("tmux", name, "--detach", env=env).stdout for name in ("sums", run.folder.name))
    try:
        assert first == second
    finally:
        shell.run(
            ["tmux", "kill-server"], env={"TMUX_TMPDIR": env["TMUX_TMPDIR"], "PATH": "/usr/bin:/bin"}, check=False
        )


def test_a_fine_tuning_over_two_nodes(project: Lab) -> None:
    line = ["--cluster", project.cluster.name, "--wait", "--set", "max_steps=3"]
    done = project.kit("submit", "examples/sft.toml", *line, check=False)
    run = Run(Path(done.stdout.splitlines()[0]), done)
    assert done.returncode == 0, done.stderr + run.log("batch") + run.log("trainer/rank-0")
    for node in (0, 1):
        assert "trained 3 steps" in (run.folder / "logs" / f"latest_train_node_rank_{node}.log").read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("batch_size = 128", "batchsize = 128", "did you mean 'batch_size'"),
        ('name = "sums"\nargs', 'nam = "sums"\nargs', "did you mean 'env.name'"),
        ("dp = 2", "dp = 4", "dp = 2"),
        ("max_steps = 5", "nodes_per_fsdp_group = 2", "nodes_per_fsdp_group = 1"),
        ("max_steps = 5", "dry_run = true", "kit submit --dry-run"),
    ],
)
def test_a_wrong_line_never_reaches_the_queue(project: Lab, old: str, new: str, said: str) -> None:
    (project.project / "examples/wrong.toml").write_text(DENSE.replace(old, new))
    done = project.kit("submit", "examples/wrong.toml", "--cluster", project.cluster.name, check=False)
    assert done.returncode == 3, done.stderr
    assert said in done.stderr
