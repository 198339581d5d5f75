"""`kit generate`: options to a job, and what TorchTitan would refuse."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from kit import shell
from kit.errors import ConfigError, KitError, UsageError
from kit.frameworks import torchtitan
from kit.planning.sbatch_header import header
from kit.submission.single_sbatch_file import Asked, single_file
from tests.support import REPO

CLUSTER = """
default_qos = "normal"
[node]
cpus = 8
gpus = 4
[qos.normal]
account = "research"
partition = "gpu"
time = "02:00:00"
max_nodes = 8
"""


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "here.toml").write_text(CLUSTER)
    monkeypatch.chdir(tmp_path)


# Lines of a file of four nodes with DDP, and of one of 16 nodes with 8 replica groups each. They only go down.
MOST_LINES_DDP, MOST_LINES_GROUPS = 5_935, 6_993


def made(titan: str = "", **options: Any) -> str:
    Path("Llama3_8B.toml").write_text(titan)
    asked = Asked(config_file=Path("Llama3_8B.toml"), **options)
    return single_file(asked, cluster="here", containers=False)


def embedded(text: str, name: str) -> str:
    """The text of a file that a single file holds."""
    return text.partition(f"{name} <<'KIT_FILE'\n")[2].partition("\nKIT_FILE\n")[0]


def job_arguments(text: str, program_file: str = "program.sh") -> list[str]:
    """What the program is started with, after its own path."""
    program = embedded(text, program_file).partition("KIT_PROGRAM=(")[2].partition("\n)\n")[0]
    return [line.strip() for line in program.splitlines()][3:]


def test_the_options_are_in_the_header(tmp_path: Path) -> None:
    text = made(use_ddp=True, nodes=4, gpus_per_node=2, time="30", mail_user="a@b.org", job_name="x", error="e/%j.err")
    assert header(text)[:7] == [
        "--job-name=x",
        "--account=research",
        "--partition=gpu",
        "--qos=normal",
        "--nodes=4",
        "--ntasks-per-node=1",
        "--cpus-per-task=4",
    ]
    assert {"--time=30", "--gpus-per-node=2", "--mail-user=a@b.org", "--mail-type=BEGIN,END,FAIL"} <= set(header(text))
    assert f"--output={tmp_path}/slurm-%j.out" in header(text), "as Slurm does when nobody says where"
    assert f"--error={tmp_path}/e/%j.err" in header(text)
    assert header(made(use_ddp=True))[0] == "--job-name=llama3-8b"


def test_the_configuration_travels_in_the_file() -> None:
    text = made("[training]\nseed = 9\n[job]\ndescription = 'KIT_FILE @JOB@'", use_ddp=True)
    assert "KIT_FILE_" in text, "a here-document ends with a line that is in none of the files"
    assert "readonly KIT_MARK=@JOB1@" in text, "so does the job's number stand for a word that is in none"
    assert embedded(made("[training]\nseed = 9\n", use_ddp=True), "config.toml") == "[training]\nseed = 9"
    assert "export KIT_SEED=9" in embedded(made("[training]\nseed = 9\n", use_ddp=True), "worker.sh")
    assert "export KIT_SEED=8" in embedded(made("[debug]\nseed = 8\n", use_ddp=True), "worker.sh"), "since v0.2.1"


def test_a_manifest_makes_it_a_run_of_the_kit() -> None:
    record = json.loads(embedded(made(use_ddp=True, nodes=2), "manifest.json"))
    assert (record["run_id"], record["job_id"], record["world_sizes"]) == ("llama3-8b-@JOB@", None, {"train": 8})


def test_ddp_copies_the_model_on_every_rank_and_extra_arguments_win() -> None:
    titan = "[parallelism]\ncontext_parallel_degree = 2\n"
    extra = "--training.steps 5 --job.description 'a  \"b\"'"
    assert job_arguments(made(titan, use_ddp=True, nodes=2, extra_args=extra)) == [
        "--parallelism.data_parallel_replicate_degree=4",
        "--parallelism.data_parallel_shard_degree=1",
        "--training.steps",
        "5",
        "--job.description",
        "'a  \"b\"'",
    ]


@pytest.mark.parametrize(
    ("options", "quorum"),
    [
        ({"nodes": 1, "replicas_per_node": 1}, 1),
        ({"nodes": 1, "replicas_per_node": 2}, 2),
        ({"nodes": 4, "nodes_per_replica": 2}, 2),
    ],
)
def test_groups_are_told_what_a_quorum_needs(options: dict[str, Any], quorum: int) -> None:
    assert job_arguments(made(**options), "roles/replica-0/program.sh") == [
        f"--fault_tolerance.min_replica_size={quorum}"
    ]


@pytest.mark.parametrize(
    ("options", "titan", "said"),
    [
        ({"replicas_per_node": 3}, "", "kit generate: --num-ft-replicas-per-node: 3 groups cannot share"),
        (
            {"nodes": 3, "nodes_per_replica": 2},
            "",
            "--nodes-per-replica: 3 nodes cannot be split into groups of 2\n  try: --nodes-per-replica 1",
        ),
        ({"nodes": 9}, "", "--nodes: 9 is more than QOS 'normal' allows: max_nodes = 8"),
        ({"gpus_per_node": 5}, "", "--gpus-per-node: 5 is more than a node of here has: 4 GPUs"),
        ({"time": "3:00:00"}, "", "--time: 3:00:00 is more than QOS 'normal' allows"),
        ({"qos": "hihg"}, "", "--qos: the cluster's QOS table has no row 'hihg'; allowed: normal\n  try: --qos normal"),
        ({"output": "logs/%q.out"}, "", "--output: %q is not a pattern of Slurm's"),
        ({"job_name": "a b"}, "", "--job-name: 'a b' is not a name"),
        (
            {"use_ddp": True},
            "[parallelism]\ntensor_parallel_degree = 3\n",
            "Llama3_8B.toml: parallelism: data_parallel_shard 1 x tensor_parallel 3 is not 4",
        ),
        (
            {"use_ddp": True},
            "[training]\nglobal_batch_size = 12\n",
            "12 is not a multiple of training.local_batch_size 8 x 4",
        ),
        ({"replicas_per_node": 2}, "[training]\nglobal_batch_size = 16\n", "copies of the model = 32"),
        (
            {"use_ddp": True},
            "[parallelism]\ntensor_parallel_degree = 2\n",
            "with HSDP (sharded copies) it can\n  try: --extra-args "
            '"--parallelism.data_parallel_replicate_degree=1 --parallelism.data_parallel_shard_degree=2"',
        ),
        (
            {"replicas_per_node": 4},
            "",
            "fault_tolerance.semi_sync_method: TorchTitan averages the gradients of replica groups in FSDP's hooks",
        ),
        (
            {},
            "[training]\nstepz = 1000\n",
            "training.stepz: no release of torchtitan that is known has an option",
        ),
        ({"extra_args": "--training.stps 3"}, "", "did you mean '--training.steps'?"),
        (
            {"extra_args": "--training.debug-moe-force-load-balanse"},
            "",
            "--training.debug-moe-force-load-balanse; did you mean '--training.debug_moe_force_load_balance'?",
        ),
        (
            {"extra_args": "--parallelism.tensor-parallel-degree 3"},
            "",
            "tensor_parallel 3 is not 4, the number of ranks of the training",
        ),
        ({"extra_args": "--a 'b"}, "", "No closing quotation"),
        ({}, "[training\n", "not valid TOML"),
    ],
)
def test_what_is_refused(options: dict[str, Any], titan: str, said: str) -> None:
    with pytest.raises(KitError) as caught:
        made(titan, **options)
    assert isinstance(caught.value, ConfigError | UsageError)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("titan", "extra"),
    [
        ('[fault_tolerance]\nsemi_sync_method = "diloco"\n', ""),
        ("", "--fault_tolerance.semi-sync-method=local_sgd"),
    ],
)
def test_groups_of_one_rank_average_in_steps(titan: str, extra: str) -> None:
    """Without, there is neither an FSDP whose hook averages nor an outer step: as many trainings as groups, and no error."""
    assert made(titan, replicas_per_node=4, extra_args=extra)


def test_tables_in_tables_are_read_to_the_end() -> None:
    """Every configuration for 405B has one."""
    assert made("[quantize.linear.float8]\nfilter_fqns = []\n", use_ddp=True)
    with pytest.raises(ConfigError, match=r"quantize.linear.float8.filter_fqn: .*did you mean"):
        made("[quantize.linear.float8]\nfilter_fqn = []\n", use_ddp=True)


def test_a_module_of_ones_own_may_bring_options() -> None:
    module = '[job]\ncustom_config_module = "mine.config"\n'
    assert made(f"{module}[mine]\nwidth = 3\n", use_ddp=True, extra_args="--mine.depth 4")
    with pytest.raises(ConfigError, match=r"did you mean 'training.steps'"):
        made(f"{module}[training]\nstep = 3\n", use_ddp=True)
    with pytest.raises(ConfigError, match=r"mine.width: no release of torchtitan"):
        made("[mine]\nwidth = 3\n", use_ddp=True)


def test_how_groups_average_is_said_in_titans_own_file() -> None:
    Path("x.toml").write_text("")
    with pytest.raises(ConfigError, match=r"(?s)diloco.sync_every: .*\[fault_tolerance\]"):
        single_file(
            Asked(config_file=Path("x.toml"), replicas_per_node=2),
            cluster="here",
            containers=False,
            overrides=["diloco.sync_every=8"],
        )


@pytest.mark.parametrize(
    ("config", "words", "ranks", "groups", "keys"),
    [
        ({}, [], 8, 1, []),
        ({"parallelism": {"tensor_parallel_degree": 4}}, ["--parallelism.pipeline_parallel_degree=2"], 8, 1, []),
        (
            {"parallelism": {"tensor_parallel_degree": 4}},
            ["--parallelism.pipeline_parallel_degree", "4"],
            8,
            1,
            ["parallelism"],
        ),
        ({"parallelism": {"data_parallel_shard_degree": 4}}, [], 8, 1, ["parallelism"]),
        ({"parallelism": {"data_parallel_shard_degree": 4}}, [f"--{torchtitan.REPLICATE}=2"], 8, 1, []),
        ({"training": {"global_batch_size": 128}}, [], 8, 2, []),
        ({"training": {"global_batch_size": 64}}, [], 8, 2, ["training.global_batch_size"]),
        ({"training": {"global_batch_size": "all"}, "parallelism": 3}, [], 8, 2, []),
    ],
)
def test_rules_of_titan(config: dict[str, Any], words: list[str], ranks: int, groups: int, keys: list[str]) -> None:
    assert [fault.key for fault in torchtitan.broken(config, words, ranks=ranks, count=groups)] == keys


def test_the_command_writes_the_file_and_makes_the_log_folder(tmp_path: Path) -> None:
    Path("x.toml").write_text("")
    argv = ["generate", "--config-file", "x.toml", "--use-ddp", "--no-container", "--cluster", "here"]
    argv += ["--output", "logs/%x/%j.out", "--output-file", "job.sh"]
    done = shell.run([sys.executable, "-m", "kit", *argv], env={**os.environ, "PYTHONPATH": str(REPO)})
    assert done.stdout == "job.sh"
    assert (tmp_path / "logs" / "x").is_dir(), "slurmd makes none"
    assert os.access("job.sh", os.X_OK)
    assert shell.run(["bash", "-n", "job.sh"], check=False).returncode == 0


def test_without_an_output_file_it_goes_to_stdout(tmp_path: Path) -> None:
    Path("x.toml").write_text("")
    argv = ["generate", "--config-file", "x.toml", "--nodes", "2", "--no-container", "--cluster", "here"]
    done = shell.run([sys.executable, "-m", "kit", *argv], env={**os.environ, "PYTHONPATH": str(REPO)})
    assert done.stdout.startswith("#!/bin/bash\n# unpack ")
    assert header(done.stdout)[0] == "--job-name=x"
    assert {path.name for path in tmp_path.iterdir()} == {".git", "clusters", "x.toml"}


def test_a_file_has_what_its_job_uses(tmp_path: Path) -> None:
    """Not the whole library of the launchers."""
    (tmp_path / "clusters" / "here.toml").write_text(CLUSTER.replace("gpus = 4", "gpus = 8").replace("= 8\n", "= 16\n"))
    ddp = made(use_ddp=True, nodes=4)
    groups = made("[fault_tolerance]\nsemi_sync_method = 'diloco'\n", nodes=16, gpus_per_node=8, replicas_per_node=8)
    assert set(re.findall(r"^    unpack \d+ (code/\S+)", ddp, re.MULTILINE)) == {
        f"code/{name}" for name in ("run.py", "on_cpus.py", "lib/__init__.py", "lib/device.py")
    }
    assert ddp.count("\n") <= MOST_LINES_DDP
    assert groups.count("\n") <= MOST_LINES_GROUPS


def test_the_first_ten_lines_say_what_happens_phase_by_phase() -> None:
    text = made(use_ddp=True, nodes=2)
    head = text.splitlines()[:10]
    names = [line.split()[1] for line in head[1:] if not line.startswith("#SBATCH")]
    assert names == ["unpack", "check", "monitor", "ranks", "signal", "end"]
    assert "7 s before the time limit the ranks get TERM, to save" in made_with("slurm.signal=TERM@7")
    assert "get USR1 (or TERM, if they do not catch that), to save" in text
    off = made_with("preflight.enabled=false", "monitor.enabled=false", "retry.in_allocation=2", "retry.requeue=1")
    names = [line.split()[1] for line in off.splitlines()[1:10] if not line.startswith("#SBATCH")]
    assert names == ["unpack", "ranks", "signal", "retry", "end"]
    assert "2 times in the allocation, 1 by requeue" in off


def made_with(*overrides: str) -> str:
    Path("x.toml").write_text("")
    asked = Asked(config_file=Path("x.toml"), use_ddp=True)
    return single_file(asked, cluster="here", containers=False, overrides=overrides)


def test_what_runs_stands_before_the_functions_and_these_before_the_records() -> None:
    text = made(use_ddp=True, nodes=2)
    assert text.index("\nmain() {") < text.index("unpack 755 batch.sh")
    order = [name.partition("/")[0] for name in re.findall(r"^    unpack \d+ (\S+) <<", text, re.MULTILINE)]
    assert order[0] == "batch.sh"
    assert order.index("program.sh") < order.index("bin") < order.index("lib") < order.index("job.toml")
    assert order[-1] == "manifest.json"
