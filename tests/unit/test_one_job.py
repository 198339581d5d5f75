"""One point of a sweep, or the job without it, as a run of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kit import shell
from kit.errors import ConfigError, KitError, UsageError
from kit.sweeps import one_job
from kit.sweeps import prepare as sweeps
from tests.support import write_job

JOB = 'name = "digits"\nlauncher = "ddp"\nscript = "train.py"\nargs = ["--lr", "9"]\n'
SWEEP = "[sweep.grid]\nargs.--lr = [1, 2]\nseed = [3, 4]\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print(1)\n")
    return write_job(tmp_path, JOB + SWEEP)


def test_a_point_is_the_job_that_the_sweep_would_submit(job: Path) -> None:
    swept = sweeps.prepare_sweep(job, cluster="local", containers=False)
    for number, point in enumerate(swept.runs):
        made = one_job.prepare_point(job, number, cluster="local", containers=False)
        assert made.plan.job == point.plan.job
        assert made.plan.run_dir.parent != point.plan.run_dir.parent
        assert made.resolved.set_by[-1].name.endswith(f"[sweep] point {number}")


def test_the_base_is_the_job_without_the_sweep(job: Path) -> None:
    made = one_job.prepare_point(job, "base", cluster="local", overrides=["--", "--epochs", "3"], containers=False)
    assert (made.plan.job.args, made.plan.job.sweep) == (("--lr", "9", "--epochs", "3"), None)


def test_debug_is_obeyed(job: Path) -> None:
    made = one_job.prepare_point(
        job, 1, cluster="local", overrides=["resources.nodes=4"], containers=False, debug=True
    ).plan.job
    assert (made.debug, made.resources.nodes) == (True, 2)


@pytest.mark.parametrize(
    ("part", "text", "overrides", "error", "said"),
    [
        (4, SWEEP, [], UsageError, "no point 4: the last is 3"),
        ("base", "", [], UsageError, "no [sweep]"),
        (0, "", [], UsageError, "no [sweep]"),
        (0, SWEEP, ["seed=1"], ConfigError, "--set: seed: the sweep sets this key too"),
        (0, SWEEP, ["--", "--lr", "1"], ConfigError, "args.--lr: the sweep sets this key too"),
        ("base", SWEEP + "[stages.a]\n", [], UsageError, "it has [stages]"),
        (
            0,
            '[sweep]\nmetric = "loss"\n[sweep.search]\ncount = 4\n[sweep.search.keys]\nargs.--lr = { uniform = [1, 2] }\n',
            [],
            UsageError,
            "the search chooses the values",
        ),
    ],
)
def test_what_is_refused(  # noqa: PLR0917
    job: Path, part: one_job.Part, text: str, overrides: list[str], error: type[KitError], said: str
) -> None:
    job.write_text(JOB + text)
    with pytest.raises(error) as caught:
        one_job.prepare_point(job, part, cluster="local", overrides=overrides, containers=False)
    assert said in str(caught.value)


def test_the_options_of_the_command_line(job: Path) -> None:
    def kit(*words: str) -> shell.Completed:
        return shell.run([sys.executable, "-m", "kit", *words, "--no-container"], cwd=job.parent, check=False)

    assert "    --lr\n    2\n" in kit("render", "--point", "3").stdout
    assert "    --lr\n    9\n" in kit("submit", "--dry-run", "--base").stdout
    both = kit("render", "--point", "3", "--base")
    assert (both.returncode, "cannot be used together" in both.stderr) == (2, True)
    whole = kit("submit", "--dry-run")
    assert (whole.returncode, "kit submit --base" in whole.stderr) == (2, True)
