"""Head of batch.sh, banner, manifest, status and ranks name the same world sizes, in every golden case."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kit import shell
from kit.answers import run_status
from kit.hosts.status import read_statuses
from kit.planning.placement import RolePlacement
from kit.planning.plan import Plan
from kit.record import manifest
from kit.schema.world_size_text import PLAIN, world_text
from tests.golden.cases import CASES, SINGLES, Case, Single, planned, planned_single

EVERY = [pytest.param(case, id=case.name) for case in (*CASES, *SINGLES)]
# `trainer: 2 nodes x 2 ranks = world size 4`, `replica-0 to replica-3, each: …`; a plain job's line has no name.
_LINE = re.compile(r"^# (?:(\S+?)(?: to (\S+), each)?: )?\d+ nodes? x \d+ ranks? = world size (\d+);")
_BANNER = """
source "$1/batch.head"
source "$1/lib/log.sh"
source "$1/lib/nodes.sh"
nodes::banner 2>&1
"""
_RANKS = """
source "$1/worker.head"
source "$1/lib/rank_variables.sh"
if [[ "${KIT_SHAPE}" == srun ]]; then
    rank_variables::from_slurm
    echo "${WORLD_SIZE}"
else
    rank_variables::torchrun_argv
    for word in "${KIT_TORCHRUN_ARGV[@]}"; do
        case "${word}" in
            --nnodes=*) nodes="${word#*=}" ;;
            --nproc-per-node=*) ranks="${word#*=}" ;;
        esac
    done
    echo "$((nodes * ranks))"
fi
"""


def plan_of(case: Case | Single) -> Plan:
    return planned(case) if isinstance(case, Case) else planned_single(case)


def said_by_the_head(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for first, last, size in (m.groups() for line in text.splitlines() if (m := _LINE.match(line))):
        stem = re.sub(r"\d+$", "", first or PLAIN)
        names = [first or PLAIN]
        if last:
            names = [f"{stem}{i}" for i in range(int(first[len(stem) :]), int(last[len(stem) :]) + 1)]
        found |= dict.fromkeys(names, int(size))
    return found


def write(run: Path, made: Plan, name: str, head: str) -> None:
    """The constants of a script, without what it does, beside the library."""
    (run / "lib").mkdir(exist_ok=True)
    for file in made.files:
        if file.name.startswith("lib/"):
            (run / file.name).parent.mkdir(parents=True, exist_ok=True)
            (run / file.name).write_text(file.text)
    (run / head).write_text(made.text_of(name).partition("# Below this line nothing is generated.")[0])


def size_of_ranks(run: Path, made: Plan, placed: RolePlacement) -> int:
    """What the ranks of a role are told."""
    write(run, made, f"{placed.folder}/worker.sh".lstrip("/"), "worker.head")
    (tasks,) = re.findall(r"--ntasks=(\d+)", step_of(run, made, placed))
    env = {"SLURM_NTASKS": tasks, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_ID": "1"}
    env |= {"KIT_RESTART_COUNT": "0", "MASTER_ADDR": "n1", "MASTER_PORT": "1", "PATH": "/usr/bin:/bin"}
    return int(shell.run(["bash", "-euc", _RANKS, "-", str(run)], env=env).stdout)


def step_of(run: Path, made: Plan, placed: RolePlacement) -> str:
    """The words of the role's argv, as batch.sh has them once bash has read its head: alike roles have one text there."""
    write(run, made, "batch.sh", "batch.head")
    argv = f"KIT_STEP_{made.roles.index(placed)}_ARGV"
    script = f'source "$1/batch.head"; printf "%s\\n" "${{{argv}[@]}}"'
    return shell.run(["bash", "-euc", script, "-", str(run)], env={"PATH": "/usr/bin:/bin"}).stdout


@pytest.mark.parametrize("case", EVERY)
def test_head_banner_manifest_status_and_ranks_agree(case: Case | Single, tmp_path: Path) -> None:
    made = plan_of(case)
    training = [placed for placed in made.roles if placed.role.policy != "service"]
    sizes = {placed.name: size_of_ranks(tmp_path, made, placed) for placed in training}
    assert sizes == made.world_sizes

    assert said_by_the_head(made.text_of("batch.sh")) == sizes

    write(tmp_path, made, "batch.sh", "batch.head")
    env = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-9]", "PATH": "/usr/bin:/bin"}
    banner = shell.run(["bash", "-uc", _BANNER, "-", str(tmp_path)], env=env).stdout
    assert f"nodes: n[1-9]; {world_text(sizes)}\n" in banner

    now = datetime.now(UTC)
    record = manifest.make_manifest(made, job_file=Path(__file__), user="ada", now=now, slurm_version="")
    record.write(tmp_path / "manifest.json")
    record = manifest.read_manifest(tmp_path / "manifest.json")
    assert record.world_sizes == sizes
    (status,) = read_statuses([tmp_path], queue=lambda _: {})
    assert run_status.listed(status).world_sizes == sizes


def test_world_sizes_in_words() -> None:
    assert world_text({PLAIN: 4}) == "world size 4"
    assert world_text({"trainer": 4, "orchestrator": 1}) == "world sizes: trainer 4, orchestrator 1"
    groups = {f"replica-{i}": 2 for i in range(12)}
    assert world_text({**groups, "eval": 2}) == "world sizes: replica-0 to replica-11 2 each, eval 2"


def test_the_manifest_of_an_older_kit_is_read(tmp_path: Path) -> None:
    made = manifest.make_manifest(
        planned(CASES[0]), job_file=Path(__file__), user="ada", now=datetime.now(UTC), slurm_version=""
    )
    record = made.model_dump(mode="json", exclude={"world_sizes"}) | {"world_size": 4, "ranks_per_node": 2}
    assert manifest.Manifest.model_validate(record) == made
