"""Set-up lines with the commands that sites define as functions: module, ml, conda, micromamba, spack. Under bash without a login.

Lmod is the real one where it is installed (Debian's package `lmod`). Elsewhere small stand-ins are defined as sites define theirs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit import shell
from tests.scripts.test_oldest_bash import BASH_4_4
from tests.scripts.test_worker import JOB, TASK, run_folder

LMOD = Path("/etc/profile.d/lmod.sh")
# As Lmod and Environment Modules define it: a function whose program prints shell code.
MODULE = """\
module() { eval "$({programs}/modulecmd "$@")"; }
ml() { module load "$@"; }
"""
MODULECMD = """\
#!/bin/bash
case "$1" in
    use) echo "export MODULEPATH=$2:$MODULEPATH" ;;
    load)
        IFS=: read -ra folders <<<"$MODULEPATH"
        for folder in "${folders[@]}"; do
            [[ ! -e "$folder/$2" ]] || { echo "export LOADED=$2"; exit; }
        done
        echo "echo no module $2 >&2; false"
        ;;
esac
"""


class Site:
    """A node's files: its profile.d, and programs of the stand-ins."""

    def __init__(self, at: Path) -> None:
        self.at, self.profile, self.programs = at, at / "profile.d", at / "programs"
        for folder in (self.profile, self.programs, at / "modules" / "cuda", at / "home"):
            folder.mkdir(parents=True)
        (at / "modules" / "cuda" / "12.4").touch()
        self.program("modulecmd", MODULECMD)

    @property
    def module(self) -> str:
        """The stand-in's functions, as shell text."""
        return MODULE.replace("{programs}", str(self.programs))

    def program(self, name: str, text: str) -> Path:
        path = self.programs / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run(self, lines: list[str], *job: str, bash: str = "", **env: str) -> tuple[int, dict[str, str], str]:
        """Exit code of a rank with these set-up lines, the program's environment, and what was said."""
        run = run_folder(self.at, f"setup = {json.dumps(lines)}\n" + JOB, "shape=srun", *job)
        file = run / "lib" / "site_shell.sh"
        text = file.read_text()
        assert text.count("=/etc/profile.d\n") == 1
        file.write_text(text.replace("=/etc/profile.d\n", f"={self.profile}\n"))
        (run / "state" / "failures").mkdir(exist_ok=True)
        given = {"PATH": "/usr/bin:/bin", "HOME": str(self.at / "home"), **TASK, "KIT_FAILURES": "failures", **env}
        done = shell.run([*([bash] if bash else []), str(run / "worker.sh")], env=given, check=False)
        seen = self.at / "seen.json"
        return done.returncode, json.loads(seen.read_text())[1] if seen.exists() else {}, done.stderr


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("bash", ["", str(BASH_4_4)], ids=["bash", "bash-4.4"])
def test_module_comes_from_the_profile_of_the_node(site: Site, bash: str) -> None:
    """One file finds the modules, the next defines the function, the last reads a variable that is not set."""
    if bash and not BASH_4_4.exists():
        pytest.skip("no bash 4.4 on this machine")
    (site.profile / "00-modulepath.sh").write_text(f"export MODULEPATH={site.at}/modules:$MODULEPATH\necho loud\n")
    (site.profile / "z00_lmod.sh").write_text(site.module)
    (site.profile / "z01_modules_of_ours.sh").write_text('[ -z "$OTHER" ] && export AFTER=yes\n')
    (site.profile / "colors.sh").write_text("touch colors-were-read; exit 3\n")
    code, env, said = site.run(["module load cuda/12.4"], bash=bash)
    assert (code, env["LOADED"], env["AFTER"]) == (0, "cuda/12.4", "yes"), said
    assert not [name for name in env if name.startswith("BASH_FUNC")], "the program sees no function of the kit"
    assert "loud" not in said


def test_the_first_command_may_be_ml_and_may_stand_in_a_file_of_the_job(site: Site) -> None:
    (site.profile / "lmod.sh").write_text(site.module)
    (site.at / "job").mkdir()
    (site.at / "job" / "env.sh").write_text(f"module use {site.at}/modules\nml cuda/12.4\n")
    code, env, said = site.run(["source env.sh"])
    assert (code, env["LOADED"]) == (0, "cuda/12.4"), said


@pytest.mark.parametrize("variable", ["LMOD_PKG", "MODULESHOME", "KIT_BASH_ENV"])
def test_module_comes_from_the_file_that_the_submitters_shell_names(site: Site, variable: str) -> None:
    file = site.at / "lmod" / "init" / "bash"
    file.parent.mkdir(parents=True)
    file.write_text(site.module)
    value = str(file if variable == "KIT_BASH_ENV" else site.at / "lmod")
    code, env, said = site.run(["module load cuda/12.4"], **{variable: value, "MODULEPATH": f"{site.at}/modules"})
    assert (code, env["LOADED"]) == (0, "cuda/12.4"), said


def test_an_exported_function_of_the_submitter_is_used_as_it_is(site: Site) -> None:
    """As under plain sbatch: the node's own files are not read."""
    (site.profile / "lmod.sh").write_text("echo the node\nmodule() { false; }\n")
    function = f'() {{  eval "$({site.programs}/modulecmd "$@")"\n}}'
    code, env, said = site.run(
        ["module load cuda/12.4"], **{"BASH_FUNC_module%%": function, "MODULEPATH": f"{site.at}/modules"}
    )
    assert (code, env["LOADED"]) == (0, "cuda/12.4"), said


def test_a_module_that_is_not_there_ends_the_rank_with_its_line(site: Site) -> None:
    (site.profile / "lmod.sh").write_text(site.module)
    code, env, said = site.run(["module load nothing"], MODULEPATH=f"{site.at}/modules")
    assert (code, env) == (73, {})
    assert "no module nothing" in said
    assert "set-up line 1 failed with exit code 1: module load nothing" in said


@pytest.mark.skipif(
    any(Path(place).exists() for place in ("/usr/share/lmod/lmod/init/bash", "/usr/share/modules/init/bash")),
    reason="this machine has modules",
)
def test_a_node_without_modules_says_where_it_looked(site: Site) -> None:
    code, _, said = site.run(["module load cuda"])
    assert code == 73
    assert "`module` is not here: no function of the submitter's shell" in said
    assert "set-up line 1 failed with exit code 127: module load cuda" in said


def test_conda_activate_works_by_the_installation_on_the_path(site: Site) -> None:
    (site.programs / "bin").mkdir()
    program = site.program(
        "bin/conda",
        '#!/bin/bash\n[[ "$*" == "shell.bash hook" ]] && echo \'conda() { export CONDA_DEFAULT_ENV="$2"; }\'\n',
    )
    code, env, said = site.run(["conda activate mine"], PATH=f"{program.parent}:/usr/bin:/bin")
    assert (code, env["CONDA_DEFAULT_ENV"]) == (0, "mine"), said


def test_a_conda_that_the_lines_define_themselves_stays(site: Site) -> None:
    (site.at / "job").mkdir()
    (site.at / "job" / "conda.sh").write_text('conda() { export CONDA_DEFAULT_ENV="own $2"; }\n')
    code, env, said = site.run(["source conda.sh", "conda activate mine"])
    assert (code, env["CONDA_DEFAULT_ENV"]) == (0, "own mine"), said


def test_micromamba_and_spack_come_from_what_the_submitter_named(site: Site) -> None:
    program = site.program(
        "micromamba",
        '#!/bin/bash\n[[ "$*" == "shell hook --shell bash" ]] && echo \'micromamba() { export MAMBA="$2"; }\'\n',
    )
    file = site.at / "spack" / "share" / "spack" / "setup-env.sh"
    file.parent.mkdir(parents=True)
    file.write_text('spack() { export SPACK_LOADED="$2"; }\n')
    code, env, said = site.run(
        ["micromamba activate mine", "spack load gcc"], MAMBA_EXE=str(program), SPACK_ROOT=f"{site.at}/spack"
    )
    assert (code, env["MAMBA"], env["SPACK_LOADED"]) == (0, "mine", "gcc"), said


@pytest.mark.skipif(not LMOD.exists(), reason="no lmod on this machine")
def test_real_lmod_loads_a_module(site: Site) -> None:
    """By the node's profile alone, and by init/bash of the variables of a login shell."""
    folder = site.at / "real" / "solver"
    folder.mkdir(parents=True)
    (folder / "2.1.lua").write_text('setenv("SOLVER_VERSION", "2.1")\nprepend_path("PATH", "/opt/solver/bin")\n')
    (site.profile / "lmod.sh").symlink_to(LMOD)
    lines = [f"module use {folder.parent}", "module load solver", "module list"]
    code, env, said = site.run(lines)
    assert (code, env["SOLVER_VERSION"], env["LOADEDMODULES"]) == (0, "2.1", "solver/2.1"), said
    assert env["PATH"].startswith("/opt/solver/bin:")
    (site.profile / "lmod.sh").unlink()
    (site.at / "seen.json").unlink()
    code, env, said = site.run(["module load solver"], MODULEPATH=str(folder.parent), LMOD_PKG="/usr/share/lmod/lmod")
    assert (code, env["SOLVER_VERSION"]) == (0, "2.1"), said


def test_a_rank_without_lines_has_no_such_library(tmp_path: Path) -> None:
    run = run_folder(tmp_path, JOB, "shape=srun")
    assert not (run / "lib" / "site_shell.sh").exists()
    assert "MODULEPATH" not in (run / "batch.sh").read_text()
