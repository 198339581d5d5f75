"""rank_variables.sh, role_gpus.sh: Slurm's variables become the frameworks', and a role's GPUs are chosen."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out

LIB = laid_out.LIB / "rank_variables.sh"
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_JOB_ID": "77"}
KIT = {
    "KIT_MASTER_ADDR": "n1",
    "KIT_MASTER_PORT": "29500",
    "KIT_RANKS_PER_NODE": "2",
    "KIT_PYTHON": "/py",
    "KIT_NNODES": "4",
}


def bash(script: str, **env: str) -> list[str]:
    """What the script says, a line each."""
    sources = "\n".join(f"source {LIB.with_name(name)}" for name in ("clock.sh", LIB.name, "role_gpus.sh"))
    text = f'set -euo pipefail\nlog::error() {{ echo "error: $*"; }}\n{sources}\n{script}\n'
    return shell.run(["bash", "-c", text], env={"PATH": os.environ["PATH"], **env}, check=False).stdout.splitlines()


@pytest.mark.parametrize("missing", ["SLURM_PROCID", "KIT_MASTER_ADDR"])
def test_outside_of_a_task_it_ends_with_2(missing: str) -> None:
    env = {**SLURM, **KIT}
    del env[missing]
    said = bash("(rank_variables::require_slurm) || echo code $?", **env)
    assert said == ["error: this script runs as a Slurm task, started by batch.sh", "code 2"]


def test_a_rank_is_told_when_its_container_was_there() -> None:
    """Seconds since 1970, with a point in any locale."""
    (began,) = bash("rank_variables::require_slurm; bash -c 'echo \"${KIT_WORKER_BEGAN}\"'", **SLURM, **KIT)
    assert abs(float(began) - time.time()) < 60


def test_a_rank_has_a_flight_recorder_of_the_size_that_the_job_says() -> None:
    script = "rank_variables::require_slurm; bash -c 'echo \"${TORCH_FR_BUFFER_SIZE}\"'"
    assert bash(script, **SLURM, **KIT) == ["2000"]
    assert bash(script, **SLURM, **KIT, TORCH_FR_BUFFER_SIZE="50") == ["50"]


def test_a_rank_has_slurms_numbers() -> None:
    script = "rank_variables::require_slurm; rank_variables::from_slurm\nenv | grep -E '^(MASTER_|RANK|WORLD|LOCAL|NODE_)' | sort"
    assert bash(script, **SLURM, **KIT) == [
        "LOCAL_RANK=1",
        "LOCAL_WORLD_SIZE=2",
        "MASTER_ADDR=n1",
        "MASTER_PORT=29500",
        "NODE_RANK=2",
        "RANK=5",
        "WORLD_SIZE=8",
    ]


def test_torchrun_gets_the_node_alone() -> None:
    left = {"RANK": "9", "WORLD_SIZE": "9", "LOCAL_RANK": "9", "LOCAL_WORLD_SIZE": "9", "GROUP_RANK": "9"}
    script = "rank_variables::node_from_slurm\nenv | grep -E 'RANK|WORLD' | grep -v ^KIT_"
    assert bash(script, **SLURM, **KIT, **left) == ["NODE_RANK=2"]


@pytest.mark.parametrize(
    ("rendezvous", "node", "last"),
    [
        ("static", "2", ["--node-rank=2", "--master-addr=n1", "--master-port=29500"]),
        ("c10d", "0", ["--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500", "--rdzv-id=77.3", "--rdzv-conf=is_host=1"]),
        ("c10d", "2", ["--rdzv-backend=c10d", "--rdzv-endpoint=n1:29500", "--rdzv-id=77.3", "--rdzv-conf=is_host=0"]),
    ],
)
def test_torchruns_words(rendezvous: str, node: str, last: list[str]) -> None:
    head = f"KIT_TORCHRUN_OPTIONS=(--tee 3) KIT_RENDEZVOUS={rendezvous} KIT_MAX_RESTARTS=0 KIT_RESTART_COUNT=3"
    own = {**SLURM, **KIT, "SLURM_NODEID": node}
    script = f"{head}\nrank_variables::require_slurm\nrank_variables::torchrun_argv\nprintf '%s\\n' \"${{KIT_TORCHRUN_ARGV[@]}}\""
    words = ["--nnodes=4", "--nproc-per-node=2", "--max-restarts=0", "--tee", "3", *last]
    # The image may have torchrun, or the module alone.
    assert bash(f"torchrun() {{ :; }}\n{script}", **own) == ["torchrun", *words]
    assert bash(f"command() {{ return 1; }}\n{script}", **own) == ["/py", "-m", "torch.distributed.run", *words]


@pytest.mark.parametrize(
    ("rendezvous", "restarts", "own", "seen"),
    [
        ("c10d", 0, {}, ""),
        ("c10d", 2, {}, "1"),
        ("static", 2, {}, ""),
        ("c10d", 2, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}, "0"),
    ],
)
def test_each_start_by_torchrun_has_its_own_store(
    rendezvous: str, restarts: int, own: dict[str, str], seen: str
) -> None:
    head = f"KIT_TORCHRUN_OPTIONS=() KIT_RENDEZVOUS={rendezvous} KIT_MAX_RESTARTS={restarts} KIT_RESTART_COUNT=3"
    script = (
        f"torchrun() {{ :; }}\n{head}\nrank_variables::require_slurm\nrank_variables::torchrun_argv\n"
        "bash -c 'echo \"<${TORCH_DISABLE_SHARE_RDZV_TCP_STORE:-}>\"'"
    )
    assert bash(script, **SLURM, **KIT, **own) == [f"<{seen}>"]


def visible(wanted: str, given: dict[str, str], *, amd: bool = False) -> list[str]:
    """The variables of a role that name its GPUs."""
    device = "/proc" if amd else "/nowhere"
    script = f"role_gpus_amd={device}\nrole_gpus::choose '{wanted}'\nenv | grep -E 'VISIBLE|ORDINAL|AFFINITY' | sort"
    return bash(script, **given)


@pytest.mark.parametrize(
    ("wanted", "given", "seen"),
    [("0,2", "4,5,6,7", "4,6"), ("1", "GPU-a,GPU-b", "GPU-b"), ("", "4,5", "4,5")],
)
def test_a_role_sees_its_own_gpus_of_those_that_slurm_gave(wanted: str, given: str, seen: str) -> None:
    names = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
    assert visible(wanted, dict.fromkeys(names, given)) == [f"{name}={seen}" for name in names]
    # On AMD, Slurm may set this one alone.
    assert visible(wanted, {"ROCR_VISIBLE_DEVICES": given}, amd=True) == [f"ROCR_VISIBLE_DEVICES={seen}"]


def test_a_role_has_its_gpus_where_slurm_names_none() -> None:
    """Both roles had GPU 0, silently."""
    assert visible("1,3", {}) == ["CUDA_VISIBLE_DEVICES=1,3", "ZE_AFFINITY_MASK=1,3"]
    assert visible("1,3", {}, amd=True) == ["ROCR_VISIBLE_DEVICES=1,3"]
    assert visible("", {}) == []


def test_a_role_without_gpus_sees_none() -> None:
    assert visible("none", {"CUDA_VISIBLE_DEVICES": "4,5"}) == ["CUDA_VISIBLE_DEVICES=", "ZE_AFFINITY_MASK="]


def test_hip_counts_in_what_rocr_has_left() -> None:
    given = {"CUDA_VISIBLE_DEVICES": "2,3", "ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "2,3"}
    assert visible("1", given, amd=True) == [
        "CUDA_VISIBLE_DEVICES=0",
        "HIP_VISIBLE_DEVICES=0",
        "ROCR_VISIBLE_DEVICES=3",
    ]


def test_a_gpu_that_slurm_did_not_give_ends_the_role() -> None:
    script = "(role_gpus::choose 0,2) || echo code $?"
    assert bash(script, CUDA_VISIBLE_DEVICES="4,5", KIT_ROLE="a") == [
        *("error: role a: GPU 2 is not among those that Slurm gave: CUDA_VISIBLE_DEVICES=4,5", "code 2")
    ]


def test_ranks_that_are_moved_are_on_the_node_that_they_were_moved_to() -> None:
    """`kit rerun --rotate`: node 2 of Slurm's has the ranks of the first node."""
    moved = {"KIT_NODE_RANKS": "1 2 0"}
    script = "rank_variables::from_slurm\necho ${RANK} ${LOCAL_RANK} ${NODE_RANK}"
    assert bash(script, **SLURM, **KIT, **moved) == ["1 1 0"]
    torchrun = (
        "rank_variables::node_from_slurm\nKIT_RENDEZVOUS=static KIT_MAX_RESTARTS=0 MASTER_ADDR=n1 MASTER_PORT=1\n"
    )
    torchrun += "declare -a KIT_TORCHRUN_OPTIONS=()\nrank_variables::torchrun_argv\n"
    said = bash(f"{torchrun}printf '%s\\n' \"${{KIT_TORCHRUN_ARGV[@]}}\"", **SLURM, **KIT, **moved)
    assert "--node-rank=0" in said


def test_the_order_of_nodes_is_the_files(tmp_path: Path) -> None:
    """Nodes as srun numbers them, and the place of each among the ranks; a node that the job has not is said."""
    nodes = laid_out.LIB / "nodes.sh"
    look = 'echo "${nodes_first}|${KIT_NODE_RANKS:-}"'
    script = f"source {nodes}\nKIT_RUN_DIR={tmp_path}\nnodes::place_ranks n1 n2 n3 2>&1 || echo refused\n{look}"
    assert bash(script) == ["n1|"]
    (tmp_path / "node-order").write_text("n3\nn1\nn2\n")
    assert bash(script) == ["n3|1 2 0"]
    (tmp_path / "node-order").write_text("n3\nn1\nn9\n")
    assert bash(script)[:2] == ["error: the ranks are to be on n3 n1 n9, and the job has n1 n2 n3", "refused"]


def recorder(**env: str) -> dict[str, str]:
    """The variables of torch in a rank of a job with [watch]."""
    script = f"source {LIB.with_name('recorder_variables.sh')}; env"
    found = shell.run(["bash", "-euc", script], env={"PATH": os.environ["PATH"], **env}).stdout.splitlines()
    return dict(line.split("=", 1) for line in found if line.startswith(("TORCH_NCCL_", "TORCH_FR_DUMP")))


def test_a_watched_rank_has_a_place_for_the_dump_of_its_collectives() -> None:
    """torch adds the rank to it; `kit why` finds it by this name."""
    found = recorder(KIT_RUN_DIR="/run", KIT_FAILURES="failures-2/train-3", TORCH_FR_BUFFER_SIZE="50")
    dump = "/run/state/failures-2/train-3/collectives-"
    assert found == {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "50",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": dump,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": dump,
    }


def test_what_the_job_says_of_torchs_recorder_stays() -> None:
    mine = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "7",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_FR_DUMP_TEMP_FILE": "/mine/x-",
    }
    found = recorder(KIT_RUN_DIR="/run", KIT_FAILURES="f", **mine)
    assert found == {**mine, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/mine/x-"}
