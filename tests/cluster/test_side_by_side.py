"""Seven scripts under plain sbatch, and the jobs that `kit migrate` makes of them: same ranks, environment, code, saved files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kit import shell
from kit.slurm.client import ACTIVE
from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab, came
from tests.migrate.side_by_side import ENV, MODULE, PROGRAM, SCRIPTS, TORCHRUN, Script

pytestmark = pytest.mark.cluster
pytest.importorskip("tree_sitter_bash", reason="the extra 'migrate' is not installed")

# The names of variables that differ, each with its reason. All others are equal, name and value.
DIFFER = {
    "of the kit itself": r"KIT_\w+|SAVED?_\w+",
    "of Slurm: numbers, names and ports of the job and the step": r"SLURM\w*|SBATCH_\w+|SRUN_DEBUG|PMI\w*|ENVIRONMENT",
    "the numbers of the GPUs, which Slurm chooses for each job": r"\w+_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ZE_AFFINITY_MASK",
    "how ranks meet: every rank has them from the kit": r"(LOCAL_|NODE_|GROUP_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)",
    "the kit's habits for Python and torch": r"PYTHON\w+|OMP_NUM_THREADS|TORCH_FR_BUFFER_SIZE|TORCH_\w+",
    "caches on the node's own disk": r"(TRITON|TORCHINDUCTOR)_CACHE_DIR|CUDA_CACHE_PATH|HF_HOME|XDG_CACHE_HOME|MPLCONFIGDIR",
    "of bash, and the folder": r"PWD|OLDPWD|SHLVL|_|PATH|HOSTNAME|TMPDIR|BASH_FUNC_module%%",
}
_DIFFERS = re.compile("|".join(f"({pattern})" for pattern in DIFFER.values()))


@pytest.fixture(scope="module")
def site(train_cpu: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two nodes wide enough for all jobs of this module at once."""
    with lab_on("side", 2, train_cpu, tmp_path_factory.mktemp("side"), cpus=32) as lab:
        (lab.project / "clusters" / f"{lab.cluster.name}.toml").write_text(
            "embedded = true\n[node]\ncpus = 32\ngpus = 4\n"
        )
        yield lab


@dataclass(frozen=True)
class Pair:
    """A script under plain sbatch, and its job file under the kit. plain: the number of its job."""

    script: Script
    folder: Path
    plain: str
    run: Path

    def out(self) -> tuple[Path, Path]:
        """The folders in which the ranks of both write."""
        return self.folder / "out", self.run / "workspace" / "out"

    def are_up(self) -> bool:
        return all(len(list(out.glob("seen-*.json"))) == self.script.ranks for out in self.out())


def environment(site: Lab) -> dict[str, str]:
    """The shell of a user who has what both hand to the job, and a module function."""
    base = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "SHELL": "/bin/bash",
        "HOME": str(Path.home()),
        "USER": "root",
        "LANG": "C.UTF-8",
    }
    return {**base, **site.cluster.env(), "BASH_FUNC_module%%": MODULE}


def folder_of(site: Lab, name: str, mode: str) -> Path:
    folder = site.project / f"{name}-{mode}"
    shutil.rmtree(folder, ignore_errors=True)
    for file, text in {
        "train.py": PROGRAM,
        "tools/torchrun": TORCHRUN,
        "env.sh": ENV,
        "mode": mode,
        **SCRIPTS[name].files,
    }.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text, encoding="utf-8")
    for program in ("tools/torchrun", *SCRIPTS[name].files):
        (folder / program).chmod(0o755)
    (folder / "job.sbatch").write_text(SCRIPTS[name].text, encoding="utf-8")
    return folder


def start(site: Lab, name: str, mode: str) -> Pair:
    """Both, first the kit's, whose copy of the folder then has nothing that the script left there."""
    folder, env = folder_of(site, name, mode), environment(site)
    told = json.loads(site.kit("migrate", str(folder / "job.sbatch"), "--json", "--cluster", site.cluster.name).stdout)
    assert told["outcome"] != "refused", told
    done = site.kit(
        "submit", str(folder / "job.toml"), "--cluster", site.cluster.name, "--set", "preflight.free_disk_gb=0", env=env
    )
    plain = shell.run(["sbatch", "--parsable", "job.sbatch"], cwd=folder, env=env).stdout.strip()
    return Pair(SCRIPTS[name], folder, plain, Path(done.stdout.splitlines()[0]))


def state(site: Lab, number: str) -> dict[str, str]:
    return dict(re.findall(r"(\S+?)=(\S*)", site.slurm("scontrol", "--oneliner", "show", "job", number)))


def wait_end(site: Lab, pair: Pair) -> tuple[dict[str, str], dict[str, str]]:
    """Until Slurm is done with both; what it then says of them."""
    assert came(lambda: state(site, pair.plain)["JobState"] not in ACTIVE), state(site, pair.plain)
    return state(site, pair.plain), site.wait_end(pair.run)


def seen(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("seen-*.json"))]


def compared(env: Mapping[str, str], *without: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in without and not _DIFFERS.fullmatch(name)}


def of_the_login(site: Lab) -> set[str]:
    """Names that only a login shell sets: sbatch reads them for --export=ALL,NAME=VALUE, which `kit migrate` reports."""
    text = shell.run(["bash", "-lc", "env -0"], env={"HOME": str(Path.home())}).stdout
    # su adds the two names.
    return {"LOGNAME", "MAIL", *(entry.partition("=")[0] for entry in text.split("\0") if entry)} - set(
        environment(site)
    )


# sbatch reads a login shell's environment for --export=ALL,NAME=VALUE, for up to two minutes.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if "--export=ALL," in SCRIPTS[name].text else name for name in SCRIPTS],
)
def test_same_ranks_environment_and_code(site: Lab, name: str) -> None:
    pair = start(site, name, "fail")
    plain, kits = wait_end(site, pair)
    log = (pair.run / "logs" / "batch.log").read_text(encoding="utf-8")
    theirs, ours = map(seen, pair.out())
    login = of_the_login(site) if "--export=ALL," in pair.script.text else ()
    assert len(theirs) == len(ours) == pair.script.ranks, log
    for one, other in zip(theirs, ours, strict=True):
        assert [one[key] for key in ("argv", "rank", "node")] == [other[key] for key in ("argv", "rank", "node")]
        assert compared(other["env"]) == compared(one["env"], *login)
    assert plain["ExitCode"] == f"{pair.script.code}:0", plain
    # A script whose `wait` forgets the codes of its ranks ends well; the kit's run has the code.
    assert kits["ExitCode"] == "5:0", log
    for file in pair.script.left:
        assert (pair.folder / file).exists()
        assert (pair.run / "workspace" / file).exists(), log


def saved(out: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in out.glob("saved-*")}


def limited(site: Lab, number: str) -> list[str]:
    """The words that end a job in one to two minutes. The signal of requeue-trap, a minute before, comes first."""
    hours, minutes, _ = map(int, state(site, number)["RunTime"].split(":"))
    return ["scontrol", "update", f"JobId={number}", f"TimeLimit={60 * hours + minutes + 2}"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["scancel", "limit"])
def test_same_saved_files(site: Lab, how: str) -> None:
    """All seven at once: the limit takes two minutes and a half."""
    pairs = {name: start(site, name, "wait") for name in SCRIPTS}
    for name, pair in pairs.items():
        assert came(pair.are_up), (name, (pair.run / "logs" / "batch.log").read_text(encoding="utf-8"))
    for pair in pairs.values():
        for number in (pair.plain, site.job(pair.run)["JobId"]):
            site.slurm(*(["scancel", number] if how == "scancel" else limited(site, number)))
    for name, pair in pairs.items():
        plain, kits = wait_end(site, pair)
        theirs, ours = map(saved, pair.out())
        assert len(theirs) == pair.script.ranks, (name, plain)
        assert ours == theirs, (name, (pair.run / "logs" / "batch.log").read_text(encoding="utf-8"))
        assert (plain["Restarts"], kits["Restarts"]) == (
            ("1", "1") if (name, how) == ("requeue-trap", "limit") else ("0", "0")
        )
