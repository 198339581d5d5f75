"""Tests of commands of a site: runs that may use `module`, what they take of the submitter's shell, lines in a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.planning import site_shell
from kit.planning.plan import Plan
from kit.schema.job import Job
from kit.ssh import shell_program
from tests.support import make_site, plan_of, write_job

HEAD = 'name = "x"\nlauncher = "ddp"\n'


def planned(at: Path, text: str, *, containers: bool) -> Plan:
    job = write_job(at, HEAD + text)
    return plan_of(job, cluster="pod", site=make_site(containers=containers))


def has_library(made: Plan) -> bool:
    return "lib/site_shell.sh" in {file.name for file in made.files}


@pytest.mark.parametrize(
    ("text", "containers", "library", "carries"),
    [
        ('setup = ["source env.sh"]', False, True, True),
        ("", False, False, False),
        ('setup = ["export A=1"]', True, False, False),
        ('setup = ["module load cuda"]', True, True, False),
        ('setup = ["if true; then ml cuda; fi"]', True, True, False),
        ('setup = ["export module_load=1"]', True, False, False),
        ('[once]\nlines = ["make"]\ncontainer = false', True, True, False),
        ('[once]\nlines = ["make"]', True, False, False),
    ],
)
def test_lines_of_a_node_have_the_sites_commands(
    tmp_path: Path, text: str, containers: bool, library: bool, carries: bool
) -> None:
    """A file that a line reads may use them, too. A container gets nothing of the submitter's modules."""
    made = planned(tmp_path, text, containers=containers)
    assert has_library(made) == library
    assert ("BASH_FUNC_module%%" in made.text_of("batch.sh")) == carries
    assert ("MODULEPATH" in made.text_of("batch.sh")) == carries


def test_a_line_with_module_in_a_container_is_named(tmp_path: Path) -> None:
    made = planned(tmp_path, 'setup = ["ulimit -n 4096", "module load cuda"]', containers=True)
    (fault,) = (one for one in made.warnings if one.key.startswith("setup"))
    assert fault.key == "setup[1]"
    assert "runs in the container, which has the modules of its image" in fault.problem
    assert not planned(tmp_path, 'setup = ["module load cuda"]', containers=False).warnings


def test_what_is_taken_of_the_submitters_shell() -> None:
    environ = {"MODULEPATH": "/m", "BASH_FUNC_module%%": "() { :; }", "BASH_ENV": "/e", "LOADEDMODULES": "x", "A": "1"}
    assert site_shell.environment(environ) == {
        "MODULEPATH": "/m",
        "BASH_FUNC_module%%": "() { :; }",
        "KIT_BASH_ENV": "/e",
    }


def test_an_exported_function_may_be_inherited_by_name_and_stays_on_this_machine() -> None:
    """Its name is no variable that a shell over ssh could export."""
    job = Job.model_validate({"name": "x", "launcher": "ddp", "inherit": ["BASH_FUNC_module%%"]})
    assert job.inherit == ("BASH_FUNC_module%%",)
    text = shell_program.text("have", {}, mark="m", environment={"A": "1", "BASH_FUNC_module%%": "() { :; }"})
    assert "export A=1" in text
    assert "BASH_FUNC" not in text
