"""Launchers without a program of their own, and jobs that bring one: a script, a module, a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import config
from kit.errors import ConfigError
from kit.planning.plan import Plan
from kit.schema.launcher import Launcher
from tests.support import REPO, plan_of, write_job

JOB = 'name = "x"\nlauncher = "{launcher}"\nimage = "train-cpu"\n{program}\n[resources]\nnodes = {nodes}\ngpus_per_node = 2\n'
LAUNCHERS = {
    path.parent.name: config.load_model(path, Launcher) for path in sorted(REPO.glob("launchers/*/launcher.toml"))
}
OWN = [name for name, launcher in LAUNCHERS.items() if launcher.script is None and "roles" not in launcher.shapes]


def made(folder: Path, launcher: str, program: str, *, nodes: int = 1) -> Plan:
    return plan_of(write_job(folder, JOB.format(launcher=launcher, program=program, nodes=nodes)))


def program_of(plan: Plan) -> list[str]:
    """The words that a rank starts."""
    lines = plan.text_of("program.sh").split("KIT_PROGRAM=(\n")[1].split("\n)")[0].splitlines()
    return [line.strip().strip("'") for line in lines]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launcher_has_a_row_on_its_page(launcher: str) -> None:
    page = (REPO / "docs/guides/launchers.md").read_text(encoding="utf-8")
    assert f"\n| `{launcher}` |" in page, f"add a row for {launcher} to the table of docs/guides/launchers.md"


@pytest.mark.parametrize("launcher", OWN)
def test_a_launcher_without_a_program_starts_yours(tmp_path: Path, launcher: str) -> None:
    assert program_of(made(tmp_path, launcher, 'script = "train.py"\nargs = ["--lr", "1"]')) == [
        *("python3", "/workspace/train.py", "--lr", "1")
    ]
    said = config.load_model(REPO / "launchers" / launcher / "launcher.toml", Launcher)
    assert said.script is None
    with pytest.raises(ConfigError, match="brings none of its own"):
        made(tmp_path, launcher, "")


def test_a_command_is_any_program(tmp_path: Path) -> None:
    plan = made(
        tmp_path, "srun", 'command = ["{workspace}/simulate", "--out={run}/result"]\nargs = ["--steps=3"]', nodes=2
    )
    assert program_of(plan) == ["/workspace/simulate", "--out=/kit/run/result", "--steps=3"]
    assert plan.decisions.allocation.world_size == 4
    with pytest.raises(ConfigError, match="this one has script and command"):
        made(tmp_path, "srun", 'command = ["./simulate"]\nscript = "train.py"')


def test_one_process(tmp_path: Path) -> None:
    assert made(tmp_path, "python", 'module = "package.main"').decisions.allocation.world_size == 1
    with pytest.raises(ConfigError, match="starts 1 process at most, and 2 x 1 were asked for"):
        made(tmp_path, "python", 'script = "train.py"', nodes=2)


def test_mpi_ranks_meet_by_pmix_or_as_the_cluster_has_it(tmp_path: Path) -> None:
    assert "--mpi=pmix" in made(tmp_path, "mpi", 'command = ["./simulate"]').text_of("batch.sh")
    asked = 'command = ["./simulate"]\nstep = { mpi = "pmi2" }'
    assert "--mpi=pmi2" in made(tmp_path, "mpi", asked).text_of("batch.sh")


@pytest.mark.parametrize("program", ['module = "package.main"', 'command = ["./train"]'])
def test_rules_of_a_launchers_program_are_not_those_of_yours(tmp_path: Path, program: str) -> None:
    """A module under launcher ddp was held to the options of ddp's own train.py, whose files went into the run folder."""
    plan = made(tmp_path, "ddp", f'{program}\nargs = ["--batch-size", "7", "--epoks"]', nodes=2)
    assert program_of(plan)[-3:] == ["--batch-size", "7", "--epoks"]
    assert plan.copies == ()
