"""`kit render --plain`: one sbatch file that needs nothing of the kit."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kit import shell
from kit.errors import ConfigError
from kit.planning.plain_file import plain_script
from tests.golden.cases import CASES, planned
from tests.support import write_job

BY_NAME = {case.name: case for case in CASES}
PLAIN = ["local-pyxis", "pod-pyxis", "local-bare", "infiniband-qos-high", "aws-efa"]
# Of a two-node DDP job: what somebody reads before he submits it.
MOST_LINES = 150


def text_of(case: str) -> str:
    return plain_script(planned(BY_NAME[case]).decisions)


@pytest.mark.parametrize("case", PLAIN)
def test_it_is_short_and_passes_shellcheck(case: str, tmp_path: Path) -> None:
    text = text_of(case)
    assert text.count("\n") <= MOST_LINES
    if shutil.which("shellcheck"):
        path = tmp_path / "plain.sbatch"
        path.write_text(text)
        done = shell.run(["shellcheck", str(path)], check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("case", PLAIN)
def test_it_names_nothing_of_a_run_folder(case: str) -> None:
    plan = planned(BY_NAME[case])
    text = text_of(case)
    for word in (str(plan.run_dir), "/kit/run", "/lib/log.sh", "bin/rank.sh"):
        assert word not in text


def test_it_has_the_header_of_the_kits_own_batch_script_but_for_the_log() -> None:
    plan = planned(BY_NAME["pod-pyxis"])
    header = [line for line in text_of("pod-pyxis").splitlines() if line.startswith("#SBATCH ")]
    own = [line for line in plan.text_of("batch.sh").splitlines() if line.startswith("#SBATCH ")]
    assert [line for line in header if "--output" not in line] == [line for line in own if "--output" not in line]
    assert f"#SBATCH --output={plan.decisions.resolved.job_dir}/%x-%j.log" in header


def test_the_image_is_that_of_the_lock_and_the_jobs_folder_is_mounted() -> None:
    made = planned(BY_NAME["pod-pyxis"]).decisions
    text = text_of("pod-pyxis")
    assert f"--container-image={made.pin.stored}" in text
    assert f"{made.resolved.job_dir}:/workspace" in text
    assert made.pin.digest in text


@pytest.mark.parametrize(
    ("case", "key"),
    [
        ("local-roles", "roles"),
        ("local-bubblewrap-srun", "container.runtime"),
        ("infiniband-prime-rl", "roles"),
    ],
)
def test_what_it_cannot_hold_is_refused_by_key(case: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        text_of(case)
    assert key in {fault.key for fault in caught.value.faults}
    assert all("kit submit" in fault.hint for fault in caught.value.faults)


def test_secrets_are_no_part_of_it() -> None:
    made = planned(BY_NAME["local-bare"]).decisions
    job = made.job.model_copy(update={"secrets": made.job.secrets.model_copy(update={"env": ("HF_TOKEN",)})})
    with pytest.raises(ConfigError, match="secrets"):
        plain_script(replace(made, resolved=replace(made.resolved, job=job)))


def test_the_command_prints_writes_and_answers(tmp_path: Path) -> None:
    file = write_job(tmp_path, 'name = "digits"\nlauncher = "ddp"\nscript = "train.py"\nseed = 5\n')
    (file.parent / "train.py").write_text("print()\n")

    def kit(*words: str) -> str:
        options = ["--cluster", "local", "--no-container", "--plain", *words]
        return shell.run([sys.executable, "-m", "kit", "render", str(file), *options]).stdout

    text = kit() + "\n"
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=digits\n")
    kit("--output", str(tmp_path / "out"))
    assert (tmp_path / "out" / "digits.sbatch").read_text() == text
    shown = {"schema_version": 1, "files": {"digits.sbatch": text}, "argv": ["sbatch", "digits.sbatch"]}
    assert json.loads(kit("--json")) == shown
    path = str(tmp_path / "again" / "digits.sbatch")
    written = json.loads(kit("--json", "--output", str(tmp_path / "again")))
    assert written == {"schema_version": 1, "argv": ["sbatch", path], "written": [path]}
