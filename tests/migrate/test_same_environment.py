"""The program gets the variables that the script gives it: both are run by bash, the script with stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kit import shell
from kit.migrate.read_script import read_script
from kit.migrate.variables import KITS
from tests import laid_out
from tests.migrate.forms import FORMS, Form

pytest.importorskip("tree_sitter_bash", reason="the extra 'migrate' is not installed")

# Of bash itself, of Slurm, or written nowhere.
_OTHERS = KITS | {"PWD", "OLDPWD", "SHLVL", "_", "SAID", "HF_TOKEN", "FIRST"}
_DUMP = '#!/bin/bash\n[[ "$*" != *train* && "$*" != *solver* ]] || env -0 >"$SAID"\n'
# What the scripts of the corpus read. Each sets a variable that a script may set, too.
_FILES = {
    "env.sh": "export LR=9 FROM_FILE=1\n",
    "code/env.sh": "export LR=8\n",
    "venv/bin/activate": "export VENV=1\n",
    "data/set": "",
}
_STANDS_IN = {"srun": _DUMP, "python": _DUMP, "scontrol": "#!/bin/bash\necho n1\n", "conda": "#!/bin/bash\nexit 0\n"}
_FORMS = [
    name
    for name, form in FORMS.items()
    if form.outcome != "refused"
    and "srun python" in form.script
    # Folders that are not here; what Slurm and Python do.
    and not re.search(r"/proj|/opt|--export| -O ", form.script)
]


def _base(tmp_path: Path) -> dict[str, str]:
    """The environment in which both begin."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in _STANDS_IN.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SCRATCH": "/scratch",
        "BASH_FUNC_module%%": "() { export LR=7 BS=7; }",
        "SLURM_JOB_ID": "1",
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_NNODES": "2",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }


def _said(tmp_path: Path, line: str, base: dict[str, str]) -> dict[str, str]:
    said = tmp_path / "said"
    said.unlink(missing_ok=True)
    done = shell.run(["bash", "-c", line], cwd=tmp_path, env={**base, "SAID": str(said)}, check=False)
    assert said.exists(), done.stderr
    pairs = (item.partition("=") for item in said.read_text().split("\0") if item)
    return {n: v for n, _, v in pairs if n not in _OTHERS and not n.startswith(("SLURM_", "BASH_FUNC", "setup_lines"))}


@pytest.mark.parametrize("name", _FORMS)
def test_the_program_gets_the_same_variables(name: str, tmp_path: Path) -> None:
    form: Form = FORMS[name]
    for file, text in {**_FILES, **form.files}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    base = _base(tmp_path)
    script = tmp_path / "job.sbatch"
    script.write_text(form.script)
    job = read_script(script, form.script).job
    (tmp_path / "setup.sh").write_text("".join(f"{line}\n" for line in job.get("setup", [])))
    (tmp_path / "env").write_text("".join(f"{name}={value}\0" for name, value in job.get("env", {}).items()))
    setup = f'KIT_RUN_DIR=/nowhere; source {laid_out.LIB}/setup_lines.sh; setup_lines::run "$HOME/setup.sh" || exit 1; '
    run = 'mapfile -d "" -t own <"$HOME/env"; exec env "${own[@]}" srun train'
    asked = _said(tmp_path, "bash ./job.sbatch", base)
    assert _said(tmp_path, setup + run, base) == asked
