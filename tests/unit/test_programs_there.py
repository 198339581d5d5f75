"""Checks of a job's program before it is queued: the program exists, and knows its options."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from kit.errors import ConfigError
from kit.frameworks import launcher_program_options
from kit.submission import prepare_run
from kit.sweeps import prepare as sweeps
from tests.support import REPO, write_job

HEAD = 'name = "x"\nlauncher = "ddp"\n'


def refused(folder: Path, text: str, *, sweep: bool = False) -> str:
    job = write_job(folder, HEAD + text)
    with pytest.raises(ConfigError) as caught:
        if sweep:
            sweeps.prepare_sweep(job, cluster="local", containers=False)
        else:
            prepare_run.prepare_job(job, cluster="local", overrides=[], containers=False)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('script = "nope.py"', "script: 'nope.py' is not there: no such file in"),
        ('script = "."', "script: '.' is a folder"),
        (
            'script = "/kit/run/code/trainn.py"',
            "has no program 'trainn.py'; it has train.py, train_gpt.py\n  try: script =",
        ),
        ('args = ["--epoks", "3"]', "args[0]: --epoks is not an option of train.py\n  try: --epochs in args"),
        ('args = ["--epochs", "3", "--lrr=1"]', "args[2]: --lrr is not an option of train.py"),
        ('script = "/kit/run/code/train_gpt.py"\nargs = ["--epochs", "3"]', "is not an option of train_gpt.py"),
    ],
)
def test_it_is_refused_before_submit(tmp_path: Path, text: str, said: str) -> None:
    assert said in refused(tmp_path, text)


def test_the_nearest_program_is_offered(tmp_path: Path) -> None:
    (tmp_path / "main.py").touch()
    assert '\n  try: script = "main.py"' in refused(tmp_path, 'script = "mainn.py"')


def test_a_point_of_a_sweep_is_checked_too(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    assert "point 1 (" in refused(tmp_path, '[sweep.grid]\nscript = ["a.py", "b.py"]\n', sweep=True)
    assert "--epoks is not an option" in refused(tmp_path, "[sweep.grid]\nargs.--epoks = [1, 2]\n", sweep=True)


@pytest.mark.parametrize(
    "text",
    [
        'args = ["--epochs=3", "--checkpoint-e", "2", "--no-checkpoint-async"]',  # argparse knows beginnings of names
        'script = "made.py"\nsetup = ["./generate > made.py"]',
        'module = "mine.train"\nargs = ["--whatever"]',
        'script = "/opt/train.py"\nargs = ["--whatever"]',
    ],
)
def test_what_works_is_taken(tmp_path: Path, text: str) -> None:
    prepare_run.prepare_job(write_job(tmp_path, HEAD + text), cluster="local", overrides=[], containers=False)


def test_every_program_of_the_kit_declares_its_options() -> None:
    programs = [path for path in REPO.glob("launchers/*/*.py") if "= options.parse(" in path.read_text()]
    assert len(programs) > 5
    for program in programs:
        assert {"--seed", "--checkpoint-dir", "--no-checkpoint-async"} <= set(
            launcher_program_options.declared(program)
        ), program


@pytest.mark.parametrize("program", ["ddp/train_gpt.py", "fsdp/train.py", "deepspeed/train.py", "diloco/train.py"])
def test_options_of_a_function_that_the_librarys_own_functions_call(program: str) -> None:
    """add_gpt takes --lr and --warmup from add_pace."""
    assert {"--layers", "--lr", "--warmup"} <= set(launcher_program_options.declared(REPO / "launchers" / program))


def test_defaults_are_those_of_the_parser() -> None:
    """Three are not compared: they are numbers as text, or are set again after their declaration."""
    options = runpy.run_path(str(REPO / "launchers/lib/options.py"))
    parser = options["parser"](None)
    options["add_gpt"](parser)
    parsed = {action.option_strings[-1]: action.default for action in parser._actions if action.option_strings}
    declared = launcher_program_options.read_defaults(REPO / "launchers/ddp/train_gpt.py")
    shared = declared.keys() & parsed.keys() - {"--seed", "--log-every", "--profile-ranks"}
    assert {"--layers", "--steps", "--checkpoint-keep", "--attend"} <= shared
    assert {name: declared[name] for name in shared} == {name: parsed[name] for name in shared}
    # An argument of the function that declares it is no literal.
    assert "--lr" not in declared
