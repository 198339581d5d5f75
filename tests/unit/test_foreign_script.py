"""A batch script that is not the kit's: its header decides about the job, and it stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.errors import ConfigError
from kit.planning import site_shell
from kit.planning.plan import Plan
from kit.planning.sbatch_header import header
from kit.render import plain
from kit.submission import portable_job, prepare_run
from tests.support import plan_of, write_job

SCRIPT = """\
#!/bin/bash
#SBATCH -J "My Job"
#SBATCH -N 2 --ntasks-per-node=3
#SBATCH --gpus-per-node=1
#SBATCH --time=00:05:00
#SBATCH --output=out/own.log
#SBATCH --quiet
items=(a b); echo ${#items[@]} {{x,y},z}
srun train
#SBATCH --nodes=9
"""


def made(folder: Path, text: str, *overrides: str, name: str = "own.sh") -> Plan:
    """The plan of a script in a project of its own."""
    write_job(folder, "")
    (folder / name).write_text(text)
    return plan_of(folder / name, overrides=overrides)


def test_a_script_is_a_job_by_its_header(tmp_path: Path) -> None:
    plan = made(tmp_path, SCRIPT)
    asked = plan.job.resources
    assert plan.job.name == "my-job"
    assert (asked.nodes, asked.ranks_per_node, asked.gpus_per_node, asked.time) == (2, 3, 1, "00:05:00")
    assert plan.world_sizes == {"train": 6}
    assert plan.text_of("script") == SCRIPT, "Jinja does not touch it"
    assert {file.name: file.mode for file in plan.files}["script"] == 0o755


def test_the_header_is_the_scripts_with_absolute_outputs(tmp_path: Path) -> None:
    options = header(made(tmp_path, SCRIPT).text_of("batch.sh"))
    assert '-J "My Job"' in options
    assert "-N 2 --ntasks-per-node=3" in options
    assert f"--output={tmp_path}/out/own.log" == options[options.index("--output=out/own.log") + 1]
    assert options[-1] == "--open-mode=append"
    assert not any(option.startswith(("--quiet", "--nodes", "--mem", "--cpus-per-task")) for option in options)


def test_without_an_output_of_its_own_the_log_is_in_the_run_folder(tmp_path: Path) -> None:
    plan = made(tmp_path, "#!/bin/bash\n#SBATCH --nodes=1\ntrue\n")
    assert f"--output={plan.run_dir}/logs/batch.log" in header(plan.text_of("batch.sh"))


def test_the_command_line_is_above_the_script(tmp_path: Path) -> None:
    plan = made(tmp_path, SCRIPT, "resources.nodes=1", "resources.time=00:01:00")
    assert header(plan.text_of("batch.sh"))[-2:] == ["--nodes=1", "--time=00:01:00"]
    assert plan.allocation.nodes == 1


def test_the_header_is_above_the_job_file(tmp_path: Path) -> None:
    text = 'name = "own"\nlauncher = "srun"\nimage = "train-cpu"\ncommand = ["true"]\n[resources]\nnodes = 1\ngpus_per_node = 4\n'
    job_file = write_job(tmp_path, f'{text}[slurm]\ntemplate = "own.sh"\n')
    (tmp_path / "own.sh").write_text(SCRIPT)
    plan = plan_of(job_file)
    assert (plan.allocation.nodes, plan.allocation.gpus_per_node, plan.world_sizes) == (2, 1, {"train": 6})
    assert any(one.name.endswith("own.sh") and "resources.nodes" in one.keys for one in plan.decisions.resolved.set_by)


def test_a_template_with_jinja_runs_below_the_kits_script(tmp_path: Path) -> None:
    text = "#!/bin/bash\n{% for option in sbatch %}\n#SBATCH {{ option }}\n{% endfor %}\n#SBATCH --wckey=physics\nsrun train\n"
    job = 'name = "own"\nlauncher = "srun"\nimage = "train-cpu"\ncommand = ["true"]\n[slurm]\ntemplate = "own.j2"\n'
    job_file = write_job(tmp_path, job)
    (tmp_path / "own.j2").write_text(text)
    plan = plan_of(job_file)
    options = header(plan.text_of("batch.sh"))
    assert "--wckey=physics" in options
    assert len([option for option in options if option.startswith("--nodes=")]) == 1
    assert "record_end" in plan.text_of("batch.sh")


def test_the_lines_of_a_template_stand(tmp_path: Path) -> None:
    """They may say more than the job."""
    text = (
        "#!/bin/bash\n{% for option in sbatch %}\n#SBATCH {{ option }}\n{% endfor %}\n#SBATCH --nodes=7\nsrun train\n"
    )
    job = 'name = "own"\nlauncher = "srun"\nimage = "train-cpu"\ncommand = ["true"]\n[slurm]\ntemplate = "own.j2"\n'
    job_file = write_job(tmp_path, job)
    (tmp_path / "own.j2").write_text(text)
    nodes = [option for option in header(plan_of(job_file).text_of("batch.sh")) if option.startswith("--nodes=")]
    assert nodes[-1] == "--nodes=7"


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("#!/bin/bash\n#SBATCH --array=0-3\ntrue\n", "line 2", "kit sweep"),
        ("#!/bin/bash\n#SBATCH -N 1\n#SBATCH hetjob\ntrue\n", "line 3", "[roles]"),
        ("#!/bin/bash\n#SBATCH --wait\ntrue\n", "line 2", "kit submit --wait"),
        ("#SBATCH --nodes=1\ntrue\n", "line 1", "#!/bin/bash"),
    ],
)
def test_what_cannot_be_a_run_is_refused(tmp_path: Path, text: str, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        made(tmp_path, text)
    (fault,) = error.value.faults
    assert fault.key == key
    assert fault.file.endswith("own.sh")
    assert said in fault.hint


def test_what_the_script_does_without_is_said_once(tmp_path: Path) -> None:
    said = [str(one) for one in made(tmp_path, SCRIPT).warnings]
    assert len([line for line in said if "kit migrate" in line]) == 1


def test_variables_that_the_script_exports_by_name_are_inherited(tmp_path: Path) -> None:
    plan = made(tmp_path, "#!/bin/bash\n#SBATCH --export=MODEL,LR=3\ntrue\n")
    assert plan.job.inherit == ("MODEL",)


def test_a_script_that_loads_modules_gets_what_finds_them(tmp_path: Path) -> None:
    plain = made(tmp_path / "a", "#!/bin/bash\n#SBATCH -N 1\ntrue\n")
    loads = made(tmp_path / "b", "#!/bin/bash\n#SBATCH -N 1\nmodule load cuda\n")
    assert site_shell.carried(plain.decisions) == ()
    assert "MODULEPATH" in site_shell.carried(loads.decisions)


def test_a_script_that_records_itself_and_does_not_copy_the_folder_is_refused(tmp_path: Path) -> None:
    """Its programs would run in an empty folder."""
    text = '#!/bin/bash\nsource "${KIT_RUN_DIR}/lib/retry.sh"\n'
    (own := write_job(tmp_path, "").with_name("own.sh")).write_text(text)
    with pytest.raises(ConfigError) as error:
        prepare_run.prepare_job(own, cluster="local", overrides=[], containers=False)
    (fault,) = error.value.faults
    assert "does not copy the job's folder" in fault.problem
    assert "kit template eject" in fault.hint
    own.write_text(f"{text}parts::require prepare || exit $?\n")
    assert prepare_run.prepare_job(own, cluster="local", overrides=[], containers=False).plan.text_of("batch.sh")


def test_a_copy_of_another_releases_script_is_refused_when_its_functions_are_gone(tmp_path: Path) -> None:
    """It passed the submit, and died at its end: no exit code on record, and the steps were left to Slurm."""
    own = plain("bin/batch.sh").replace(
        "parts::any wants_requeue", "retry::wants_requeue || retry::again 1 || retry::one || retry::two || retry::three"
    )
    with pytest.raises(ConfigError) as error:
        made(tmp_path, own, name="own.sbatch.j2")
    (fault,) = error.value.faults
    assert fault.problem.endswith("gone: retry::again, retry::one, retry::three, retry::two, …")
    assert "kit template eject" in fault.hint


def test_functions_of_anybody_elses_are_not_the_kits(tmp_path: Path) -> None:
    text = plain("bin/batch.sh") + (
        "retry::mine() { conda::activate; }  # retry::gone\nretry::mine\nc++ -e 'std::sort(x)' # nodes::gone\n"
    )
    assert "retry::mine" in made(tmp_path, text, name="own.sbatch.j2").text_of("batch.sh")
    with pytest.raises(ConfigError, match="failure_book::open"):
        made(
            tmp_path, f'{text}source "${{KIT_RUN_DIR}}/lib/failure_book.sh"\nfailure_book::open\n', name="own.sbatch.j2"
        )


@pytest.mark.parametrize("line", ["--output=out/own.log", "-e err", "--input=data.txt", "-o ~/own.log"])
def test_over_ssh_a_file_of_the_header_that_is_here_is_refused(tmp_path: Path, line: str) -> None:
    plan = made(tmp_path, f"#!/bin/bash\n#SBATCH -N 1\n#SBATCH {line}\ntrue\n")
    with pytest.raises(ConfigError) as error:
        portable_job.require_header(plan)
    (fault,) = error.value.faults
    assert fault.key.startswith("#SBATCH --")
    assert fault.file.endswith("own.sh")


def test_over_ssh_absolute_files_of_the_header_are_the_clusters(tmp_path: Path) -> None:
    portable_job.require_header(made(tmp_path, "#!/bin/bash\n#SBATCH -N 1 -o /data/%j.out -i /dev/null\ntrue\n"))
