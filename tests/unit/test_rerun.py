"""Inputs that `kit rerun` takes from a run, and its messages when some of them no longer exist."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kit import config, data_folders, shell
from kit.comparison import keys
from kit.errors import ConfigError, KitError, LockError, RunError
from kit.files import untrusted_files
from kit.hosts import whole_folder
from kit.planning.plan import Plan
from kit.record import checkpoint_steps, manifest, run_facts
from kit.record.manifest import Manifest
from kit.schema.run_paths import RunPaths
from kit.schema.set_by import SetBy
from kit.submission import folder, prepare_run, rerun, submit, workspace
from kit.submission.prepare_run import Prepared
from kit.sweeps import prepare as sweeps
from tests.support import make_lock, write_job

CLUSTER = """
[node]
cpus = 8
gpus = 2
[container]
runtime = "bubblewrap"
[paths]
runs = "{project}/runs"
[defaults.slurm]
partition = "PARTITION"
[qos.short]
time = "00:10:00"
account = "few"
[qos.long]
time = "2-00:00:00"
account = "many"
"""
JOB = """
name = "d"
launcher = "ddp"
image = "train-cpu"
script = "train.py"
qos = "short"
args = ["a"]
[env]
A = "1"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a job, two clusters and an image that has a lock."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "p"
    write_job(place, JOB)
    (place / "train.py").write_text("print(1)\n")
    for name in ("here", "there"):
        (place / "clusters").mkdir(exist_ok=True)
        (place / "clusters" / f"{name}.toml").write_text(CLUSTER.replace("PARTITION", name))
    put_lock(place, make_lock().sha256)
    monkeypatch.chdir(place)
    return place


def put_lock(place: Path, sha256: str) -> None:
    from kit.images import image_lock

    (place / "containers/train-cpu").mkdir(parents=True, exist_ok=True)
    image_lock.write_lock(place / "containers/train-cpu/image.lock", make_lock().model_copy(update={"sha256": sha256}))


@pytest.fixture
def run(project: Path) -> Path:
    """A run of that job, as `kit submit` leaves it, without Slurm."""
    return written(prepare_run.prepare_job(project / "job.toml", cluster="here", overrides=["env.B=2"]))


def written(made: Prepared) -> Path:
    record = manifest.make_manifest(
        made.plan,
        job_file=made.job_file,
        user="ada",
        now=datetime.now(UTC),
        slurm_version="22.05",
        workspace=workspace.record(made.scan, made.resolved, patch=False),
    )
    workspace.keep(made.scan, made.plan)
    with whole_folder.make_whole(made.plan.run_dir) as partial:
        folder.fill(partial, made.plan, made.earlier.told(record) if made.earlier else record)
    return made.plan.run_dir


def job(plan: Plan) -> dict[str, object]:
    return tomllib.loads(plan.text_of("job.toml"))


def recorded(run: Path) -> Manifest:
    return manifest.read_manifest(RunPaths(run).manifest)


def test_all_is_as_it_was_whatever_the_project_has_become(project: Path, run: Path) -> None:
    """Job file, workspace, lock and cluster's defaults are others now; what ran is in the run folder."""
    (project / "job.toml").write_text("damaged")
    (project / "train.py").unlink()
    put_lock(project, "d" * 64)
    (project / "clusters/here.toml").write_text(CLUSTER.replace("PARTITION", "new"))
    made = rerun.prepare_rerun(run)
    for name in ("job.toml", "launcher.toml", "program.sh", "locks/train-cpu.lock"):
        assert made.plan.text_of(name) == (run / name).read_text(), name
    assert made.plan.decisions.pin.digest == recorded(run).image_digest
    assert made.site.snapshot is not None
    assert recorded(run).workspace is not None
    assert made.site.snapshot.tree == recorded(run).workspace.tree  # type: ignore[union-attr]
    assert made.plan.run_id != run.name
    again = recorded(written(made))
    then = recorded(run)
    assert (again.rerun_of, again.seed, again.set_by, again.workspace) == (
        run.name,
        then.seed,
        then.set_by,
        then.workspace,
    )
    assert list(rerun.differences(made)) == []


@pytest.mark.parametrize("program", ["", 'module = "package.main"\n', 'command = ["./simulate"]\n'])
def test_a_launchers_program_and_one_of_the_users_without_a_script(project: Path, program: str) -> None:
    """The launcher's own programs are in the run folder, beside launcher.toml; without them it stands alone."""
    write_job(project, JOB.replace('script = "train.py"\nqos = "short"\nargs = ["a"]\n', f'{program}qos = "short"\n'))
    run = written(prepare_run.prepare_job(project / "job.toml", cluster="here", overrides=[]))
    assert (run / "code/train.py").is_file() is (program == "")
    assert rerun.prepare_rerun(run).plan.text_of("program.sh") == (run / "program.sh").read_text()


def test_a_batch_template_is_the_one_of_the_snapshot(project: Path) -> None:
    ejected = project / "batch.sh"
    shell.run([sys.executable, "-m", "kit", "template", "eject", str(ejected)], cwd=project)
    ejected.write_text(ejected.read_text().replace("#!/bin/bash\n", "#!/bin/bash\n# as submitted\n", 1))
    write_job(project, f'{JOB}[slurm]\ntemplate = "batch.sh"\n')
    first = written(prepare_run.prepare_job(project / "job.toml", cluster="here", overrides=[]))
    ejected.unlink()
    made = rerun.prepare_rerun(first)
    assert "# as submitted" in made.plan.text_of("batch.sh")
    assert made.plan.text_of("job.toml") == (first / "job.toml").read_text()


def test_keys_that_are_set_win_and_are_recorded(run: Path) -> None:
    made = rerun.prepare_rerun(run, overrides=["env.A=9", "resources.time=5"])
    assert job(made.plan)["env"] == {**tomllib.loads((run / "job.toml").read_text())["env"], "A": "9"}
    record = recorded(written(made))
    assert str(record.layer_of("env.A")) == str(record.layer_of("env.B")) == "--set"
    assert str(record.layer_of("env.C")) == "None"
    assert str(record.layer_of("args")).endswith("job.toml")
    assert str(record.layer_of("slurm.partition")) == "cluster here"


def test_words_of_the_command_line_are_a_layer_that_a_rerun_keeps(run: Path) -> None:
    first = written(rerun.prepare_rerun(run, overrides=["--", "b", "--lr", "2"]))
    record = recorded(first)
    assert record.layer_of("args") == SetBy(kind="words", name="-- b --lr 2", keys=("args",))
    assert (run_facts.arguments(first), run_facts.arguments(run)) == ("-- b --lr 2", None)
    again = rerun.prepare_rerun(first)
    assert again.plan.job.args == ("a", "b", "--lr", "2")
    assert recorded(written(again)).layer_of("args") == record.layer_of("args")
    assert again.resolved.args_change is None, "only new words are shown"
    other = rerun.prepare_rerun(first, cluster="there", overrides=["--", "--lr", "3"])
    assert other.resolved.args_change == (("a", "b", "--lr", "2"), ("a", "b", "--lr", "3"))
    differ = keys.between(job(again.plan), job(other.plan), record.set_by, recorded(written(other)).set_by)
    assert ("args", "-- b --lr 2", "-- --lr 3") in [(one.key, one.set_by_a, one.set_by_b) for one in differ]


def test_another_qos_brings_its_own_account_and_time(run: Path) -> None:
    found = job(rerun.prepare_rerun(run, overrides=["qos=long"]).plan)
    assert (found["slurm"]["account"], found["resources"]["time"]) == ("many", "2-00:00:00")  # type: ignore[index]
    assert found["seed"] == recorded(run).seed


def test_another_cluster_has_its_own_defaults_and_the_users_keys(run: Path) -> None:
    made = rerun.prepare_rerun(run, cluster="there", overrides=["env.A=9"])
    found = job(made.plan)
    assert found["slurm"]["partition"] == "there"  # type: ignore[index]
    assert (found["env"]["A"], found["env"]["B"], found["args"]) == ("9", "2", ["a"])  # type: ignore[index]
    assert found["seed"] == recorded(run).seed
    assert made.plan.decisions.pin.digest == recorded(run).image_digest


def test_what_may_change_the_numbers_is_named(project: Path, run: Path) -> None:
    (project / "clusters/here.toml").write_text(CLUSTER + '[network]\nNCCL_DEBUG = "WARN"\n')
    said = "\n".join(rerun.differences(rerun.prepare_rerun(run, overrides=["resources.ranks_per_node=1"])))
    assert "sums over ranks are rounded otherwise" in said
    assert "cluster here has changed since: network" in said


def test_a_point_of_a_sweep_becomes_a_run_of_its_own(project: Path) -> None:
    """Its values are keys like any other, and it finds the snapshot that all points share."""
    write_job(project, f"{JOB}[sweep.grid]\nseed = [3, 4]\n")
    prepared = sweeps.prepare_sweep(project / "job.toml", cluster="here", overrides=[])
    point = prepared.planned(prepared.points[1])
    run_dir = written(point)
    assert run_dir.parent.name == "points"
    made = rerun.prepare_rerun(run_dir)
    assert made.plan.run_dir.parent == project / "runs"
    assert made.plan.job.seed == 4
    again = recorded(written(made))
    assert str(again.layer_of("seed")).endswith("job.toml [sweep]")
    assert rerun.prepare_rerun(run_dir, cluster="there").plan.job.seed == 4


def _snapshot_gone(run: Path) -> None:
    shutil.rmtree(store_of(run).tree(tree_of(run)))


def _snapshot_damaged(run: Path) -> None:
    file = store_of(run).files_of(tree_of(run)) / "train.py"
    file.unlink()
    file.write_text("print(2)\n")


def _job_edited(run: Path) -> None:
    with (run / "job.toml").open("a") as sink:
        sink.write("# a comment\n")


def _job_gone(run: Path) -> None:
    (run / "job.toml").unlink()


def _shell(run: Path) -> None:
    change(run, interactive=True)


def _live_folder(run: Path) -> None:
    change(run, workspace={"folder": "/x"})


def _cluster_gone(run: Path) -> None:
    (run.parent.parent / "clusters/here.toml").unlink()


def change(run: Path, **facts: object) -> None:
    path = RunPaths(run).manifest
    path.write_text(json.dumps({**json.loads(path.read_text()), **facts}))


def store_of(run: Path):  # type: ignore[no-untyped-def]
    return workspace.store_of(run.parent)


def tree_of(run: Path) -> str:
    found = recorded(run).workspace
    assert found is not None
    assert found.tree is not None
    return found.tree


@pytest.mark.parametrize(
    ("damage", "error", "reason"),
    [
        (_snapshot_gone, RunError, "any more: it was pruned, removed, or is another user's"),
        (_snapshot_damaged, RunError, "is damaged: train.py"),
        (_job_edited, RunError, "job.toml: it was changed since the submit"),
        (_job_gone, RunError, "job.toml: cannot be read: No such file"),
        (_shell, RunError, "was a shell"),
        (_live_folder, RunError, "it worked in the job's folder itself (snapshot = false)"),
        (_cluster_gone, ConfigError, "no clusters/ folder holds 'here'"),
    ],
)
def test_what_is_gone_is_named(run: Path, damage: Callable[[Path], None], error: type[KitError], reason: str) -> None:
    damage(run)
    with pytest.raises(error) as caught:
        rerun.prepare_rerun(run)
    assert reason in caught.value.message


def test_an_image_that_is_gone_is_named_with_what_makes_it_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the lock of the run: the project's may name another image now."""
    made = rerun.prepare_rerun(run)
    monkeypatch.setattr("kit.slurm.embedded.find", lambda _: None)
    with pytest.raises(LockError) as caught:
        submit.require_ready(made)
    assert "is not there" in caught.value.message
    store = data_folders.image_store()
    assert caught.value.hint == (
        f"cp {run}/locks/train-cpu.lock containers/train-cpu/image.lock && kit build-image train-cpu --locked --store {store}"
    )


def test_a_run_of_an_older_kit_needs_its_image_to_be_the_locked_one(project: Path, run: Path) -> None:
    shutil.rmtree(run / "locks")
    change(run, records={}, set_by=[])
    assert rerun.prepare_rerun(run).plan.decisions.pin.digest == recorded(run).image_digest
    with pytest.raises(RunError, match="did not record which file set each key"):
        rerun.prepare_rerun(run, cluster="there")
    put_lock(project, "d" * 64)
    with pytest.raises(LockError, match=f"ran in sha256:{make_lock().sha256}, and its lock names sha256:dddd"):
        rerun.prepare_rerun(run)


def checkpoint(root: Path, name: str, content: bytes = b"weights") -> Path:
    place = root / name
    place.mkdir(parents=True)
    (place / "state.pt").write_bytes(content)
    marker = {"step": 1, "files": {"state.pt": [len(content), zlib.crc32(content)]}}
    (place / "complete.json").write_text(json.dumps(marker))
    (root / "latest").write_text(f"{name}\n")
    return place


def test_a_checkpoint_is_copied_with_a_pointer_to_it(run: Path) -> None:
    for step in (4, 8, 12):
        checkpoint(run / "checkpoints", f"step-{step:08d}")
    (run / "checkpoints/step-00000016").mkdir()  # not complete
    assert checkpoint_steps.steps(run) == [4, 8, 12]
    again = written(rerun.prepare_rerun(run, from_step=8))
    assert sorted(path.name for path in (again / "checkpoints").iterdir()) == ["latest", "step-00000008"]
    assert (again / "checkpoints/latest").read_text() == "step-00000008\n"
    copied, original = (one / "checkpoints/step-00000008/state.pt" for one in (again, run))
    assert copied.read_bytes() == b"weights"
    assert copied.stat().st_ino != original.stat().st_ino, "a program that writes into it would change the original"
    assert recorded(again).from_step == 8


def test_steps_that_every_replica_group_has(run: Path) -> None:
    for group, steps in ((0, (4, 8)), (1, (8, 12))):
        for step in steps:
            checkpoint(run / f"checkpoints/replica-{group}", f"step-{step:08d}")
    assert checkpoint_steps.steps(run) == [8]
    found = checkpoint_steps.find(run, 8)
    assert [path.parent.name for path in found.folders] == ["replica-0", "replica-1"]
    assert set(found.pointers) == {"checkpoints/replica-0/latest", "checkpoints/replica-1/latest"}


def test_megatrons_iterations(run: Path) -> None:
    (run / "checkpoints/iter_0000100").mkdir(parents=True)
    (run / "checkpoints/latest_checkpointed_iteration.txt").write_text("200")
    found = checkpoint_steps.find(run, 100)
    assert found.pointers == {"checkpoints/latest_checkpointed_iteration.txt": "100"}


@pytest.mark.parametrize(
    ("step", "reason"), [(5, "no checkpoint of step 5; there are 4, 8"), (8, "step-00000008: damaged: state.pt")]
)
def test_a_checkpoint_that_is_not_there_or_not_sound_is_refused(run: Path, step: int, reason: str) -> None:
    """Its program would begin at step 0."""
    checkpoint(run / "checkpoints", "step-00000004")
    (checkpoint(run / "checkpoints", "step-00000008") / "state.pt").write_bytes(b"weighty")
    with pytest.raises(RunError) as caught:
        rerun.prepare_rerun(run, from_step=step)
    assert reason in caught.value.message


def test_live_takes_the_folder_as_it_is_now(project: Path, run: Path) -> None:
    (project / "train.py").write_text("print(2)\n")
    made = rerun.prepare_rerun(run, live=True)
    assert made.site.snapshot is not None
    assert made.site.snapshot.tree != tree_of(run)
    assert job(made.plan) == config.load_toml(run / "job.toml")


def test_a_copy_that_shares_blocks_is_a_copy(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(os.urandom(3 << 20))
    source.chmod(0o640)
    untrusted_files.copy_sharing_blocks(source, tmp_path / "b")
    with (tmp_path / "b").open("r+b") as copy:
        copy.write(b"changed")
    assert source.read_bytes()[7:] == (tmp_path / "b").read_bytes()[7:]
    assert source.read_bytes()[:7] != b"changed"
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o640
