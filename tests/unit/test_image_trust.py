"""Signatures of images, and what of a shared store is unsafe."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kit import shell
from kit.cli import image_options
from kit.config import validate
from kit.errors import ConfigError, LockError
from kit.images import image_lock, signature, store_safety
from kit.schema.cluster import Cluster
from kit.submission import prepare_run, submit
from tests.support import REPO, make_lock, write_job

needs_ssh = pytest.mark.skipif(shell.which("ssh-keygen") is None, reason="needs ssh-keygen")


def key(folder: Path, name: str) -> tuple[Path, str]:
    """A key pair without a passphrase, and its entry under [store] signers."""
    path = folder / name
    shell.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)])
    return path, f"{name}@lab {path.with_suffix('.pub').read_text().strip()}"


@pytest.fixture
def lock_file(tmp_path: Path) -> Path:
    path = tmp_path / "containers" / "train-cpu" / image_lock.FILE
    image_lock.write_lock(path, make_lock())
    return path


@pytest.mark.parametrize("environment", [True, False])
@pytest.mark.parametrize("own", ["{project}/own", "~/own", ""])
def test_every_command_finds_the_store_by_one_rule(
    tmp_path: Path, lock_file: Path, monkeypatch: pytest.MonkeyPatch, environment: bool, own: str
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KIT_STORE", raising=False)
    if environment:
        monkeypatch.setenv("KIT_STORE", str(tmp_path / "shared"))
    paths = f'[paths]\nstore = "{own}"\n' if own else ""
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "far.toml").write_text(f"{paths}[node]\ncpus = 8\n[container]\nruntime = 'pyxis'\n")
    monkeypatch.chdir(tmp_path)
    wanted = tmp_path / ("shared" if environment else "share/kit/images")
    wanted = {"{": tmp_path / "own", "~": tmp_path / "home" / "own"}.get(own[:1], wanted)
    # far is the only cluster of the project, and so the default one.
    assert image_options.store_of(None, "far") == image_options.store_of(None) == wanted
    assert image_options.store_of(tmp_path / "x", "far") == tmp_path / "x"
    prepared = prepare_run.prepare_job(
        write_job(tmp_path, 'name = "x"\nlauncher = "ddp"\nimage = "train-cpu"\n'),
        cluster=None,
        overrides=[],
    )
    (pinned,) = prepared.plan.decisions.pins.distinct
    assert pinned.stored == str(wanted / "sha256" / f"{make_lock().sha256}.sqsh")
    with pytest.raises(LockError) as caught:
        submit.require_ready(prepared)
    assert caught.value.hint == f"run 'kit build-image train-cpu --store {wanted}'"


@needs_ssh
def test_a_signature_of_a_signer_counts_until_the_lock_changes(tmp_path: Path, lock_file: Path) -> None:
    (ada, ada_entry), (_, eve_entry) = key(tmp_path, "ada"), key(tmp_path, "eve")
    with pytest.raises(LockError, match="nobody signed the lock"):
        signature.require(lock_file, [ada_entry], what="image train-cpu")
    assert signature.sign(lock_file, ada) == lock_file.with_name("image.lock.sig")
    assert signature.require(lock_file, [eve_entry, ada_entry], what="image train-cpu").signer == "ada@lab"
    with pytest.raises(LockError, match="a key that does not belong to one of the cluster's signers"):
        signature.require(lock_file, [eve_entry], what="image train-cpu")
    with pytest.raises(LockError, match="a key that does not belong to one of the cluster's signers"):
        signature.require(lock_file, [], what="image train-cpu")
    lock_file.write_text(lock_file.read_text().replace("c0ffee", "decade"))
    with pytest.raises(LockError, match="changed after ada@lab signed it") as caught:
        signature.require(lock_file, [ada_entry], what="image train-cpu")
    assert caught.value.exit_code == 5


@needs_ssh
def test_a_signature_for_something_else_is_none(tmp_path: Path, lock_file: Path) -> None:
    ada, entry = key(tmp_path, "ada")
    shell.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(ada), "-n", "git", str(lock_file)])
    with pytest.raises(LockError):
        signature.require(lock_file, [entry], what="image train-cpu")


@needs_ssh
def test_a_run_starts_from_a_signed_image_and_from_no_other(
    tmp_path: Path, lock_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ada, ada_entry), (eve, _) = key(tmp_path, "ada"), key(tmp_path, "eve")
    (tmp_path / "clusters").mkdir()
    signers = f"[store]\nsigners = ['{ada_entry}']\n"
    (tmp_path / "clusters" / "far.toml").write_text(f"{signers}[node]\ncpus = 8\n[container]\nruntime = 'pyxis'\n")
    job = write_job(tmp_path, 'name = "x"\nlauncher = "ddp"\nimage = "train-cpu"\n')
    monkeypatch.setattr("kit.images.check_against_lock.check", lambda *_, **__: None)
    prepared = prepare_run.prepare_job(job, cluster="far", overrides=[])
    signature.sign(lock_file, ada)
    submit.require_ready(prepared)
    signature.sign(lock_file, eve)
    with pytest.raises(
        LockError, match=r"image train-cpu: .* a key that does not belong to one of the cluster's signers"
    ):
        submit.require_ready(prepared)
    other = replace(prepared, resolved=replace(prepared.resolved, project=tmp_path / "elsewhere"))
    with pytest.raises(LockError):
        submit.require_ready(other)


@needs_ssh
def test_a_signed_lock_of_another_image_is_refused_under_this_name(
    tmp_path: Path, lock_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, entry = key(tmp_path, "ada")
    other = tmp_path / "containers/mini/image.lock"
    image_lock.write_lock(other, make_lock("mini"))
    signature.sign(other, ada)
    for path in (other, signature.file_of(other)):
        (lock_file.parent / path.name).write_bytes(path.read_bytes())
    refused = "image train-cpu: its lock is that of image mini"
    with pytest.raises(LockError, match=refused):
        signature.require(lock_file, [entry], what="image train-cpu")
    (tmp_path / "clusters").mkdir()
    text = f"[store]\nsigners = ['{entry}']\n[node]\ncpus = 8\n[container]\nruntime = 'pyxis'\n"
    (tmp_path / "clusters/far.toml").write_text(text)
    monkeypatch.setattr("kit.images.check_against_lock.check", lambda *_, **__: None)
    job = write_job(tmp_path, 'name = "x"\nlauncher = "ddp"\nimage = "train-cpu"\n')
    with pytest.raises(LockError, match=refused):
        submit.require_ready(prepare_run.prepare_job(job, cluster="far", overrides=[]))


@needs_ssh
@pytest.mark.parametrize(
    ("platform", "said"),
    [("linux/arm64", ", linux/arm64"), (None, "names no platform, so the signature binds name and digest only")],
)
def test_c17_a_signature_binds_name_digest_and_platform(
    tmp_path: Path, lock_file: Path, platform: str | None, said: str
) -> None:
    """A lock of an older kit has no platform. Its signature stays valid, and verify-image says what it is for."""
    ada, entry = key(tmp_path, "ada")
    lock_file.unlink()
    image_lock.write_lock(lock_file, make_lock().model_copy(update={"platform": platform}))
    signature.sign(lock_file, ada)
    found = signature.require(lock_file, [entry], what="image train-cpu")
    assert str(found).startswith(f"signed by ada@lab: the lock of image train-cpu, sha256:{make_lock().sha256}")
    assert str(found).endswith(said)
    assert (
        image_lock.write_lock(lock_file, make_lock().model_copy(update={"platform": platform or "linux/amd64"}))
        is False
    )
    if platform:
        lock_file.write_text(lock_file.read_text().replace("arm64", "amd64"))
        with pytest.raises(LockError, match="changed after ada@lab signed it"):
            signature.require(lock_file, [entry], what="image train-cpu")


@needs_ssh
def test_c17_a_signed_lock_for_another_platform_is_refused(tmp_path: Path, lock_file: Path) -> None:
    ada, entry = key(tmp_path, "ada")
    lock_file.unlink()
    image_lock.write_lock(lock_file, make_lock().model_copy(update={"platform": "linux/amd64"}))
    signature.sign(lock_file, ada)
    shell.run(["cp", str(REPO / "containers/train-cpu/image.toml"), str(lock_file.parent)])
    assert signature.require(lock_file, [entry], what="x").platform == "linux/amd64"
    with lock_file.with_name("image.toml").open("a") as image:
        image.write('[build]\nplatform = "linux/arm64"\n')
    with pytest.raises(LockError, match=r"its lock is for linux/amd64, and .*image\.toml asks for linux/arm64"):
        signature.require(lock_file, [entry], what="x")


@needs_ssh
def test_a_copy_of_a_signed_lock_with_other_line_ends_is_refused(tmp_path: Path, lock_file: Path) -> None:
    ada, entry = key(tmp_path, "ada")
    signature.sign(lock_file, ada)
    lock_file.write_bytes(lock_file.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(LockError, match="changed after ada@lab signed it"):
        signature.require(lock_file, [entry], what="image train-cpu")


def test_signers_are_names_and_keys() -> None:
    for wrong in ("ssh-ed25519 AAAA", "ada", "ada\nssh-ed25519 AAAA", 'ada namespaces="git" ssh-ed25519 AAAA'):
        with pytest.raises(ConfigError):
            validate({"node": {"cpus": 1}, "store": {"signers": [wrong]}}, Cluster, file="x.toml")


def test_the_doctor_names_what_others_could_change(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "sha256").mkdir(parents=True)
    image = store / "sha256" / f"{'0' * 64}.sqsh"
    image.touch(mode=0o644)
    for folder in (store, store / "sha256"):
        folder.chmod(0o3775)
    assert [one for one in store_safety.problems(store) if str(store) in one] == []
    store.chmod(0o2775)
    image.chmod(0o666)
    (store / "sha256" / "link.sqsh").symlink_to(image)
    found = [one for one in store_safety.problems(store) if str(store) in one]
    assert [one.partition(": ")[2] for one in found] == [
        f"mode 2775: its group may replace other users' images: 'chmod 3775 {store}'",
        f"mode 666: others may write it: 'chmod go-w {image}'",
        "not a regular file: remove it",
    ]
    tmp_path.chmod(0o777)
    assert any("everybody may write it, and so exchange the store" in one for one in store_safety.problems(store))
    done = shell.run(
        [sys.executable, "-m", "kit", "images", "--doctor", "--store", str(store)],
        check=False,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
    )
    assert (done.returncode, len(done.stdout.splitlines()) >= 4) == (1, True)
