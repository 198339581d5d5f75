"""worker.sh and rank.sh as Slurm starts them, without a Slurm: what a rank finds in its environment and on its command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit import shell
from kit.submission import folder
from tests.support import make_site, plan_of, write_job

JOB = 'name = "x"\nlauncher = "ddp"\nscript = "look.py"\n[resources]\nnodes = 2\ngpus_per_node = 2\n'
LOOK = "import json, os, sys\njson.dump([sys.argv[1:], dict(os.environ), os.getcwd()], open('{out}', 'w'))\n"
# Task 2 of four over two nodes, cyclic: the second task of the first node.
TASK = {
    "SLURM_JOB_ID": "77",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "KIT_MASTER_ADDR": "10.0.0.1",
    "KIT_MASTER_PORT": "20077",
    "KIT_RESTART_COUNT": "3",
    "KIT_DEBUG": "0",
}


def run_folder(at: Path, job: str, *overrides: str, cluster: str = "pod") -> Path:
    """A run folder without a container, as a submit would write it."""
    job_file = write_job(at / "job", job)
    (at / "job" / "look.py").write_text(LOOK.format(out=at / "seen.json"))
    made = plan_of(
        job_file,
        cluster=cluster,
        overrides=(f"python={sys.executable}", *overrides),
        site=make_site(run_dir=at / "run", containers=False),
    )
    folder.write_files(made, at / "run")
    (at / "run" / "logs").mkdir(exist_ok=True)
    (at / "run" / "state").mkdir(exist_ok=True)
    return at / "run"


def rank(
    at: Path, job: str = JOB, *overrides: str, cluster: str = "pod", **more: str
) -> tuple[list[str], dict[str, str], str]:
    """Arguments, environment and working folder of the program on one rank, started by srun."""
    run = run_folder(at, job, "shape=srun", *overrides, cluster=cluster)
    done = shell.run([str(run / "worker.sh")], env={"PATH": os.environ["PATH"], **TASK, **more}, check=False)
    log = run / "logs" / f"rank-{TASK['SLURM_PROCID']}.log"
    assert done.returncode == 0, done.stderr + (log.read_text() if log.exists() else "")
    argv, env, cwd = json.loads((at / "seen.json").read_text())
    return argv, env, cwd


def test_ranks_are_slurms_own_whatever_the_distribution(tmp_path: Path) -> None:
    """Node rank x ranks a node + local rank would be 1 here."""
    _, env, _ = rank(tmp_path)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "KIT_NNODES", "KIT_RANKS_PER_NODE")
    assert [env[name] for name in names] == ["2", "4", "1", "2", "0", "2", "2"]
    assert env["KIT_WORLD_SIZE"] == "4"
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("10.0.0.1", "20077")


def test_what_a_rank_has_without_asking(tmp_path: Path) -> None:
    _, env, cwd = rank(tmp_path)
    assert env["OMP_NUM_THREADS"] == "16", "2 of 8 GPUs have 32 of 128 CPUs, a rank half of them"
    assert (env["PYTHONFAULTHANDLER"], env["PYTHONUNBUFFERED"], env["PYTHONNOUSERSITE"]) == ("1", "1", "1")
    assert (env["KIT_SEED"], env["KIT_RUN_DIR"]) == ("1234", str(tmp_path / "run"))
    assert env["KIT_CHECKPOINT_DIR"] == str(tmp_path / "run" / "checkpoints")
    assert env["NCCL_DEBUG"] == "WARN", "the cluster's"
    assert not {"CUDA_LAUNCH_BLOCKING", "TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG_SUBSYS"} & set(env)
    assert cwd == str(tmp_path / "job")


def test_a_debugged_rank_talks(tmp_path: Path) -> None:
    _, env, _ = rank(tmp_path, JOB, "debug=true", KIT_DEBUG="1")
    assert (env["NCCL_DEBUG"], env["CUDA_LAUNCH_BLOCKING"], env["TORCH_DISTRIBUTED_DEBUG"]) == ("INFO", "1", "INFO")
    assert env["NCCL_DEBUG_SUBSYS"] == "INIT,ENV,NET"


def test_what_the_job_says_wins_over_debugging(tmp_path: Path) -> None:
    said = {"NCCL_DEBUG": "TRACE", "CUDA_LAUNCH_BLOCKING": "0", "NCCL_DEBUG_SUBSYS": "ALL"}
    _, env, _ = rank(tmp_path, JOB, "debug=true", *(f"env.{k}={v}" for k, v in said.items()), KIT_DEBUG="1")
    assert {name: env[name] for name in said} == said


def test_set_up_lines_come_before_the_program(tmp_path: Path) -> None:
    """A virtual environment, a module or a folder to go to; a line that may fail is marked, and reads unset variables."""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "activate").write_text(f"VIRTUAL_ENV={tmp_path}/venv\nexport VIRTUAL_ENV\nfalse\ntrue\n")
    lines = [
        f"source {tmp_path}/venv/activate",
        f"cd {tmp_path}/venv",
        "export PROJECT='a b' LEFT_OUT=$NOT_SET",
        "false || true",
    ]
    _, env, cwd = rank(tmp_path, f"setup = {json.dumps(lines)}\n" + JOB, "env.PROJECT=the job's own")
    assert env["VIRTUAL_ENV"] == cwd == str(tmp_path / "venv")
    assert env["PROJECT"] == "the job's own"


def test_set_up_lines_of_a_shell_may_read_variables_that_are_not_set(tmp_path: Path) -> None:
    """As conda's and module's scripts do; with `set -u`, `kit shell` ended before its first prompt."""
    run = run_folder(tmp_path, f"setup = ['export SEEN=${{NOT_SET}}seen']\n{JOB}")
    done = subprocess.run(
        [run / "bin/shell.sh", tmp_path, ""],
        input="echo got=$SEEN\n",
        env={"PATH": os.environ["PATH"], "KIT_SHELL_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        # It hangs up its process group at its end.
        start_new_session=True,
    )
    assert "got=seen" in done.stdout, done.stderr
    assert "unbound variable" not in done.stderr


def test_a20_set_up_comes_before_the_launcher_is_looked_for(tmp_path: Path) -> None:
    """`source VENV/bin/activate` brings torchrun along."""
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "torchrun").write_text("#!/bin/bash\necho from the environment, with $TOKEN\n")
    (tmp_path / "venv" / "torchrun").chmod(0o755)
    lines = json.dumps([f"PATH={tmp_path}/venv:$PATH", "export TOKEN=a"])
    run = run_folder(tmp_path, f"setup = {lines}\n" + JOB, "shape=torchrun")
    task = {**TASK, "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
    said = shell.run([str(run / "worker.sh")], env={"PATH": "/usr/bin:/bin", **task}).stdout
    assert said == "from the environment, with a"


@pytest.mark.parametrize("shape", ["srun", "torchrun"])
def test_a21_the_first_set_up_line_that_fails_ends_the_rank(tmp_path: Path, shape: str) -> None:
    lines = [
        "module load nothing || true",
        "if true; then",
        "  cat <<END >/dev/null",
        "a",
        "END",
        "fi",
        "source /nope",
        "touch later",
    ]
    run = run_folder(tmp_path, f"setup = {json.dumps(lines)}\n" + JOB, f"shape={shape}")
    (run / "state" / "failures").mkdir()
    task = {**TASK, "SLURM_PROCID": "1", "KIT_FAILURES": "failures"}
    done = shell.run([str(run / "worker.sh")], env={"PATH": os.environ["PATH"], **task}, check=False)
    assert done.returncode == 73
    assert "set-up line 7 failed with exit code 1: source /nope" in done.stderr
    first = "1" if shape == "srun" else "2"
    assert "source /nope" in (run / "logs" / f"rank-{first}.log").read_text()
    assert (run / "state" / "failures" / f"rank-{first}.73").exists()
    assert not list(tmp_path.rglob("later"))


def test_the_efa_cluster_names_where_its_libraries_are(tmp_path: Path) -> None:
    """Behind what the image has in its own path."""
    _, env, _ = rank(tmp_path, cluster="aws-efa", LD_LIBRARY_PATH="/image/lib")
    first, *rest = env["LD_LIBRARY_PATH"].split(":")
    assert first == "/image/lib"
    assert rest[:2] == ["/opt/amazon/efa/lib", "/opt/amazon/ofi-nccl/lib"]
    assert (env["FI_PROVIDER"], env["FI_EFA_USE_DEVICE_RDMA"], env["NCCL_IB_DISABLE"]) == ("efa", "1", "1")


def test_variables_of_the_rank_as_arguments(tmp_path: Path) -> None:
    job = 'args = ["--x", "{self.rank}"]\nrank_args = { --local_rank = "LOCAL_RANK", --nodes = "KIT_NNODES" }\n' + JOB
    argv, _, _ = rank(tmp_path, job)
    assert argv == ["--x", "{self.rank}", "--local_rank", "1", "--nodes", "2"]


@pytest.mark.parametrize(
    ("rendezvous", "words"),
    [
        ("static", ["--node-rank=1", "--master-addr=10.0.0.1", "--master-port=20077"]),
        (
            "c10d",
            ["--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:20077", "--rdzv-id=77.3", "--rdzv-conf=is_host=0"],
        ),
    ],
)
def test_torchrun_is_told_who_is_who(tmp_path: Path, rendezvous: str, words: list[str]) -> None:
    said = torchrun(tmp_path, "torchrun", f"rendezvous={rendezvous}")
    assert said[:3] == ["--nnodes=2", "--nproc-per-node=2", "--max-restarts=0"]
    assert said[3 : 3 + len(words)] == words
    assert said[-1] == str(tmp_path / "run" / "bin" / "rank.sh")


def test_without_torchrun_its_module_is_started(tmp_path: Path) -> None:
    said = torchrun(tmp_path, "python9", f"python={tmp_path}/bin/python9")
    assert said[:3] == ["-m", "torch.distributed.run", "--nnodes=2"]


def torchrun(at: Path, program: str, *overrides: str) -> list[str]:
    """The words that a stand-in gets on the second node; no other torchrun is found."""
    run = run_folder(at, JOB, "shape=torchrun", *overrides)
    (at / "bin").mkdir()
    (at / "bin" / program).write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (at / "bin" / program).chmod(0o755)
    task = {**TASK, "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}
    path = ":".join(p for p in ["/usr/bin", "/bin"] if not (Path(p) / "torchrun").exists())
    return shell.run([str(run / "worker.sh")], env={"PATH": f"{at}/bin:{path}", **task}).stdout.splitlines()


def test_a_warm_rank_has_the_environment_of_a_plain_one(tmp_path: Path) -> None:
    """The set-up lines and the variables of the job hold for both processes. The numbers of processes differ."""
    lines = json.dumps(["export PROJECT='a b'"])
    job = f'setup = {lines}\n{JOB}[env]\nOWN = "x"\n[retry]\nwarm = ["xml.dom.minidom"]\n'
    plain = rank(tmp_path, job)
    run = tmp_path / "run"
    (tmp_path / "job" / "look.py").write_text(
        f"import sys\nassert 'xml.dom.minidom' in sys.modules\n{LOOK.format(out=tmp_path / 'seen.json')}"
    )
    env = {"PATH": os.environ["PATH"], **TASK, "SLURM_JOB_ID": f"77{os.getpid()}"}
    with (run / "logs" / "warm.log").open("w") as log:
        server = subprocess.Popen([run / "worker.sh"], env={**env, "KIT_WARM_SERVER": "1"}, stderr=log)
        try:
            done = shell.run([str(run / "worker.sh")], env={**env, "KIT_WARM_WAIT": "60"}, check=False)
        finally:
            server.terminate()
            ended = server.wait(60)
    assert (done.returncode, ended) == (0, 0), (run / "logs" / "rank-2.log").read_text() + (
        run / "logs" / "warm.log"
    ).read_text()
    argv, seen, cwd = json.loads((tmp_path / "seen.json").read_text())
    differ = {"SLURM_JOB_ID", "KIT_WARM_WAIT", "KIT_RANK_SHELL", "KIT_SLURMSTEPD", "KIT_WORKER_BEGAN", "_", "SHLVL"}
    kept = {name: value for name, value in seen.items() if name not in differ}
    assert (argv, kept, cwd) == (plain[0], {n: v for n, v in plain[1].items() if n not in differ}, plain[2])
    assert seen["PROJECT"] == "a b"


def test_a_rank_may_open_as_many_files_as_the_node_allows(tmp_path: Path) -> None:
    """Each process group of gloo connects a rank to all others: Linux's soft limit of 1,024 files ended a world of 335 ranks."""
    run = run_folder(tmp_path, f'setup = ["true"]\n{JOB.replace("look.py", "limit.py")}', "shape=srun")
    (tmp_path / "job" / "limit.py").write_text(
        f"import resource\nopen({str(tmp_path / 'seen')!r}, 'w').write(repr(resource.getrlimit(resource.RLIMIT_NOFILE)))\n"
    )
    words = ["bash", "-c", 'ulimit -Sn 300; ulimit -Hn 900; exec "$0"', str(run / "worker.sh")]
    done = shell.run(words, env={"PATH": os.environ["PATH"], **TASK}, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text() == "(900, 900)"
    (run / "setup.sh").write_text("ulimit -Sn 256\n")
    assert shell.run(words, env={"PATH": os.environ["PATH"], **TASK}, check=False).returncode == 0
    assert (tmp_path / "seen").read_text() == "(256, 900)", "set-up lines win"
