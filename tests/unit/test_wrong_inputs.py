"""Forty wrong inputs of a first hour, as people type them: each is answered with what is wrong and a line that is right."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from kit import cli
from kit.cli import program_words
from kit.errors import KitError
from tests.support import REPO

HEAD = 'name = "a"\nlauncher = "ddp"\n'
RENDER = "render --cluster local --no-container"

# The job file's text, the command, the exit code, and a part of the answer. A blank text is a job that is right.
FORTY: tuple[tuple[str, str, int, str], ...] = (
    ("script = train.py", RENDER, 3, 'script = "train.py"'),
    ("name: b", RENDER, 3, 'in TOML: name = "b"'),
    ("debug = True", RENDER, 3, "try: debug = true"),
    ('name = "b"', RENDER, 3, "is there twice"),
    ("[resources]\nnodes = 1\n[resources]\nnodes = 2", RENDER, 3, "'[resources]' is there twice"),
    ("[resources]\nnodes = 0", RENDER, 3, "try: nodes = 1"),
    ("[resources]\ngpus = 8", RENDER, 3, "it is resources.gpus_per_node\n  try: gpus_per_node = 8"),
    ("gpus = 8", RENDER, 3, "try: [resources]\n       gpus_per_node = 8"),
    ("[resources]\ngpus_per_node = 99", RENDER, 3, "99 is more than a node of local has"),
    ('[resources]\ntime = "2h"', RENDER, 3, 'time = "02:00:00"'),
    ('[resources]\nmem = "64 GB"', RENDER, 3, 'memory = "64G"'),
    ('partition = "gpu"', RENDER, 3, 'try: [slurm]\n       partition = "gpu"'),
    ('[slurm]\nextra = ["--partition=gpu"]', RENDER, 3, 'try: [slurm]\n       partition = "gpu"'),
    ('args = "--lr 0.1"', RENDER, 3, 'args = ["--lr", "0.1"]'),
    ('args = ["--lr", 0.1]', RENDER, 3, 'args = ["--lr", "0.1"]'),
    (
        "[args]\nlr = 0.1\namp = true\nfast = false\nbetas = [0.9, 1]",
        RENDER,
        3,
        '["--lr", "0.1", "--amp", "--betas", "0.9", "1"]',
    ),
    ("[env]\nDEBUG = true", RENDER, 3, 'DEBUG = "true"'),
    ("[env]\nTHREADS = 4", RENDER, 3, 'THREADS = "4"'),
    ('[env]\nMY-VAR = "x"', RENDER, 3, "env.MY_VAR"),
    ('[env]\nRANK = "0"', RENDER, 3, "RANK is set by the kit for each rank"),
    ('mounts = ["/data:/data"]', RENDER, 3, 'mounts = [{ source = "/data", target = "/data" }]'),
    ('script = "trains.py"', RENDER, 3, 'script = "train.py"'),
    ('python = "3.11"', RENDER, 3, 'python = "python3.11"'),
    ('setup = "module load cuda"', RENDER, 3, 'setup = ["module load cuda"]'),
    ('command = "python train.py"', RENDER, 3, 'command = ["python", "train.py"]'),
    ('image = "pytorch"', "render --cluster local", 3, "kit init --image pytorch --from train-cpu"),
    ('image = "nvcr.io/nvidia/pytorch:24.01-py3"', "render --cluster local", 3, "kit import-image"),
    ("[sweep]\nlr = [0.1, 0.2]", "sweep", 3, "[sweep.grid]\n       args.--lr = [0.1, 0.2]"),
    ("[sweep.grid]\nlr = [0.1, 0.2]", "sweep --cluster local --no-container", 3, "write args.--lr in place of lr"),
    ("", "sweep --cluster local", 2, "'kit submit' submits a job without [sweep]"),
    ("", "submit --cluster nope", 3, "kit cluster detect nope"),
    ("", "submit train.py", 3, "try: kit run train.py"),
    ("", "submit lr=0.1", 3, "-- --lr=0.1 for an argument"),
    ("", "submit --nodes 2 --follow", 2, "try: kit submit --set resources.nodes=2 --follow"),
    ("", "submit --gpus=8", 2, "try: kit submit --set resources.gpus_per_node=8"),
    ("", "submit --lr 0.1", 2, "try: kit submit -- --lr 0.1"),
    ("", "submit --flow", 2, "Did you mean --follow?"),
    ("", "submit --set nodes=2", 3, "--set resources.nodes=2"),
    ("", "run train.py --lr 0.1", 2, "try: kit run train.py -- --lr 0.1"),
    ("", "run trains.py", 2, "train.py, if you mean that"),
    ("", "run train.py --gpus two", 2, "a whole number is expected"),
    ("", "results nope", 7, "'kit sweep' submits one"),
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a program, and no user's own settings."""
    shutil.copytree(REPO / "clusters", tmp_path / "clusters")
    (tmp_path / "train.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


def answered(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of the command line; what it prints is the test's."""
    monkeypatch.setattr(sys, "argv", ["kit", *program_words.as_overrides(words)])
    try:
        return cli._run()
    except KitError as error:
        return cli._failed(error)


@pytest.mark.parametrize("case", FORTY, ids=[f"{text or words}"[:40] for text, words, *_ in FORTY])
def test_a_wrong_input_of_the_first_hour(
    project: Path,
    case: tuple[str, str, int, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text, words, code, said = case
    (project / "job.toml").write_text(f"{HEAD}{text}\n")
    assert answered(words.split(), monkeypatch) == code
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert "Traceback" not in shown.err
