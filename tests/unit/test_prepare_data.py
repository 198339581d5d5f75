"""`kit prepare-data`, with a Python of the machine's; and what the manifest of a run says of the data that it trains on."""

from __future__ import annotations

import getpass
import importlib.util
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kit import prepare_data, shell
from kit.record import manifest
from kit.submission.prepare_run import prepare_job
from tests.support import REPO

JOB = """
name = "gpt"
launcher = "ddp"
script = "/kit/run/code/train_gpt.py"
image = "train-cpu"
{mounts}
args = [{args}]
[resources]
nodes = 1
gpus_per_node = 1
"""
MOUNT = 'mounts = [{{ source = "{here}", target = "/data" }}, {{ source = "{here}/inner", target = "/data/set/deep" }}]'


def kit(*words: object) -> shell.Completed:
    argv = [sys.executable, "-m", "kit", "prepare-data", *map(str, words)]
    return shell.run(argv, cwd=REPO, check=False, timeout=60)


def text(folder: Path) -> Path:
    path = folder / "text.jsonl"
    path.write_text("".join(json.dumps({"text": f"Document {number}"}) + "\n" for number in range(200)))
    return path


@pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="numpy is not installed")
def test_a_set_is_made_and_its_digest_told(tmp_path: Path) -> None:
    words = (text(tmp_path), tmp_path / "set", "--no-container", "--python", sys.executable)
    done = kit(*words, "--validation", 0.2, "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["documents"]["read"] == 200
    assert 15 < made["documents"]["validation"] < 70
    assert made["digest"] == json.loads((tmp_path / "set/prepared.json").read_text())["digest"]
    again = kit(*words)
    assert (again.returncode, "--force" in again.stderr) == (7, True)
    assert "documents with" in kit(*words, "--force").stdout


def test_a_preparation_is_refused_before_anything_starts(tmp_path: Path) -> None:
    source = text(tmp_path)
    for words, code, said in (
        ((source,), 2, "kit prepare-data SRC… DST"),
        ((tmp_path / "none", tmp_path / "set"), 7, "no such file or folder"),
        ((tmp_path, tmp_path / "set"), 2, "cannot be written into"),
        ((source, tmp_path / "set", "--tokenizer", tmp_path / "gone.json"), 7, "no such file or folder"),
        ((source, tmp_path / "set", "--image", "train-cpuu"), 3, "train-cpu"),
        ((source, tmp_path / "set", "--validation", 1), 2, "--validation"),
    ):
        done = kit(*words)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "set").exists()


def test_the_tokenizer_decides_what_the_image_must_hold() -> None:
    held = {which: prepare_data._package(which) for which in ("bytes", "a.json", "llama", "cl100k_base.tiktoken")}
    assert held == {
        "bytes": (),
        "a.json": ("tokenizers",),
        "llama": ("tokenizers",),
        "cl100k_base.tiktoken": ("tiktoken",),
    }


@pytest.mark.parametrize(
    ("args", "mounts", "named"),
    [
        ('"--data", "/data/set"', MOUNT, "/data/set"),
        ('"--steps", "3", "--data=/data/set"', MOUNT, "/data/set"),
        ('"--data", "/data/set/deep"', MOUNT, "/data/set/deep"),
        ('"--data", "set"', "", "set"),
        ('"--data", "/data/nowhere"', MOUNT, None),
        ('"--data", "/data"', MOUNT, None),
        ('"--steps", "3"', "", None),
        ("", "", None),
        ('"--data"', "", None),
    ],
)
def test_the_manifest_has_the_digest_of_prepared_data(
    tmp_path: Path, args: str, mounts: str, named: str | None
) -> None:
    for folder, digest in (("set", "sha256:outer"), ("inner", "sha256:inner")):
        (tmp_path / folder).mkdir()
        described = {"format": "kit-tokens", "version": 1, "digest": digest}
        (tmp_path / folder / "prepared.json").write_text(json.dumps(described))
    (tmp_path / "prepared.json").write_text('{"format": "of something else", "digest": "sha256:no"}')
    (tmp_path / "job.toml").write_text(JOB.format(args=args, mounts=mounts.format(here=tmp_path)))
    plan = prepare_job(tmp_path / "job.toml", cluster="local", overrides=["container.runtime=bubblewrap"]).plan
    made = manifest.make_manifest(
        plan, job_file=tmp_path / "job.toml", user=getpass.getuser(), now=datetime.now(UTC), slurm_version="1"
    )
    expected = "sha256:inner" if named == "/data/set/deep" else "sha256:outer"
    assert made.data == ({named: expected} if named else {})
