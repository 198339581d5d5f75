"""A run leaves as one file and comes back elsewhere: all that is needed, no secrets, and nothing from an archive that lies."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import shell
from kit.archive import archive_format, exporting, importing
from kit.archive.importing import ImportedRun
from kit.cli import app
from kit.errors import KitError, LockError, RunError, UsageError
from kit.hosts import status
from kit.images import store as images
from kit.images import store_notes
from kit.record import find_runs, reports_folder, run_facts
from kit.schema.run_paths import RunPaths
from kit.slurm.client import QueuedJob
from kit.submission import prepare_run, rerun, workspace
from tests.cluster.image_lab import needs_root, small_disk
from tests.support import write_job
from tests.unit.test_rerun import CLUSTER, JOB, project, recorded, run, tree_of, written  # noqa: F401

SECRET = "hunter2-and-more"


@pytest.fixture
def ended(run: Path) -> Path:  # noqa: F811
    """A run with logs, metrics, events, a checkpoint, and what its program wrote."""
    for name, text in {
        "logs/rank-0.log": "step 1\n",
        "metrics.jsonl": '{"kind": "final", "test_loss": 0.5}\n',
        "state/events.jsonl": '{"event": "start", "job_id": 7, "restart": 0, "nodes": "n1"}\n{"event": "end", "exit_code": 0}\n',
        "checkpoints/step-00000001/state.pt": "weights",
        "workspace/wandb/notes": "of the program",
        "logs/.hidden": "hidden",
    }.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    change(run, job_id=7)
    return run


def change(run_dir: Path, **told: object) -> None:
    path = RunPaths(run_dir).manifest
    path.write_text(json.dumps({**json.loads(path.read_text()), **told}))


@pytest.fixture
def elsewhere(tmp_path: Path, ended: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another project with a cluster of another name; `exported` are taken there, and what made them is gone."""
    place = tmp_path / "elsewhere"
    (place / "clusters").mkdir(parents=True)
    (place / ".git").mkdir()
    (place / "clusters/far.toml").write_text(CLUSTER.replace("PARTITION", "far"))
    return place


def brought(file: Path, place: Path) -> ImportedRun:
    return importing.bring_in(file, runs_dir=place / "runs", image_store=place / "store")


@pytest.mark.parametrize("ending", [".tar.zst", ".tar.gz"])
def test_there_and_back(
    ended: Path, elsewhere: Path, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, tree, then = tmp_path / f"run{ending}", tree_of(ended), recorded(ended)
    done = exporting.export(ended, file)
    assert done.left_out == ("checkpoints", "workspace")
    shutil.rmtree(tmp_path / "p")
    monkeypatch.chdir(elsewhere)
    found = brought(file, elsewhere)
    assert (found.run_dir, found.new) == (elsewhere / "runs" / ended.name, True)
    for name in (
        "logs/rank-0.log",
        "metrics.jsonl",
        "job.toml",
        "locks/train-cpu.lock",
        "batch.sh",
        "state/events.jsonl",
    ):
        assert (found.run_dir / name).is_file(), name
    assert (found.run_dir / "batch.sh").stat().st_mode & 0o777 == 0o755
    assert not (found.run_dir / "logs/.hidden").exists()
    now = recorded(found.run_dir)
    assert now.imported is not None
    assert now.model_copy(update={"imported": None}) == then
    store = workspace.store_of(elsewhere / "runs")
    assert store.damaged(store.read_listing(tree)) == []
    made = rerun.prepare_rerun(found.run_dir, cluster="far")
    assert made.site.snapshot is not None
    assert made.site.snapshot.tree == tree
    assert made.plan.job.seed == then.seed
    assert recorded(written(made)).rerun_of == ended.name


def test_without_a_name_the_newest_run_is_exported(
    ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was `Missing argument 'RUN'`, where `kit why`, `kit logs` and `kit report` take the newest run."""
    monkeypatch.chdir(ended.parent.parent)
    monkeypatch.setattr("kit.slurm.client.queue", lambda **_: {})
    app(["export", "--json", "-o", str(tmp_path / "x.tar.gz")], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["run_id"] == ended.name


def test_an_index_of_more_than_a_mebibyte_is_read(project: Path, elsewhere: Path, tmp_path: Path) -> None:  # noqa: F811
    """It failed for a workspace of 8,000 files: the bound on headers was taken for one on the index."""
    # Long names, so that fewer files make an index of this size.
    for number in range(5000):
        (project / f"{number:0200}.txt").write_text(f"{number}\n")
    made = written(prepare_run.prepare_job(project / "job.toml", cluster="here", overrides=[]))
    exporting.export(made, tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        first = tar.next()
    assert first is not None
    assert first.size > 1 << 20
    found = brought(tmp_path / "a.tar.gz", elsewhere)
    store = workspace.store_of(elsewhere / "runs")
    assert store.damaged(store.read_listing(tree_of(found.run_dir))) == []


def test_no_job_here_is_taken_for_its_own(ended: Path, elsewhere: Path, tmp_path: Path) -> None:
    """Slurm here has a job 7, too."""
    exporting.export(ended, tmp_path / "a.tar.gz")
    found = brought(tmp_path / "a.tar.gz", elsewhere)

    theirs = QueuedJob(job_id=7, state="RUNNING", reason="", nodes="n9", elapsed="1:00")
    (one,) = status.read_statuses([found.run_dir], queue=lambda _: {7: theirs})
    assert (one.job_id, one.state, one.exit_code) == (None, "COMPLETED", 0)
    assert run_facts.read_facts(found.run_dir).job_id is None
    with pytest.raises(RunError, match="no such run"):
        find_runs.find_one("7", [elsewhere / "runs"])
    (elsewhere / "runs" / ended.name / "state/events.jsonl").unlink()
    (one,) = status.read_statuses([found.run_dir], queue=lambda _: {7: theirs})
    assert one.state == "LOST"


def test_a_second_import_changes_nothing(ended: Path, elsewhere: Path, tmp_path: Path) -> None:
    exporting.export(ended, tmp_path / "a.tar.gz")
    found = brought(tmp_path / "a.tar.gz", elsewhere)
    (found.run_dir / "logs/rank-0.log").write_text("mine\n")
    again = brought(tmp_path / "a.tar.gz", elsewhere)
    assert (again.run_dir, again.new) == (found.run_dir, False)
    assert (found.run_dir / "logs/rank-0.log").read_text() == "mine\n"
    at_home = importing.bring_in(tmp_path / "a.tar.gz", runs_dir=ended.parent, image_store=tmp_path / "store")
    assert (at_home.run_dir, at_home.new) == (ended, False), "the run itself"
    change(ended, seed=4)
    with pytest.raises(RunError, match="another run has this name"):
        importing.bring_in(tmp_path / "a.tar.gz", runs_dir=ended.parent, image_store=tmp_path / "store")


def test_with_its_image(tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, ended: Path) -> None:
    content = b"hsqs" + bytes(36) + (96).to_bytes(8, "little") + bytes(48)
    sha256 = hashlib.sha256(content).hexdigest()
    store = tmp_path / "images"
    images.prepare_store(store)
    images.path(store, sha256).write_bytes(content)
    lock = (ended / "locks/train-cpu.lock").read_text()
    was = recorded(ended).image_digest.removeprefix("sha256:")
    lock = lock.replace(was, sha256).replace("size = 4096", "size = 96")
    (ended / "locks/train-cpu.lock").write_text(lock)
    records = {**recorded(ended).records, "locks/train-cpu.lock": hashlib.sha256(lock.encode()).hexdigest()}
    change(ended, image=str(images.path(store, sha256)), image_digest=f"sha256:{sha256}", records=records)
    done = exporting.export(ended, tmp_path / "a.tar.zst", with_image=True)
    assert f"image/{sha256}.sqsh" in done.index.members
    assert not any(name.startswith("image/") for name in exporting.export(ended, tmp_path / "b.tar.gz").index.members)
    found = brought(tmp_path / "a.tar.zst", elsewhere)
    assert images.path(elsewhere / "store", sha256).read_bytes() == content
    assert store_notes.read_notes(elsewhere / "store").locks == (found.run_dir / "locks/train-cpu.lock",), (
        "it is not pruned"
    )
    images.path(store, sha256).write_bytes(content[:-1] + b"x")
    with pytest.raises(LockError):
        exporting.export(ended, tmp_path / "c.tar.gz", with_image=True)
    assert not (tmp_path / "c.tar.gz").exists()


def test_secrets_stay(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("TOKEN", SECRET)
    (project / "secrets.env").write_text(f"KEY={SECRET}-too\n")
    write_job(project, f'{JOB}[secrets]\nenv = ["TOKEN"]\nfile = "secrets.env"\n')
    made = written(prepare_run.prepare_job(project / "job.toml", cluster="here", overrides=[]))
    (made / ".secrets").write_text(f"export TOKEN='{SECRET}'\n")
    (made / "logs/.secrets").write_text(SECRET)
    exporting.export(made, tmp_path / "a.tar.gz")
    assert SECRET.encode() not in gzip.decompress((tmp_path / "a.tar.gz").read_bytes())
    # Its program printed one: across the border of what is read at once.
    (made / "logs/rank-0.log").write_bytes(b"x" * ((1 << 20) - 5) + f"{SECRET}-too".encode())
    with pytest.raises(RunError, match=r"rank-0.log: holds the value of (TOKEN|KEY), a secret of the job"):
        exporting.export(made, tmp_path / "b.tar.gz")
    # Neither environment nor file has them any more; the run that lives has.
    monkeypatch.delenv("TOKEN")
    (project / "secrets.env").unlink()
    with pytest.raises(RunError, match="holds the value of TOKEN"):
        exporting.export(made, tmp_path / "b.tar.gz")
    assert not (tmp_path / "b.tar.gz").exists()


@pytest.mark.parametrize("name", ["a.zip", "a", "there.tar.gz", "none/a.tar.gz"])
def test_an_output_that_cannot_be_is_refused(ended: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "there.tar.gz").write_text("mine")
    with pytest.raises(UsageError):
        exporting.export(ended, tmp_path / name)
    assert (tmp_path / "there.tar.gz").read_text() == "mine"


def test_an_export_without_the_snapshot_is_refused(ended: Path, tmp_path: Path) -> None:
    shutil.rmtree(workspace.store_of(ended.parent).tree(tree_of(ended)))
    with pytest.raises(RunError, match="is not in"):
        exporting.export(ended, tmp_path / "a.tar.gz")


# What somebody else may have made.


Members = list[tuple[tarfile.TarInfo, bytes]]


def members_of(file: Path) -> Members:
    with tarfile.open(file) as tar:
        return [(one, (tar.extractfile(one) or io.BytesIO()).read()) for one in tar]


def packed(members: Members, file: Path) -> Path:
    with tarfile.open(file, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for one, content in members:
            tar.addfile(one, io.BytesIO(content))
    return file


def member(name: str, content: bytes = b"", **facts: Any) -> tuple[tarfile.TarInfo, bytes]:
    one = tarfile.TarInfo(name)
    one.size = len(content)
    for key, value in facts.items():
        setattr(one, key, value)
    return one, content


def with_index(members: Members, change: Callable[[dict[str, Any]], None]) -> Members:
    index = json.loads(members[0][1])
    change(index)
    return [member(archive_format.INDEX, json.dumps(index).encode()), *members[1:]]


def added(name: str, content: bytes = b"evil", **facts: Any) -> Callable[[Members], Members]:
    """A member that the index names, too, as well as it can be named."""

    def change(members: Members) -> Members:
        told = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        named = with_index(members, lambda index: index["members"].update({name: told}))
        return [*named, member(name, content, **facts)]

    return change


def _unnamed(members: Members) -> Members:
    return [*members[:2], member("run/more.sh", b"evil"), *members[2:]]


def _twice(members: Members) -> Members:
    return [*members[:3], members[2], *members[3:]]


def _another_content(members: Members) -> Members:
    one, content = members[2]
    return [*members[:2], (one, content[:-1] + b"\0"), *members[3:]]


def _another_size(members: Members) -> Members:
    one, content = members[2]
    return [*members[:2], member(one.name, content + b"x"), *members[3:]]


def _without_the_index(members: Members) -> Members:
    return members[1:]


def _as(kind: bytes) -> Callable[[Members], Members]:
    def change(members: Members) -> Members:
        one, _ = members[2]
        return [*members[:2], member(one.name, type=kind, linkname="/etc/passwd"), *members[3:]]

    return change


def _no_room(members: Members) -> Members:
    return with_index(members, lambda index: index["members"]["run/metrics.jsonl"].update(size=1 << 60))


def _another_run(members: Members) -> Members:
    return with_index(members, lambda index: index.update(run_id="another-run"))


def _upwards(members: Members) -> Members:
    return with_index(members, lambda index: index.update(run_id="../x"))


def _newer(members: Members) -> Members:
    return with_index(members, lambda index: index.update(form=2))


def _without(name: str) -> Callable[[Members], Members]:
    def change(members: Members) -> Members:
        left = [(one, content) for one, content in members if not one.name.startswith(name)]
        gone = {one.name for one, _ in members} - {one.name for one, _ in left}
        return with_index(left, lambda index: [index["members"].pop(one) for one in gone])  # type: ignore[arg-type]

    return change


def _deep(members: Members) -> Members:
    return [member(archive_format.INDEX, b"[" * 200_000), *members[1:]]


def _long_name(members: Members) -> Members:
    """Its pax header has 100 MB, and tarfile would keep them."""
    return [members[0], member("run/" + "x" * 100_000_000, b""), *members[1:]]


HOSTILE = {
    "path traversal": (added("run/../../evil.sh"), "not the name of a file"),
    "absolute": (added("/tmp/evil.sh"), "not the name of a file"),
    "hidden": (added("run/.secrets"), "not the name of a file"),
    "another top": (added("etc/passwd"), "not the name of a file"),
    "backslash": (added("run/a\\b"), "not the name of a file"),
    "a file as a folder": (added("run/metrics.jsonl/x"), "cannot be written"),
    "an image that no lock names": (
        added(f"image/{hashlib.sha256(b'evil').hexdigest()}.sqsh"),
        "no lock of the run names the image",
    ),
    "content under another name": (added(f"snapshot/objects/{'a' * 64}"), None),
    "not in the index": (_unnamed, "is not in its index"),
    "twice": (_twice, "is there twice"),
    "another content": (_another_content, "and its index says"),
    "another size": (_another_size, "bytes, and its index says"),
    "no index": (_without_the_index, "not an exported run"),
    "link": (_as(tarfile.SYMTYPE), "not a regular file"),
    "hard link": (_as(tarfile.LNKTYPE), "not a regular file"),
    "device": (_as(tarfile.CHRTYPE), "not a regular file"),
    "FIFO": (_as(tarfile.FIFOTYPE), "not a regular file"),
    "folder": (_as(tarfile.DIRTYPE), "not a regular file"),
    "too large": (_no_room, "unpacked without its images"),
    "another run": (_another_run, "its manifest is of run"),
    "an id that leads out": (_upwards, "not the id of a run"),
    "newer": (_newer, "kit-run.json: damaged: form"),
    "no manifest": (_without("run/manifest.json"), "no manifest.json"),
    "no job": (_without("run/job.toml"), "is missing, or its digest"),
    "no code": (_without("snapshot/objects"), "the code lacks the file"),
    "no listing": (_without("snapshot/listing"), "its code is not snapshot"),
    "deep": (_deep, "damaged or cut off"),
    "a name of 100 MB": (_long_name, "a header of more than a mebibyte"),
}


def left_in(place: Path) -> set[str]:
    """Every file there but the store's lock and empty folders."""
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file() and path.name != "lock"}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_archive_that_lies_leaves_nothing(ended: Path, elsewhere: Path, tmp_path: Path, case: str) -> None:
    change, reason = HOSTILE[case]
    exporting.export(ended, tmp_path / "a.tar.gz")
    file = packed(change(members_of(tmp_path / "a.tar.gz")), tmp_path / "b.tar.gz")
    before = left_in(elsewhere)
    if reason is None:  # nobody asks for that content: it does not get into the store
        brought(file, elsewhere)
        assert not any("a" * 64 in name for name in left_in(elsewhere))
        return
    with pytest.raises(KitError) as caught:
        brought(file, elsewhere)
    assert reason in caught.value.message, caught.value.message
    assert "\n" not in caught.value.message
    assert left_in(elsewhere) == before
    assert not (tmp_path / "evil.sh").exists()


@pytest.mark.parametrize("ending", [".tar.zst", ".tar.gz"])
def test_an_archive_that_is_cut_off_or_damaged_leaves_nothing(
    ended: Path, elsewhere: Path, tmp_path: Path, ending: str
) -> None:
    exporting.export(ended, tmp_path / f"a{ending}")
    whole = (tmp_path / f"a{ending}").read_bytes()
    file, before = tmp_path / f"b{ending}", left_in(elsewhere)
    for length in (0, 3, 10, 600, len(whole) // 3, len(whole) // 2, len(whole) - 3000):
        file.write_bytes(whole[:length])
        with pytest.raises(RunError):
            brought(file, elsewhere)
        assert left_in(elsewhere) == before, length
    for place in (20, len(whole) // 2, len(whole) * 2 // 3):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises(KitError):
            brought(file, elsewhere)
        assert left_in(elsewhere) == before, place
    file.write_bytes(whole)
    assert brought(file, elsewhere).new


def test_an_import_that_is_interrupted_leaves_nothing(
    ended: Path, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporting.export(ended, tmp_path / "a.tar.gz")
    before = left_in(elsewhere)

    def interrupted(*_: object, **__: object) -> Iterator[None]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("kit.archive.importing._checked", interrupted)
        brought(tmp_path / "a.tar.gz", elsewhere)
    assert left_in(elsewhere) == before
    assert brought(tmp_path / "a.tar.gz", elsewhere).new


KILLED = """
import os, signal, sys
from pathlib import Path
from kit.cli import app
from kit.archive import importing
write, left = importing._write, [int(sys.argv[3])]
def killed(*words):
    write(*words)
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
importing._write = killed
place = Path(sys.argv[2])
importing.bring_in(Path(sys.argv[1]), runs_dir=place / "runs", image_store=place / "store")
"""


def test_an_import_that_is_killed_is_no_run_and_the_next_one_removes_what_it_left(
    ended: Path, elsewhere: Path, tmp_path: Path
) -> None:
    done = exporting.export(ended, tmp_path / "a.tar.gz")
    before = left_in(elsewhere)
    for count in (1, len(done.index.members) // 2, len(done.index.members)):
        argv = [sys.executable, "-c", KILLED, str(tmp_path / "a.tar.gz"), str(elsewhere), str(count)]
        assert shell.run(argv, check=False).returncode == -signal.SIGKILL
        assert find_runs.find_all([elsewhere / "runs"]) == []
        assert len(list((elsewhere / "runs").iterdir())) == 1, "of the one before nothing is left"
    assert left_in(elsewhere) != before
    found = brought(tmp_path / "a.tar.gz", elsewhere)
    assert {path.name for path in (elsewhere / "runs").iterdir()} == {found.run_dir.name, f".snapshots-{os.geteuid()}"}


@needs_root
def test_a_full_disk_leaves_nothing(
    ended: Path, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ended / "logs/rank-0.log").write_bytes(os.urandom(300_000))
    exporting.export(ended, tmp_path / "a.tar.gz")
    with small_disk(tmp_path / "small", "size=128k") as small:
        for ending in (".tar.zst", ".tar.gz"):
            with pytest.raises(RunError, match=r"(?s)cannot be written: .*No space left on device"):
                exporting.export(ended, small / f"b{ending}")
            assert list(small.iterdir()) == []
        with pytest.raises(RunError, match=r"it would have 0\.\d MB, and .* has 0\.1 MB left"):
            brought(tmp_path / "a.tar.gz", small)
        # Somebody else fills it meanwhile.
        monkeypatch.setattr("kit.archive.importing._require_room", lambda *_: None)
        with pytest.raises(RunError, match="No space left on device"):
            brought(tmp_path / "a.tar.gz", small)
        assert left_in(small) == set()
    assert brought(tmp_path / "a.tar.gz", elsewhere).new


def test_what_is_no_archive(tmp_path: Path, elsewhere: Path) -> None:
    for name, content in {"text": b"hello", "tar": tarfile.TarFile, "empty": b""}.items():
        file = tmp_path / name
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            shell.run(["tar", "-czf", str(file), "-C", str(tmp_path), "text"])
        with pytest.raises(RunError, match="not an exported run"):
            brought(file, elsewhere)
    with pytest.raises(RunError, match="cannot be read"):
        brought(tmp_path / "none", elsewhere)


PRIVATE = {
    ".ssh/id_ed25519": "x",
    ".netrc": "machine x login a password b",
    ".env": "WANDB_API_KEY=x",
    ".aws/credentials": "x",
    "deep/id_rsa": "x",
    ".env.local": "x",
    "key.txt": "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA",
    "config.json": '{"auths": {"x": {"auth": "y"}}}',
    "notes.py": f"token = 'hf_{'A' * 34}'",
    "far.txt": f"{' ' * ((1 << 20) - 10)}AKIA{'A' * 16}",
}
HARMLESS = {
    ".ssh/id_ed25519.pub": "ssh-ed25519 AAAA",
    ".ssh/config": "Host x",
    ".env.example": "WANDB_API_KEY=",
    "env.py": "hf_model = 1",
    "id_rsa_notes.md": "-----BEGIN CERTIFICATE-----",
}


def test_keys_and_logins_of_the_workspace_are_named_and_not_exported(project: Path, tmp_path: Path) -> None:  # noqa: F811
    for name, text in (PRIVATE | HARMLESS).items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    made = prepare_run.prepare_job(project / "job.toml", cluster="here", overrides=[])
    (warned,) = [one for one in made.warnings if "keys or logins" in one.problem]
    assert ".netrc" in warned.problem
    assert "and 1 more" in warned.problem
    assert warned.hint.startswith("echo /.")
    assert warned.hint.endswith(f" >> {project}/.kitignore")
    run_dir = written(made)
    with pytest.raises(RunError, match="what looks like a key, a login or a token would be in the file") as caught:
        exporting.export(run_dir, tmp_path / "a.tar.gz")
    assert not (tmp_path / "a.tar.gz").exists()
    assert caught.value.hint.startswith(f"kit export {run_dir.name} --with-private")
    named = {line.partition("/files/")[2] for line in caught.value.message.splitlines()[1:]}
    # Files with the same content are one object.
    assert named <= set(PRIVATE)
    assert {".netrc", ".env", "key.txt", "config.json", "notes.py", "far.txt"} <= named
    done = exporting.export(run_dir, tmp_path / "a.tar.gz", with_private=True)
    assert done.file.is_file()


@pytest.mark.parametrize("name", sorted(PRIVATE))
def test_each_kind_of_key_is_found(project: Path, tmp_path: Path, name: str) -> None:  # noqa: F811
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).write_text(PRIVATE[name])
    run_dir = written(prepare_run.prepare_job(project / "job.toml", cluster="here", overrides=[]))
    with pytest.raises(RunError) as caught:
        exporting.export(run_dir, tmp_path / "a.tar.gz")
    assert caught.value.message.endswith(f"/files/{name}")


def test_what_only_looks_similar_is_exported(project: Path, tmp_path: Path) -> None:  # noqa: F811
    for name, text in HARMLESS.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    overrides = ['env.EOS_TOKEN="</s>"', "env.MAX_TOKENS=2048", 'env.TOKENIZERS_PARALLELISM="false"']
    made = prepare_run.prepare_job(project / "job.toml", cluster="here", overrides=overrides)
    assert not [one for one in made.warnings if "secret" in one.problem or "keys" in one.problem]
    assert exporting.export(written(made), tmp_path / "a.tar.gz").file.is_file()


def test_a_token_in_the_job_is_named_without_its_value(project: Path, tmp_path: Path) -> None:  # noqa: F811
    token = f"hf_{'B' * 34}"
    overrides = [f'env.HF_TOKEN="{token}"', 'env.WANDB_API_KEY="0123456789abcdef"', f'args=["--token", "{token}"]']
    made = prepare_run.prepare_job(project / "job.toml", cluster="here", overrides=overrides)
    warned = {one.key: one for one in made.warnings if "looks like a secret" in one.problem}
    assert set(warned) == {"env.HF_TOKEN", "env.WANDB_API_KEY", "args[1]"}
    assert warned["env.HF_TOKEN"].hint.endswith('env = ["HF_TOKEN"]')
    with pytest.raises(RunError) as caught:
        exporting.export(written(made), tmp_path / "a.tar.gz")
    assert "job.toml: env.WANDB_API_KEY" in caught.value.message
    assert token not in caught.value.message
    assert not any(token in str(one) for one in warned.values())


# What the program wrote.


def test_the_programs_outputs_by_pattern(ended: Path, elsewhere: Path, tmp_path: Path) -> None:
    """In its working folder and in the run folder; not the code as it was submitted, nor what a link leads to."""
    for name, text in {
        "workspace/out/model.pt": "weights",
        "workspace/out/deep/curve.csv": "1,2",
        "workspace/out/.cache": "hidden",
        "workspace/train.py": "print(1)\n",
        "workspace/notes.txt": "other",
    }.items():
        (ended / name).parent.mkdir(parents=True, exist_ok=True)
        (ended / name).write_text(text)
    (ended / "workspace/out/passwd").symlink_to("/etc/passwd")
    (ended / "workspace/etc").symlink_to("/etc")
    done = exporting.export(ended, tmp_path / "a.tar.gz", outputs=["out"])
    written_by_program = {name for name in done.index.members if name.startswith(("run/workspace", "run/checkpoints"))}
    assert written_by_program == {"run/workspace/out/model.pt", "run/workspace/out/deep/curve.csv"}
    done = exporting.export(ended, tmp_path / "b.tar.gz", outputs=["**/*.pt", "*.txt"])
    assert {name for name in done.index.members if name.endswith((".pt", ".txt"))} == {
        "run/workspace/out/model.pt",
        "run/checkpoints/step-00000001/state.pt",
        "run/workspace/notes.txt",
    }
    found = brought(tmp_path / "a.tar.gz", elsewhere)
    assert (found.run_dir / "workspace/out/deep/curve.csv").read_text() == "1,2"
    (ended / "workspace/train.py").write_text("print(2)\n")
    done = exporting.export(ended, tmp_path / "c.tar.gz", outputs=["*.py"])
    assert "run/workspace/train.py" in done.index.members, "the program changed it"


@pytest.mark.parametrize("pattern", ["outt/*", "etc/*", "train.py", "../p/*", "/etc/passwd", "", "logs/*"])
def test_a_pattern_without_outputs_names_what_there_is(ended: Path, tmp_path: Path, pattern: str) -> None:
    (ended / "workspace/etc").symlink_to("/etc")
    (ended / "workspace/train.py").write_text("print(1)\n")
    with pytest.raises(UsageError) as caught:
        exporting.export(ended, tmp_path / "a.tar.gz", outputs=[pattern])
    assert not (tmp_path / "a.tar.gz").exists()
    if pattern in {"../p/*", "/etc/passwd", ""}:
        assert "not a path in the program's working folder" in caught.value.message
        return
    assert caught.value.message.endswith("there are: checkpoints, wandb")
    words = caught.value.hint.split()
    assert exporting.export(ended, tmp_path / "a.tar.gz", outputs=words[4:]).file.is_file(), "the line works"


def test_a_secret_in_an_output_is_found(ended: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds for the code holds for outputs."""
    (ended / "workspace/out.txt").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n")
    with pytest.raises(RunError, match="what looks like a key"):
        exporting.export(ended, tmp_path / "a.tar.gz", outputs=["out.txt"])


def test_reports_and_exports_are_no_part_of_the_code(project: Path) -> None:  # noqa: F811
    """Their folder ignores itself, for git and for snapshots; a folder of the project's own of that name is left alone."""

    def tree() -> str:
        made = prepare_run.prepare_job(project / "job.toml", cluster="here", overrides=[])
        assert made.scan is not None
        return made.scan.tree.hash

    before = tree()
    folder = reports_folder.take()
    (folder / "digits-1.html").write_text("<p>")
    assert (folder, tree()) == (project / "reports", before)
    assert reports_folder.take() == folder
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "tables.py").write_text("print(1)\n")
    changed = tree()
    assert changed != before
    assert reports_folder.take() == project / "kit-reports"
    (project / "kit-reports/a.html").write_text("<p>")
    assert tree() == changed
    assert [one.name for one in folder.iterdir()] == ["tables.py"]
    shell.run(["git", "init", "--quiet", "."], cwd=project)
    listed = shell.run(["git", "status", "--porcelain", "--untracked-files=all"], cwd=project).stdout
    assert "kit-reports" not in listed


def test_a_report_writes_through_no_link_that_a_clone_or_a_colleague_made(project: Path, tmp_path: Path) -> None:  # noqa: F811
    """`kit report` replaced the text of the file to which `kit-reports/.gitignore` led."""
    kept = tmp_path / "bashrc"
    kept.write_text("alias\n")
    for name in ("reports", "kit-reports"):
        (project / name).mkdir()
        (project / name / ".gitignore").symlink_to(kept)
    with pytest.raises(RunError, match="kit-reports: cannot be written: File exists"):
        reports_folder.take()
    assert kept.read_text() == "alias\n"
