"""Runs on the real cluster, in the real image: training, exit codes, what a rank sees, and what is left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kit import shell
from tests.cluster.lab import Lab

pytestmark = pytest.mark.cluster

SHAPES = ("torchrun", "srun")

# Each rank leaves what it sees; no framework is imported, so that a run takes a second.
LOOK = """
import json, os, pathlib, sys
run = pathlib.Path(os.environ["KIT_RUN_DIR"])
seen = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "uid": os.getuid(), "root": sorted(os.listdir("/")),
        "data": open("/data/hello").read() if os.path.exists("/data/hello") else None}
(run / f"seen-{os.environ['RANK']}.json").write_text(json.dumps(seen))
"""


@pytest.mark.parametrize("shape", SHAPES)
def test_ddp_on_two_nodes_in_the_container(lab: Lab, runtime: str, shape: str) -> None:
    if runtime == "bare" or (runtime == "enroot" and shape == "torchrun"):
        pytest.skip("torch is in the image only" if runtime == "bare" else "the srun shape covers enroot")
    lab.write('args = ["--epochs", "2"]\n')
    run = lab.run("--set", f"shape={shape}", "--set", f"container.runtime={runtime}")
    assert run.done.returncode == 0, run.log("batch") + run.log("task-0")
    records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    epochs = [r["train_loss"] for r in records if r["kind"] == "epoch"]
    final = records[-1]
    assert final["kind"] == "final"
    assert (final["world_size"], final["nodes"]) == (4, 2)
    assert epochs[-1] < epochs[0]
    assert (run.folder / "checkpoints" / "latest").exists()
    for rank in range(4):
        assert f"rank {rank} of 4: node rank {rank // 2}, local rank {rank % 2}" in run.log(f"rank-{rank}")
    assert lab.settled(run.folder) == []


@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_and_ports(lab: Lab, shape: str) -> None:
    lab.write('script = "program.py"\n', LOOK)
    run = lab.run("--set", f"shape={shape}")
    assert run.done.returncode == 0, run.log("batch")
    seen = [run.result(f"seen-{rank}.json") for rank in range(4)]
    for rank, one in enumerate(seen):
        env = one["env"]
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
        assert [env[n] for n in names] == [str(rank), "4", str(rank % 2), "2", str(rank // 2)]
        assert env["CUDA_VISIBLE_DEVICES"] == "0,1", "every rank sees its node's GPUs of this job"
    assert len({(one["env"]["MASTER_ADDR"], one["env"]["MASTER_PORT"], one["env"]["KIT_SEED"]) for one in seen}) == 1
    assert 20_000 <= int(seen[0]["env"]["MASTER_PORT"]) < 30_000


def test_ranks_meet_by_torchs_own_store(lab: Lab) -> None:
    lab.write('script = "program.py"\nrendezvous = "c10d"\n', LOOK)
    run = lab.run("--set", "shape=torchrun")
    assert run.done.returncode == 0, run.log("batch") + run.log("task-0")
    seen = [run.result(f"seen-{rank}.json") for rank in range(4)]
    assert {(one["env"]["RANK"], one["env"]["WORLD_SIZE"]) for one in seen} == {(str(rank), "4") for rank in range(4)}


def test_what_a_rank_sees_in_the_container(lab: Lab, runtime: str) -> None:
    if runtime == "bare":
        pytest.skip("there is no container")
    data = lab.project / "data"
    data.mkdir(exist_ok=True)
    (data / "hello").write_text("from the host")
    lab.write(
        'script = "program.py"\nshape = "srun"\nmounts = [{ source = "data", target = "/data", flags = ["ro"] }]\n'
        '[env]\nPATH_EXTRA = "x"\n',
        LOOK,
    )
    run = lab.run(
        "--set",
        f"container.runtime={runtime}",
        env={"SECRET_OF_THE_HOST": "leak", "SLURM_NTASKS": "99", "PYXIS_X": "1"},
    )
    assert run.done.returncode == 0, run.log("batch") + run.log("task-0")
    seen = run.result("seen-0.json")
    lock = (Path(__file__).parents[2] / "containers/train-cpu/image.lock").read_text()
    image_path = next(line for line in lock.splitlines() if line.startswith("PATH = ")).split('"')[1]
    assert seen["cwd"] == "/workspace"
    assert seen["data"] == "from the host"
    assert seen["uid"] == 0
    assert seen["env"]["PATH"] == image_path
    assert seen["env"]["PATH_EXTRA"] == "x"
    assert "SECRET_OF_THE_HOST" not in seen["env"]
    assert seen["env"]["WORLD_SIZE"] == "4"


NASTY = [
    "", " ", "a b", "it's", '"', "$HOME", "$(id)", "`id`", "\\", "\\n", "a\nb", "\ttab", "*", "?", "~", "!x", "#", ";", "&&",
    "|", ">x", "-", "--", "=", "{a,b}", "é€😀", "'\"'\"'", "\x01\x7f", "%j", "\r\n", "${IFS}", "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_any_text_arrives_byte_for_byte(lab: Lab, runtime: str, shape: str) -> None:
    """hypothesis tries the scripts themselves (tests/scripts); this is the whole way, through sbatch, srun and the container."""
    if runtime == "bare" and shape == "torchrun":
        pytest.skip("torch is in the image only")
    env = {f"NASTY_{i}": text for i, text in enumerate(NASTY)} | {"RANDOM": "5", "SECONDS": "x", "lower": "case"}
    lab.write("", LOOK)
    import tomli_w

    text = tomli_w.dumps({"name": "test", "launcher": "ddp", "script": "program.py", "args": NASTY, "env": env})
    (lab.project / "job.toml").write_text(text, encoding="utf-8")
    options = ["--no-container"] if runtime == "bare" else ["--set", f"container.runtime={runtime}"]
    run = lab.run(*options, "--set", f"shape={shape}", "--set", "python=/usr/bin/python3")
    assert run.done.returncode == 0, run.log("batch") + run.log("task-0")
    seen = run.result("seen-3.json")
    assert seen["argv"] == NASTY
    assert {name: seen["env"].get(name) for name in env} == env


# Under torchrun the kit reads every code from the same report of a rank; under srun it is a task's own.
@pytest.mark.parametrize(
    ("code", "shape"),
    [
        (1, "srun"),
        (7, "srun"),
        (255, "srun"),
        (7, "torchrun"),
        pytest.param(1, "torchrun", marks=pytest.mark.slow),
        pytest.param(255, "torchrun", marks=pytest.mark.slow),
    ],
)
def test_the_trainings_own_exit_code(lab: Lab, shape: str, code: int) -> None:
    lab.write(
        'script = "program.py"\n',
        f"import os, sys, time\nprint('this is', os.environ['RANK'], flush=True)\n"
        f"if os.environ['RANK'] == '2': sys.exit({code})\ntime.sleep(600)\n",
    )
    began = time.monotonic()
    run = lab.run("--set", f"shape={shape}")
    assert run.done.returncode == code
    assert f"rank 2 on node {lab.cluster.nodes[1].name} failed first, with exit code {code}" in run.log("batch")
    assert "  | this is 2" in run.log("batch"), "the end of its log is shown"
    assert time.monotonic() - began < 120, "the other ranks do not wait out their ten minutes"
    assert lab.settled(run.folder) == []


# A squeue that a busy controller answers late: `kit submit --wait` has read the run's record by then, and the job ends meanwhile.
BUSY_SQUEUE = """#!/bin/bash
# Questions of the batch script itself are answered at once.
if [[ -z "${{SLURM_JOB_ID:-}}" ]]; then
    for record in {runs}/*/state/events.jsonl; do
        [[ "${{record}}" -nt {began} ]] && grep -q '"start"' "${{record}}" && ! grep -q '"end"' "${{record}}" || continue
        touch "${{record%/state/*}}/asked"
        until grep -q '"end"' "${{record}}"; do sleep 0.1; done
        job="$(grep -oP '(?<="job_id": )[0-9]+' "${{record}}" | head -n 1)"
        while {squeue} --noheader --jobs="${{job}}" --states=PENDING,RUNNING,COMPLETING --format=%T | grep -q .; do sleep 0.1; done
    done
fi
exec {squeue} "$@"
"""


def test_a_run_that_ends_while_slurm_is_asked_has_its_own_code(lab: Lab, tmp_path: Path) -> None:
    """Its record, read before the answer, had no end: `--wait` said that the batch script was killed, and returned 1."""
    lab.write(
        'script = "program.py"\nshape = "srun"\npython = "/usr/bin/python3"\n[resources]\nnodes = 1\ngpus_per_node = 1\n',
        "import os, sys, time\nasked = os.environ['KIT_RUN_DIR'] + '/asked'\n"
        "while not os.path.exists(asked):\n    time.sleep(0.1)\nsys.exit(74)\n",
    )
    began, squeue = tmp_path / "began", tmp_path / "squeue"
    began.touch()
    squeue.write_text(BUSY_SQUEUE.format(runs=lab.project / "runs", began=began, squeue=shell.which("squeue")))
    squeue.chmod(0o755)
    run = lab.run("--no-container", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (run.folder / "asked").exists()
    assert run.done.returncode == 74, run.done.stderr
    assert "recorded no end" not in run.done.stderr


def test_killed_rank(lab: Lab, runtime: str) -> None:
    lab_options = ["--no-container"] if runtime == "bare" else ["--set", f"container.runtime={runtime}"]
    lab.write(
        'script = "program.py"\nshape = "srun"\npython = "/usr/bin/python3"\n',
        "import os, signal, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(600)\n",
    )
    run = lab.run(*lab_options)
    assert run.done.returncode == 137
    assert "rank 1 on node" in run.log("batch")
    assert lab.settled(run.folder) == []


def test_cancel_leaves_nothing(lab: Lab, runtime: str) -> None:
    options = ["--no-container"] if runtime == "bare" else ["--set", f"container.runtime={runtime}"]
    lab.write(
        'script = "program.py"\nshape = "srun"\npython = "/usr/bin/python3"\n',
        "import os, pathlib, time\npathlib.Path(os.environ['KIT_RUN_DIR'], 'up-' + os.environ['RANK']).touch()\ntime.sleep(600)\n",
    )
    run = lab.submit(*options)
    lab.wait(lambda: len(list(run.glob("up-*"))) == 4, run)
    assert lab.leftovers(run), "the check sees a run that is alive"
    lab.kit("cancel", run.name)
    lab.wait(lambda: status(lab, run)["state"] == "CANCELLED", run)
    lab.wait(lambda: not lab.leftovers(run), run)
    assert '"event": "end"' in (run / "state" / "events.jsonl").read_text()
    assert "ended already" in lab.kit("cancel", run.name).stderr


def test_the_monitor_is_a_step_of_its_own(lab: Lab, tmp_path: Path) -> None:
    """Its nvidia-smi never ends by itself, and ignores TERM."""
    stand_in_for_nvidia_smi(tmp_path, f"{GPUS}\n{ENDLESS}")
    lab.write(
        'script = "program.py"\nshape = "srun"\n[monitor]\nselect = "pu"\ndelay = 3\nheartbeat = 1\nquery = ["utilization.gpu"]\n',
        "import time\ntime.sleep(3)\n",
    )
    run = lab.run(env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert run.done.returncode == 0, run.log("batch")
    job = json.loads((run.folder / "manifest.json").read_text())["job_id"]
    for node in lab.cluster.nodes:
        text = (run.folder / "monitor" / f"slurm-{job}.{node.name}.gutil").read_text()
        assert text.startswith("#args dmon -s pu -d 3 -o DT")
        assert "line" in text
        table = (run.folder / "monitor" / f"slurm-{job}.{node.name}.csv").read_text()
        assert table.startswith("#args --query-gpu=timestamp,index,utilization.gpu --format=csv --loop=3")
    assert "still running" in run.log("batch")
    assert lab.settled(run.folder) == []


ENDLESS = """case "$1" in dmon | --query-gpu=timestamp*)
    trap "" TERM
    echo "#args $*"
    while true; do
        echo line
        sleep 0.2
    done
    ;;
esac"""
GPUS = 'case "$1" in --list-gpus) printf "GPU 0: x\\nGPU 1: x\\n";; esac'


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('case "$1" in --list-gpus) echo "GPU 0: x";; esac', "nvidia-smi lists 1 GPUs, 2 are wanted"),
        ('case "$1" in --list-gpus) exit 9;; esac', "a GPU or its driver is stuck"),
        (GPUS + '; case "$1" in *ecc.errors*) printf "0, 0\\n1, 3\\n";; esac', "GPU 1: uncorrected memory errors: 3"),
        (GPUS + '; case "$1" in *retired_pages*) printf "No\\nYes\\n";; esac', "1 GPUs have memory pages"),
    ],
)
def test_preflight_knows_a_sick_gpu(lab: Lab, tmp_path: Path, script: str, said: str) -> None:
    stand_in_for_nvidia_smi(tmp_path, script)
    lab.write('script = "program.py"\n', "pass\n")
    run = lab.run(env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert run.done.returncode == 72
    assert said in run.log("batch")


def stand_in_for_nvidia_smi(folder: Path, script: str) -> None:
    """A machine without GPUs has no nvidia-smi, and no machine has one that is sick on demand."""
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/bash\n{script}\n")
    tool.chmod(0o755)


def test_no_nvidia_smi_is_said_once(lab: Lab) -> None:
    lab.write('script = "program.py"\nshape = "srun"\n', "import time\ntime.sleep(1)\n")
    run = lab.run()
    said = [p.read_text().count("no nvidia-smi") for p in sorted((run.folder / "monitor").glob("*.log"))]
    assert said == [2]  # one file, and each of the two nodes once


def test_preflight_names_the_node(lab: Lab) -> None:
    lab.write('script = "program.py"\nmounts = [{ source = "/no/such/folder", target = "/data" }]\n', "pass\n")
    run = lab.run()
    assert run.done.returncode == 72
    for node in lab.cluster.nodes:
        assert f"{node.name}: mount source /no/such/folder does not exist here" in run.log("batch")
    assert not list((run.folder / "logs").glob("task-*.log")), "no rank was started"


@pytest.mark.parametrize("value", ["1", "on", "Yes", "TRUE"])
def test_debug_traces_and_keeps_secrets(lab: Lab, value: str) -> None:
    lab.write('script = "program.py"\nshape = "srun"\n[env]\nTOKEN = "canary-in-the-env"\n', LOOK)
    run = lab.run(env={"DEBUG": value})
    assert "+ batch.sh" in run.log("batch") or "+ slurm_script" in run.log("batch") or "+ steps.sh" in run.log("batch")
    env = run.result("seen-0.json")["env"]
    assert (env["NCCL_DEBUG"], env["CUDA_LAUNCH_BLOCKING"], env["TORCH_DISTRIBUTED_DEBUG"]) == ("INFO", "1", "INFO")
    assert not [p.name for p in (run.folder / "logs").iterdir() if "canary-in-the-env" in p.read_text()]


@pytest.mark.parametrize("value", ["0", "not", "21", ""])
def test_debug_is_off(lab: Lab, value: str) -> None:
    lab.write('script = "program.py"\nshape = "srun"\n', LOOK)
    run = lab.run(env={"DEBUG": value})
    assert "+ " not in run.log("batch")
    assert "TORCH_DISTRIBUTED_DEBUG" not in run.result("seen-0.json")["env"]


def test_runs_status_and_logs(lab: Lab) -> None:
    lab.write('script = "program.py"\nshape = "srun"\n', "import os\nprint('hello from', os.environ['RANK'])\n")
    run = lab.run("--follow")
    assert "rank-3 | hello from 3" in run.done.stdout
    facts = status(lab, run.folder)
    assert (facts["state"], facts["exit_code"], facts["world_sizes"]) == ("COMPLETED", 0, {"train": 4})
    assert facts["run"] in [r["run"] for r in json.loads(lab.kit("runs", "--json").stdout)]
    assert "rank-1 | hello from 1" in lab.kit("logs", run.folder.name).stdout
    only = lab.kit("logs", str(facts["job_id"]), "--rank", "2").stdout.splitlines()
    assert [line for line in only if "hello" in line] == ["rank-2 | hello from 2"]


def test_waiting_for_several_runs(lab: Lab) -> None:
    lab.write('script = "program.py"\nshape = "srun"\n', "import sys\nsys.exit(int(sys.argv[1]))\n")
    good, bad = lab.submit("--set", 'args=["0"]'), lab.submit("--set", 'args=["3"]')
    done = lab.kit("wait", good.name, bad.name, "--json", check=False)
    assert done.returncode == 3, done.stderr
    ended = {one["run"]: one for one in map(json.loads, done.stdout.splitlines()) if one["event"] == "ended"}
    assert {name: (one["state"], one["exit_code"]) for name, one in ended.items()} == {
        good.name: ("COMPLETED", 0),
        bad.name: ("FAILED", 3),
    }


def test_ctrl_c_leaves_the_run_and_says_how_to_come_back(lab: Lab) -> None:
    lab.write(
        'script = "program.py"\nshape = "srun"\npython = "/usr/bin/python3"\n',
        "import time\nprint('here I am', flush=True)\ntime.sleep(600)\n",
    )
    words = ["submit", "--cluster", lab.cluster.name, "--no-container", "--set", "resources.nodes=1", "--follow"]
    kit = subprocess.Popen(
        # Tests that run in a shell's background inherit an ignored SIGINT.
        ["env", "--default-signal=INT", sys.executable, "-m", "kit", *words],
        cwd=lab.project,
        env={**os.environ, **lab.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert kit.stdout is not None
    run = Path(kit.stdout.readline().strip())
    next(line for line in kit.stdout if "here I am" in line)
    kit.send_signal(signal.SIGINT)
    _, said = kit.communicate(timeout=30)
    assert kit.returncode == 130
    assert f"'kit logs -f {run.name}' shows it, 'kit cancel {run.name}' ends it" in said
    assert "Traceback" not in said
    assert status(lab, run)["state"] == "RUNNING"
    lab.kit("cancel", run.name)
    lab.wait_end(run)


def test_refused_by_sbatch_leaves_no_folder(lab: Lab) -> None:
    lab.write('script = "program.py"\n', "pass\n")
    before = set((lab.project / "runs").glob("*"))
    done = lab.kit("submit", "-c", lab.cluster.name, "--set", "slurm.partition=nowhere", check=False)
    assert done.returncode == 6
    assert "invalid partition" in done.stderr.lower()
    assert set((lab.project / "runs").glob("*")) == before


def test_an_image_that_is_not_the_locked_one_is_refused(lab: Lab, tmp_path: Path) -> None:
    lab.write('script = "program.py"\n', "pass\n")
    before = set((lab.project / "runs").glob("*"))
    name = f"{lab.cluster.name}-empty"
    text = (lab.project / "clusters" / f"{lab.cluster.name}.toml").read_text()
    store = next(line for line in text.splitlines() if line.startswith("store")).split('"')[1]
    (lab.project / "clusters" / f"{name}.toml").write_text(text.replace(store, str(tmp_path)))
    (lab.project / "xdg/kit/clusters" / name).symlink_to(lab.cluster.folder)
    done = lab.kit("submit", "-c", name, check=False)
    assert done.returncode == 5
    assert "kit build-image train-cpu" in done.stderr
    assert set((lab.project / "runs").glob("*")) == before


def test_typo_ends_with_the_config_code(lab: Lab) -> None:
    lab.write('scrpt = "program.py"\n', "")
    done = lab.kit("submit", "-c", lab.cluster.name, check=False)
    assert done.returncode == 3
    assert "job.toml: scrpt: " in done.stderr
    assert "did you mean 'script'?" in done.stderr
    assert "Traceback" not in done.stderr


def status(lab: Lab, run: Path) -> dict[str, object]:
    facts: dict[str, object] = json.loads(lab.kit("status", run.name, "--json").stdout)
    return facts


def test_the_check_for_leftovers_finds_one(lab: Lab) -> None:
    """The checks above would pass if `leftovers` saw nothing: show it a process."""
    name = lab.project / "runs" / "decoy-20260101-000000-abcd"
    pid = shell.daemon(["sleep", "30"], log=Path(os.devnull), env={"KIT_RUN_DIR": str(name)})
    try:
        assert len(lab.leftovers(name)) == 1
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_an_image_staged_to_the_nodes(lab: Lab, tmp_path: Path) -> None:
    cluster = lab.project / "clusters" / f"{lab.cluster.name}.toml"
    text = cluster.read_text()
    cluster.write_text(text.replace("[paths]", f'[paths]\ncache = "{tmp_path}"'))
    stage = tmp_path / "images"
    stage.mkdir()
    (stage / "old.sqsh").write_bytes(b"x" * 300_000_000)
    (stage / ".partial-of-a-killed-job").write_text("half")
    lab.write(
        'script = "program.py"\nshape = "srun"\nimage = { name = "train-cpu", stage = "node", cap_gb = 0.5 }\n', LOOK
    )
    try:
        run = lab.run("--set", "container.runtime=bubblewrap")
        assert run.done.returncode == 0, run.log("batch") + run.log("stage")
        (staged,) = stage.glob("*.sqsh")
        assert staged.stem in run.log("batch"), "the locked image, under its digest, and the old one is gone"
        assert not list(stage.glob(".partial*"))
        before = staged.stat().st_ino
        assert lab.run("--set", "container.runtime=bubblewrap").done.returncode == 0
        assert staged.stat().st_ino == before, "the second job finds it there"
        tiny = lab.run("--set", "container.runtime=bubblewrap", "--set", "image.cap_gb=0.001")
        assert tiny.done.returncode == 0, "what is staged already needs no room"
        staged.unlink()
        refused = lab.run("--set", "container.runtime=bubblewrap", "--set", "image.cap_gb=0.001")
        assert refused.done.returncode == 72
        assert "at most 1000 are kept here" in refused.log("batch")
    finally:
        cluster.write_text(text)
