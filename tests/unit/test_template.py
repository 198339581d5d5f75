"""[slurm] template: a batch script of the user's own, strict and in a sandbox."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit.cli.template import eject
from kit.errors import ConfigError, UsageError
from kit.planning.batch_file import STABLE
from kit.planning.plan import Plan
from kit.render import MARK, plain
from tests.support import REPO, plan_of, write_job

JOB = """\
name = "own"
launcher = "ddp"
image = "train-cpu"
[resources]
nodes = 2
gpus_per_node = 1
[slurm]
template = "my.sbatch.j2"
"""


def made(folder: Path, text: str) -> Plan:
    job_file = write_job(folder, JOB)
    (folder / "my.sbatch.j2").write_text(text)
    return plan_of(job_file)


def refused(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        made(folder, text)
    return error.value


def test_the_stable_variables(tmp_path: Path) -> None:
    plan = made(tmp_path, "#!/bin/bash\n" + "".join(f"{name}={{{{ {name} | sh }}}}\n" for name in STABLE))
    assert plan.text_of("script") == (
        "#!/bin/bash\n"
        "job_name=own\n"
        f"project_dir={tmp_path}\n"
        "output_dir=/shared/runs/digits-1\n"
        "config_dir=/shared/runs/digits-1/configs\n"
        "num_train_nodes=2\n"
        "num_infer_nodes=0\n"
        "gpus_per_node=1\n"
        "hub_offline=0\n"
        "hf_hub_offline=0\n"
        "num_nodes=2\n"
    )


def test_the_plans_own_variables_and_jinja_everywhere_without_the_mark(tmp_path: Path) -> None:
    text = "#!/bin/bash\n{% for option in sbatch %}\n#SBATCH {{ option }}\n{% endfor %}\nexec {{ roles[0].argv | join(' ') }}\n"
    plan = made(tmp_path, text)
    assert "#SBATCH --job-name=own\n" in plan.text_of("batch.sh"), "the header of the script is that of the job"
    assert "\nexec srun --job-name=train " in plan.text_of("script")


def test_the_ejected_default_makes_the_same_script(tmp_path: Path) -> None:
    own = made(tmp_path, plain("bin/batch.sh"))
    default = plan_of(write_job(tmp_path, JOB.replace('template = "my.sbatch.j2"', "")))

    def without_digest(text: str) -> str:
        """A template of one's own may call any part, so its run has more files, and they have another digest."""
        return re.sub(r"^readonly KIT_CODE=[0-9a-f]{64}$", "", text, flags=re.MULTILINE)

    assert without_digest(own.text_of("batch.sh")) == without_digest(default.text_of("batch.sh"))


def test_eject_writes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eject(None)
    assert capsys.readouterr().out == plain("bin/batch.sh")
    file = tmp_path / "my.sbatch.j2"
    eject(file)
    assert file.read_text() == plain("bin/batch.sh")
    with pytest.raises(UsageError, match="the file exists already"):
        eject(file)
    eject(file, force=True)


def test_bash_below_the_mark_is_left_alone(tmp_path: Path) -> None:
    below = MARK + 'echo "${#array[@]} {{ not_jinja }}"\n'
    assert made(tmp_path, "#!/bin/bash\n" + below).text_of("script").endswith(below)


def test_all_unknown_variables_are_named_with_the_known_ones(tmp_path: Path) -> None:
    error = refused(tmp_path, "{{ jobname }}\n{% if false %}{{ partition }}{% endif %}\n")
    assert [fault.key for fault in error.faults] == ["jobname", "partition"]
    assert error.faults[0].hint == "{{ job_name }}"
    assert all(name in error.faults[0].allowed for name in (*STABLE, "roles", "world"))
    assert error.faults[0].file.endswith("my.sbatch.j2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ job_name\n", "line 1"),
        ("\n{% for x in sbatch %}", "line 2"),
        ("{{ job_name.nothing }}", "has no attribute 'nothing'"),
        ("{{ job_name.__class__.__mro__ }}", "unsafe"),
        ("{% for x in range(10000000) %}{% endfor %}", "Range too big"),
        ("{{ 1 / 0 }}", "division by zero"),
        # C19: each of these rendered for ever, or until the memory was full.
        ("{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}", "more than 1,000,000 turns"),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
            "more than 1,000,000",
        ),
        ("{{ 10 ** 10 ** 10 }}", "a power of more than 64"),
        ("{{ 'x' * 10000000000 }}", "a product of more than 1,000,000 elements"),
        ("{% include '/etc/hostname' %}", "loader"),
    ],
)
def test_what_a_template_cannot_do(tmp_path: Path, text: str, said: str) -> None:
    assert said in str(refused(tmp_path, text).faults[0])


def test_a_template_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        plan_of(write_job(tmp_path, JOB))
    assert error.value.faults[0].key == "slurm.template"
    assert "kit template eject" in error.value.faults[0].hint


def test_the_documentation_lists_every_stable_variable() -> None:
    text = (REPO / "docs" / "guides" / "templates.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)) == STABLE
