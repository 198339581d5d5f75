"""`kit rerun`: the same losses to the last bit, from the code, image, job and seed that the run had, whatever they are now."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.test_launchers import EXAMPLES as SMALL_EXAMPLES
from tests.cluster.test_launchers import SMALL, put, records

pytestmark = pytest.mark.cluster

# Example -> arguments instead of its own, further keys.
EXAMPLES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    **SMALL_EXAMPLES,
    "ddp": (["--epochs", "3", "--log-every", "1"], ()),
    "diloco": ([*SMALL, "--log-every", "1"], ("diloco.sync_every=4",)),
}


_SUBMITTED: dict[str, Path] = {}


def submitted(lab: Lab, example: str) -> Path:
    """A run of a small form of an example that has ended well, made once. Its seed was drawn, not given."""
    if example in _SUBMITTED:
        return _SUBMITTED[example]
    put(lab, example)
    args, more = EXAMPLES[example]
    sets = [f"args={json.dumps(args)}", "checkpoint.every=4", "checkpoint.keep=99", "checkpoint.async=false", *more]
    done = lab.run(*(word for text in sets for word in ("--set", text)))
    assert done.done.returncode == 0, done.done.stderr + done.log("batch")
    # What the job's folder holds from now on is of no matter.
    (lab.project / "job.toml").write_text("changed since\n")
    return _SUBMITTED.setdefault(example, done.folder)


def rerun(lab: Lab, *options: str) -> Path:
    done = lab.kit("rerun", *options, "--wait", check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[0])


def losses(run: Path) -> dict[str, object]:
    """Every number of the training, by group, kind and step; no times."""
    found = {}
    for file in sorted([*run.glob("metrics.jsonl"), *run.glob("replica-*/metrics.jsonl")]):
        for line in file.read_text().splitlines():
            one = json.loads(line)
            for key in ("loss", "test_loss", "accuracy"):
                if key in one:
                    found[f"{file.parent.name if file.parent != run else ''}/{one['kind']}/{one.get('step')}/{key}"] = (
                        one[key]
                    )
    return found


def manifest(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "manifest.json").read_text())
    return found


@pytest.mark.parametrize(
    "example", [pytest.param(name, marks=() if name == "ddp" else pytest.mark.slow) for name in EXAMPLES]
)
def test_a_rerun_has_the_same_losses_to_the_last_bit(lab: Lab, example: str) -> None:
    first = submitted(lab, example)
    again = rerun(lab, first.name)
    assert len(losses(first)) > 5
    assert losses(again) == losses(first)
    then, now = manifest(first), manifest(again)
    assert now["rerun_of"] == first.name
    same = ("seed", "image_digest", "workspace", "git", "world_sizes", "set_by", "records", "launcher", "shape")
    assert {key: now[key] for key in same} == {key: then[key] for key in same}
    assert lab.status(again)["rerun_of"] == first.name


def test_a_rerun_begins_at_a_checkpoint_and_leaves_the_original_alone(lab: Lab) -> None:
    first = submitted(lab, "ddp")
    before = checkpoints(first)
    steps = sorted(int(path.name[5:]) for path in (first / "checkpoints").glob("step-*"))
    again = rerun(lab, first.name, "--from-step", str(steps[1]))
    (resumed,) = [one for one in records(again) if one["kind"] == "resumed"]
    assert resumed["step"] == steps[1]
    whole, rest = losses(first), losses(again)
    assert rest.items() <= whole.items(), "what comes after that step is what came after it before"
    assert [key for key in rest if "test_loss" in key or "accuracy" in key]
    assert checkpoints(first) == before
    missing = lab.kit("rerun", first.name, "--from-step", "7777777", check=False)
    assert missing.returncode == 7
    assert f"no checkpoint of step 7777777; there are ..., {', '.join(map(str, steps[-10:]))}" in missing.stderr


def checkpoints(run: Path) -> dict[str, str]:
    folder = run / "checkpoints"
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


PROGRAM = """
import os, pathlib
said = pathlib.Path("said.txt").read_text().strip()
pathlib.Path(os.environ["KIT_RUN_DIR"], "result.txt").write_text(f"{said} {os.environ['KIT_SEED']} {os.environ['WORD']}")
"""
JOB = 'script = "program.py"\nshape = "srun"\nenv = { WORD = "a" }\n[resources]\nnodes = 1\ngpus_per_node = 1\n'


def test_code_and_keys_of_a_rerun(lab: Lab) -> None:
    """The snapshot's code by default; `--live` and `--set` change what they name, and nothing else."""
    lab.write(JOB, PROGRAM)
    (lab.project / "said.txt").write_text("submitted")
    first = lab.run("--no-container").folder
    word, seed, _ = (first / "result.txt").read_text().split()
    assert word == "submitted"
    (lab.project / "said.txt").write_text("edited")
    (lab.project / "program.py").write_text(PROGRAM.replace("WORD']", "WORD'] * 2"))
    assert (rerun(lab, first.name) / "result.txt").read_text() == f"submitted {seed} a"
    assert (rerun(lab, first.name, "--set", "env.WORD=b") / "result.txt").read_text() == f"submitted {seed} b"
    live = rerun(lab, first.name, "--live")
    assert (live / "result.txt").read_text() == f"edited {seed} aa"
    assert manifest(live)["workspace"] != manifest(first)["workspace"]


def test_an_exported_run_is_looked_at_compared_and_run_again_elsewhere(lab: Lab, tmp_path: Path) -> None:
    """Another project, as on another machine: nothing of the first one's is there but the archive."""
    lab.write(JOB, PROGRAM)
    (lab.project / "said.txt").write_text("submitted")
    first = lab.run("--no-container").folder
    seed = (first / "result.txt").read_text().split()[1]
    file = tmp_path / "run.tar.zst"
    assert lab.kit("export", first.name, "-o", str(file)).stdout == str(file)
    far = dataclasses.replace(lab, project=tmp_path / "far")
    shutil.copytree(lab.project / "clusters", far.project / "clusters")
    (far.project / ".git").mkdir()
    there = Path(far.kit("import", str(file)).stdout)
    assert there == far.project / "runs" / first.name
    facts = far.status(there)
    assert (facts["state"], facts["job_id"], facts["workspace"]) == ("COMPLETED", None, lab.status(first)["workspace"])
    assert far.kit("logs", first.name).stdout == lab.kit("logs", first.name).stdout != ""
    assert "kit rerun" in far.kit("resume", first.name, check=False).stderr
    assert far.kit("cancel", first.name, check=False).returncode != 0
    shutil.rmtree(first)
    again = rerun(far, first.name)
    assert again.parent == far.project / "runs"
    assert (again / "result.txt").read_text() == f"submitted {seed} a"
    assert "is here already: nothing was changed" in far.kit("import", str(file)).stderr
    assert far.kit("diff", first.name, again.name, check=False).returncode in {0, 1}
