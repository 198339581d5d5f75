"""Words after `--`: what they change in the program's arguments, and what is refused because it would be a guess."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kit import config, shell
from kit.cli.program_words import as_overrides
from kit.config.program_arguments import ProgramWords, changes, merged, split, twins, with_keys
from kit.errors import ConfigError
from kit.planning import rank_files
from kit.planning.plan import Plan
from kit.schema.set_by import SetBy
from kit.submission import prepare_run
from kit.sweeps import prepare as sweeps
from kit.sweeps.points.program_options import with_option
from tests.support import REPO, write_job

JOB = 'name = "digits"\nlauncher = "ddp"\nscript = "train.py"\nargs = ["--lr", "0.1", "--amp"]\n'


@pytest.mark.parametrize(
    ("args", "typed", "made"),
    [
        ("--lr 0.1", "--lr 0.05", "--lr 0.05"),
        ("--lr 0.1", "--lr=0.05", "--lr=0.05"),
        ("--lr=0.1 --amp", "--lr 0.05", "--lr 0.05 --amp"),
        ("--lr 0.1", "--epochs 3", "--lr 0.1 --epochs 3"),
        ("", "--epochs 3 data.txt", "--epochs 3 data.txt"),
        ("--shift 3", "--shift -3", "--shift -3"),
        ("--shift 3", "--shift -1e-3", "--shift -1e-3"),
        ("--shift -3 --amp", "--shift 2", "--shift 2 --amp"),
        ("--sizes 1 2 3 --amp", "--sizes 4 5", "--sizes 4 5 --amp"),
        ("--data a --lr 1 --data b", "--data c", "--data c --lr 1"),
        ("--data a --lr 1", "--data c --data d", "--data c --data d --lr 1"),
        ("--amp", "--amp", "--amp"),
        ("--verbose", "--verbose 2", "--verbose 2"),
        ("train --lr 0.1", "more.txt", "train --lr 0.1 more.txt"),
        ("--config=a.yaml train", "--config=b.yaml", "--config=b.yaml train"),
        ("--batch-size 8", "--batch_size 4", "--batch-size 8 --batch_size 4"),
        ("--amp", "--no-amp", "--amp --no-amp"),
        ("--lr 0.1 -- a", "--epochs 3", "--lr 0.1 --epochs 3 -- a"),
        ("--lr 0.1 -- a", "--lr 2 -- b", "--lr 2 -- a b"),
        ("--lr 0.1", "--lr 2 -- -b", "--lr 2 -- -b"),
        ("--input x", "--input -", "--input -"),
        ("-n 4", "-n 8", "-n 8"),
    ],
)
def test_words_replace_by_name_and_are_appended_otherwise(args: str, typed: str, made: str) -> None:
    words = ProgramWords(added=tuple(typed.split()))
    assert " ".join(merged(args.split(), words)) == made


@pytest.mark.parametrize(
    ("args", "typed", "meant"),
    [
        ("--verbose data.txt", "--verbose", "--verbose"),
        ("--config a.yaml train", "--config b.yaml", "--config b.yaml train"),
        ("--config a.yaml train", "--config=b.yaml --x", "--config=b.yaml train --x"),
    ],
)
def test_a_guess_is_refused_and_the_hint_works(args: str, typed: str, meant: str) -> None:
    given = ["--", *typed.split()]
    with pytest.raises(ConfigError, match="is not clear") as caught:
        merged(args.split(), split(given)[1])
    [fault] = caught.value.faults
    set_, _, rest = fault.hint.removeprefix("--set ").partition(" ")
    _, words = split([set_, *rest.split()])
    assert merged(args.split(), words) == tuple(meant.split())


def test_set_gives_an_option_and_leaves_one_out() -> None:
    keys, words = split(
        ["resources.nodes=2", "args.--lr=0.05", "args.--amp=false", 'args.--sizes=["1", 2]', "args.-v=true"]
    )
    assert keys == ("resources.nodes=2",)
    assert merged(["--lr", "0.1", "--amp"], words) == ("--lr", "0.05", "--sizes", "1", "2", "-v")
    assert merged(["--amp", "--optimizer.lr", "1"], split(["args.--optimizer.lr=2"])[1]) == (
        "--amp",
        "--optimizer.lr",
        "2",
    )
    with pytest.raises(ConfigError, match="no such option") as caught:
        merged(["--lr", "0.1"], split(["args.--rl=false"])[1])
    assert caught.value.faults[0].allowed == "--lr"


def test_further_keys_stay_keys() -> None:
    assert with_keys(["a=1", "--", "--lr", "2"], ["debug=true"]) == ["a=1", "debug=true", "--", "--lr", "2"]
    assert with_keys(["a=1"], ["debug=true"]) == ["a=1", "debug=true"]


def test_the_command_line_gives_words_to_set() -> None:
    typed = ["submit", "job.toml", "--set", "a=1", "--", "--lr", "", "--", "x"]
    assert as_overrides(typed) == [
        "submit",
        "job.toml",
        "--set",
        "a=1",
        "--set=--",
        "--set=--lr",
        "--set=",
        "--set=--",
        "--set=x",
    ]
    assert as_overrides(["submit", "--"]) == ["submit"]
    assert as_overrides(["why", "--", "x"]) == ["why", "--", "x"]


def test_changes_are_listed_by_option() -> None:
    before = ["go", "--lr", "0.1", "--amp", "--same", "1"]
    after = ["go", "--lr", "0.05", "--same", "1", "--out", "a b"]
    assert changes(before, after) == ["--lr 0.1 -> --lr 0.05", "--amp -> left out", "--out 'a b' added"]
    assert changes(["go"], ["go", "far"]) == ["far added"]


def test_another_spelling_and_the_opposite_are_told() -> None:
    words = ProgramWords(added=("--no-amp", "--batch_size", "4"))
    [first, second] = twins(merged(["--amp", "--batch-size", "8"], words), words)
    assert "--batch-size as well as --batch_size" in first
    assert "--amp as well as --no-amp" in second
    assert [*twins(["--lr", "1"], ProgramWords(added=("--lr", "1")), ["python", "t.py", "--lr=2"])]


def test_they_are_a_layer_of_their_own(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB)
    made = config.load_job(job, cluster="local", overrides=["seed=3", "--", "my file", "--lr", "0.05"])
    assert made.job.args == ("--lr", "0.05", "--amp", "my file")
    assert made.job.seed == 3
    assert made.args_change == (("--lr", "0.1", "--amp"), made.job.args)
    assert SetBy(kind="words", name="-- 'my file' --lr 0.05", keys=("args",)) in made.set_by
    assert config.load_job(job, cluster="local").args_change is None


def test_a_wrong_args_of_the_file_is_the_files_fault(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB.replace('"0.1"', "0.1"))
    with pytest.raises(ConfigError) as caught:
        config.load_job(job, cluster="local", overrides=["--", "--epochs", "3"])
    assert [fault.key for fault in caught.value.faults] == ["args[1]"]


@pytest.mark.parametrize("table", ["roles", "stages"])
def test_several_programs_need_the_key_of_one(tmp_path: Path, table: str) -> None:
    job = write_job(tmp_path, JOB + f'[{table}.a]\nargs = ["--x", "1"]\n[{table}.b]\nargs = ["--lr", "1"]\n')
    with pytest.raises(ConfigError) as caught:
        config.load_job(job, cluster="local", overrides=["--", "--lr", "2"])
    [fault] = caught.value.faults
    assert fault.hint == f'--set \'{table}.b.args=["--lr", "2"]\''


def test_a_swept_list_replaces_the_whole_list() -> None:
    assert with_option(["--sizes", "1", "2", "--amp"], "--sizes", (3, 4)) == ["--sizes", "3", "4", "--amp"]
    assert with_option(["--lr", "1", "data.txt"], "--lr", 2) == ["--lr", "2", "data.txt"]


@pytest.mark.parametrize(
    ("example", "typed", "hint"),
    [
        ("megatron-lm", "--lr 0.5", "--set megatron.lr=0.5"),
        ("megatron-lm", "--bf16", "--set megatron.bf16=true"),
        ("megatron-lm", "--save /x", "leave --save out"),
        ("diloco", "--sync-every=4", "--set diloco.sync_every=4"),
        ("deepspeed-zero3-offload", "--ds-config x", "leave --ds-config out"),
    ],
)
def test_an_option_that_the_kit_writes_has_a_key(example: str, typed: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _example(example, "--", *typed.split())
    assert [fault.hint for fault in caught.value.faults] == [hint]
    if hint.startswith("--set "):
        _example(example, hint.removeprefix("--set "))


def test_the_words_come_after_what_a_table_writes() -> None:
    words = rank_files.program_words(made := _example("megatron-lm", "--", "--my-own", "1").decisions, made.main)
    assert words[-2:] == ["--my-own", "1"]
    assert "--num-layers" in words


def test_a_misspelt_option_of_the_launchers_program_is_the_command_lines_fault() -> None:
    with pytest.raises(ConfigError) as caught:
        _example("ddp", "--", "--lrr", "1")
    [fault] = caught.value.faults
    assert (fault.file, fault.key) == ("the words after --", "--lrr")


def _example(name: str, *overrides: str) -> Plan:
    folder = REPO / "examples" / name
    return prepare_run.prepare_job(folder / "job.toml", cluster="local", overrides=[*overrides], containers=False).plan


def test_a_sweep_changes_every_point_and_refuses_a_swept_option(tmp_path: Path) -> None:
    job = write_job(tmp_path, JOB + "[sweep.grid]\nargs.--lr = [1, 2]\n")
    (tmp_path / "train.py").write_text("print(1)\n")

    def points(*typed: str) -> list[tuple[str, ...]]:
        made = sweeps.prepare_sweep(job, cluster="local", overrides=["--", *typed], containers=False)
        return [run.plan.job.args for run in made.runs]

    assert points("--epochs", "3") == [("--lr", value, "--amp", "--epochs", "3") for value in ("1", "2")]
    with pytest.raises(ConfigError, match=r"args\.--lr: the sweep sets this key too"):
        points("--lr", "3")


def test_the_command_line_shows_what_changes(tmp_path: Path) -> None:
    write_job(tmp_path, JOB)
    (tmp_path / "train.py").write_text("print(1)\n")
    done = shell.run(
        [
            sys.executable,
            "-m",
            "kit",
            "render",
            "--no-container",
            "--set",
            "args.--amp=false",
            "--",
            "--lr=0.05",
            "a b",
        ],
        cwd=tmp_path,
        env={**os.environ, "DEBUG": "1", "XDG_CACHE_HOME": str(tmp_path)},
    )
    told = [line for line in done.stderr.splitlines() if line.startswith("kit: args: ")]
    assert told == [
        "kit: args: --lr 0.1 -> --lr=0.05",
        "kit: args: --amp -> left out",
        "kit: args: 'a b' added",
    ]
    assert "    --lr=0.05\n    'a b'\n)" in done.stdout
