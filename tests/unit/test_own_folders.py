"""Folders of the kit in a folder that others may write: their maker's alone. C11, C12."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from kit import shell
from kit.errors import RunError
from kit.files import own_folders
from kit.hosts import whole_folder
from kit.images import store_safety
from kit.snapshots import scan
from kit.snapshots.store import Store
from kit.ssh import shell_program
from kit.submission import folder, warnings
from tests.support import make_site, plan_of, write_job
from tests.unit.test_remote import sh

NOBODY = 65534
JOB = 'name = "digits"\nlauncher = "ddp"\n[resources]\nnodes = 2\ngpus_per_node = 2\n'


def share_by_acl(path: Path) -> None:
    """`setfacl -d -m u:NOBODY:rwX -m g::rwX`: as acl_ea_header of Linux has it, version 2 and (tag, bits, id) for each entry."""
    every = (0x01, 7, -1), (0x02, 7, NOBODY), (0x04, 7, -1), (0x10, 7, -1), (0x20, 5, -1)
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *one) for one in every)
    try:
        os.setxattr(path, "system.posix_acl_default", value)
    except OSError as error:
        pytest.skip(f"no ACLs on this file system: {error}")


def test_c12_a_run_folder_takes_no_default_acl(tmp_path: Path) -> None:
    """The umask does not count below a default ACL: lib/ and state/ could be written by whoever it names."""
    runs = tmp_path / "runs"
    runs.mkdir()
    share_by_acl(runs)
    with whole_folder.make_whole(runs / "run") as partial:
        (partial / "lib").mkdir()
        (partial / "state/deep").mkdir(parents=True)
    made = [runs / "run", *(path for path in (runs / "run").rglob("*") if path.is_dir())]
    assert [(path.name, stat.S_IMODE(path.stat().st_mode)) for path in made if path.stat().st_mode & 0o022] == []
    assert [path.name for path in made if any("posix_acl" in name for name in os.listxattr(path))] == []


@pytest.mark.parametrize("mask", [0, 0o002])
def test_c19_the_umask_opens_no_run_folder(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with whole_folder.make_whole(tmp_path / "run") as partial:
            (partial / "logs").mkdir()
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o022 for path in (tmp_path / "run", tmp_path / "run/logs")] == [0, 0]


def test_c12_a_shared_folder_of_runs_gets_the_sticky_bit_from_its_owner(tmp_path: Path) -> None:
    """Without it, each who may write the folder may rename a waiting run, and put one of their own in its place."""
    os.chown(tmp_path, -1, _group_of_others())
    tmp_path.chmod(0o2775)
    assert own_folders.replaceable_by(tmp_path) == "its group"
    with whole_folder.make_whole(tmp_path / "run"):
        pass
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o3775
    assert own_folders.replaceable_by(tmp_path) == ""


def place_over_ssh(runs: Path, tmp_path: Path) -> None:
    """A run folder with `state/`, as a login node takes it."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        member = tarfile.TarInfo("state")
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(member)
    sent = sink.getvalue()
    constants = {"RUNS": runs, "STORE": "/nowhere", "RUN": "test-1", "KIND": "place", "SIZE": len(sent)}
    constants |= {"SHA": hashlib.sha256(sent).hexdigest(), "RIGHT": "", "AGAIN": "", "OLD": 0, "KEY": "", "SCRIPT": ""}
    reply = sh(shell_program.text("submit", constants, mark="mark"), tmp_path, data=sent)
    assert reply.texts["result"] == "placed", reply.stderr


def test_c12_a_login_node_keeps_a_shared_folder_of_runs_from_others(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    place_over_ssh(runs, tmp_path)
    assert not runs.stat().st_mode & stat.S_ISVTX
    os.chown(runs, -1, _group_of_others())
    runs.chmod(0o2775)
    place_over_ssh(runs, tmp_path)
    assert stat.S_IMODE(runs.stat().st_mode) == 0o3775


def test_c12_a_run_folder_over_ssh_takes_no_default_acl(tmp_path: Path) -> None:
    if shell.which("setfacl") is None:
        pytest.skip("setfacl is not installed: apt install acl")
    runs = tmp_path / "runs"
    runs.mkdir()
    share_by_acl(runs)
    place_over_ssh(runs, tmp_path)
    made = [runs / "test-1", runs / "test-1/state"]
    assert [path.name for path in made if any("posix_acl" in name for name in os.listxattr(path))] == []


def test_a_folder_of_one_user_keeps_its_bits(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with whole_folder.make_whole(tmp_path / "run"):
        pass
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def _chown(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    os.chown(root, NOBODY, NOBODY)


def _link(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))
    root.symlink_to(root.with_name("elsewhere"))


@pytest.mark.parametrize("squat", [lambda root: root.chmod(0o777), lambda root: root.chmod(0o770), _chown, _link])
def test_c11_a_store_that_another_user_may_have_made_is_not_used(tmp_path: Path, squat: object) -> None:
    """Its trees had a file more than their listings, which ran with the next job."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job/train.py").write_text("one\n")
    store = Store(tmp_path / ".snapshots-7")
    store.root.mkdir()
    squat(store.root)  # type: ignore[operator]
    with pytest.raises(RunError, match="no run takes its files from there"):
        store.put(scan.scan(tmp_path / "job", index=tmp_path / "index", asked_by="job.toml"))
    assert not (store.root / "trees").exists()


def test_c11_a_new_store_is_closed_to_others_below_a_default_acl(tmp_path: Path) -> None:
    share_by_acl(tmp_path)
    (tmp_path / "job").mkdir()
    (tmp_path / "job/train.py").write_text("one\n")
    store = Store(tmp_path / "runs/.snapshots-7")
    store.put(scan.scan(tmp_path / "job", index=store.index(tmp_path / "job"), asked_by="job.toml"))
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700


# ---- the batch script checks what it is about to run ----


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder as a submit writes it."""
    run = tmp_path / "runs" / "digits-1"
    with whole_folder.make_whole(run) as partial:
        plan = plan_of(write_job(tmp_path, JOB), site=make_site(run_dir=run))
        folder.write_files(plan, partial)
        for name in plan.folders:
            (partial / name).mkdir(parents=True, exist_ok=True)
    return run


def batch(run_dir: Path) -> tuple[int, str]:
    """Without a job, a script whose folder is sound says that it needs one, with 2. Its own text is Slurm's copy."""
    kept = run_dir.parent.parent / "slurm_script"
    if not kept.exists():
        kept.write_text((run_dir / "batch.sh").read_text())
    done = shell.run(["bash", str(kept)], env={"PATH": os.environ["PATH"]}, check=False)
    return done.returncode, done.stderr


def test_a_run_folder_as_it_was_submitted_is_run(run_dir: Path) -> None:
    assert batch(run_dir)[0] == 2
    # What Python makes of a module is not of the run folder.
    (run_dir / "lib/__pycache__").mkdir()
    (run_dir / "lib/__pycache__/kit_rank.pyc").touch()
    (run_dir / "bin/py-spy").symlink_to("/bin/true")
    assert batch(run_dir)[0] == 2


def test_c19_the_log_that_slurm_made_by_the_submitters_umask_is_closed_to_others(run_dir: Path) -> None:
    """By umask 000 everybody could write into batch.log, which kit why and kit status read."""
    log = run_dir / "logs/batch.log"
    log.touch()
    log.chmod(0o666)
    kept = run_dir.parent.parent / "slurm_script"
    kept.write_text((run_dir / "batch.sh").read_text())
    with log.open("ab") as sink:
        done = subprocess.run(
            ["bash", str(kept)], env={"PATH": os.environ["PATH"]}, stdout=sink, stderr=sink, umask=0, check=False
        )
    assert (done.returncode, stat.S_IMODE(log.stat().st_mode)) == (2, 0o644), log.read_text()


def _append(run: Path) -> None:
    with (run / "lib/log.sh").open("a") as library:
        library.write(f"touch {run.parent}/ran\n")


def _swap(run: Path) -> None:
    """As swap.sh of another user does in a folder of runs without the sticky bit."""
    run.rename(run.with_name(".moved"))
    shell.run(["cp", "-r", str(run.with_name(".moved")), str(run)])
    _append(run)


def _link_lib(run: Path) -> None:
    (run / "lib").rename(run / "lib.old")
    (run / "lib").symlink_to("lib.old")


def _give(run: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    os.chown(run / "state", NOBODY, NOBODY)


CHANGES = {
    "a library": _append,
    "the whole folder": _swap,
    "a file more": lambda run: (run / "lib/more.sh").write_text(f"touch {run.parent}/ran\n"),
    "a program": lambda run: (run / "bin/checked.sh").unlink(),
    "the group may write": lambda run: (run / "lib").chmod(0o775),
    "all may write the state": lambda run: (run / "state").chmod(0o777),
    "a link": _link_lib,
    "another owner": _give,
}


@pytest.mark.parametrize("change", CHANGES)
def test_c12_nothing_of_a_changed_run_folder_is_run(run_dir: Path, change: str) -> None:
    assert batch(run_dir)[0] == 2
    CHANGES[change](run_dir)
    code, said = batch(run_dir)
    assert (code, (run_dir.parent / "ran").exists()) == (72, False)
    assert "the run folder is not what was submitted" in said


# ---- what is said at submit and by the doctor, because no check holds against it ----


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A store whose sha256/ and image belong to whoever built first. C16."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    sha256 = tmp_path / "store" / "sha256"
    sha256.mkdir(parents=True)
    sha256.chmod(0o3775)
    (sha256 / f"{'a' * 64}.sqsh").write_bytes(b"hsqs")
    for path in (sha256, *sha256.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    return tmp_path / "store"


def test_c16_the_doctor_names_the_owner_of_a_folder_and_of_an_image(shared: Path) -> None:
    """The owner of a folder with the sticky bit may rename every file in it, and an image's owner may write into it."""
    found = [one for one in store_safety.problems(shared) if one.startswith(f"{shared}/")]
    assert [one.partition(": ")[2].partition(",")[0] for one in found] == ["belongs to nobody (65534)"] * 2


def test_c16_the_doctor_names_a_folder_above_that_its_group_may_write(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    tmp_path.chmod(0o775)
    os.chown(tmp_path, -1, _group_of_others())
    assert f"{tmp_path}: its group may write it" in "\n".join(store_safety.problems(tmp_path / "store"))


def _group_of_others() -> int:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another group")
    return NOBODY


@pytest.mark.parametrize("stage", [False, True])
def test_c16_a_submit_names_an_image_that_its_owner_can_change(tmp_path: Path, shared: Path, stage: bool) -> None:
    made = plan_of(write_job(tmp_path, JOB), site=make_site(run_dir=tmp_path / "runs/digits-1"))
    (stored,) = (shared / "sha256").iterdir()
    pin = replace(made.decisions.pins.own, stored=str(stored), image="/of/the/node.sqsh" if stage else str(stored))
    changed = replace(made, decisions=replace(made.decisions, pins=replace(made.decisions.pins, own=pin)))
    found = [one for one in warnings.warn_of_others(changed) if one.key == "image"]
    assert [("who can change it" in one.problem, 'stage = "node"' in one.hint) for one in found] == [(True, True)] * (
        not stage
    )


@pytest.mark.parametrize(("flags", "is_named"), [(0x10, False), (0x100000, False), (0x80000, True)])
def test_c16_an_image_that_not_even_its_owner_can_change_is_not_named(
    shared: Path, monkeypatch: pytest.MonkeyPatch, flags: int, is_named: bool
) -> None:
    """The immutable bit and fs-verity; 0x80000 stands for a file in extents. Not every file system of a test has them."""
    monkeypatch.setattr("fcntl.ioctl", lambda *_: struct.pack("=Q", flags))
    (image,) = (shared / "sha256").iterdir()
    assert any(one.startswith(f"{image}: belongs to") for one in store_safety.problems(shared)) == is_named


def test_c16_the_immutable_bit_is_read_from_the_file_system(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.touch()
    assert not own_folders.is_unchangeable(image)
    if shell.run(["chattr", "+i", str(image)], check=False).returncode != 0:
        pytest.skip("the immutable bit needs root and a file system that has it")
    try:
        assert own_folders.is_unchangeable(image)
    finally:
        shell.run(["chattr", "-i", str(image)])


def test_c12_a_submit_names_the_folder_in_which_others_can_replace_the_run(tmp_path: Path) -> None:
    made = plan_of(write_job(tmp_path, JOB), site=make_site(run_dir=tmp_path / "runs/digits-1"))
    assert [one for one in warnings.warn_of_others(made) if one.key == "paths.runs"] == []
    os.chown(tmp_path, -1, _group_of_others())
    tmp_path.chmod(0o2775)
    (one,) = (one for one in warnings.warn_of_others(made) if one.key == "paths.runs")
    assert (one.hint, "its group" in one.problem) == (f"chmod +t {tmp_path}", True)
