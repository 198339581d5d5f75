"""Snapshots: files that they take, files that they refuse, and a store that stays whole whatever happens to its writers."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pathspec import GitIgnoreSpec

from kit import config
from kit.errors import ConfigError, RunError
from kit.files import untrusted_files
from kit.snapshots import chosen_files, patch, scan, tree_listing
from kit.snapshots.scan import Scan
from kit.snapshots.store import Store
from kit.snapshots.tree_listing import ListedFile
from kit.submission import prepare_run, workspace
from kit.sweeps import prepare as sweeps
from tests.support import write_job

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]


def git(folder: Path, *words: str) -> str:
    return subprocess.run([*GIT, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def write(folder: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with a commit: two files, and a rule that ignores *.log."""
    folder = write(tmp_path / "repo", {"train.py": "one\n", "lib/a.py": "a\n", ".gitignore": "*.log\n"})
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def taken(folder: Path, **options: object) -> Scan:
    return scan.scan(folder, index=folder.parent / "index.json", asked_by="job.toml", **options)  # type: ignore[arg-type]


def paths(folder: Path, **options: object) -> set[str]:
    return {entry.path for entry in taken(folder, **options).tree.entries}


def put(folder: Path, into: Store) -> Path:
    done = scan.scan(folder, index=into.index(folder), asked_by="job.toml")
    return into.put(done) / "files"


def test_what_is_never_code_is_the_same_as_by_pathspec() -> None:
    rules = GitIgnoreSpec.from_lines(chosen_files._NEVER)
    names = (".git", "__pycache__", ".venv", "a", ".gitx", "b.venv")
    for parts in (one for depth in (1, 2, 3) for one in itertools.product(names, repeat=depth)):
        for path in ("/".join(parts), "/".join(parts) + "/"):
            assert chosen_files._OnlyNever().match_file(path) == rules.match_file(path), path


def test_changed_and_new_files_are_taken_and_deleted_and_ignored_ones_are_not(repo: Path) -> None:
    write(repo, {"train.py": "two\n", "new.py": "new\n", "x.log": "noise\n"})
    (repo / "lib/a.py").unlink()
    assert paths(repo) == {"train.py", "new.py", ".gitignore"}


def test_a_job_in_a_folder_of_a_repository_takes_that_folder(repo: Path) -> None:
    assert paths(repo / "lib") == {"a.py"}


def test_kitignore_holds_with_git_and_without(repo: Path, tmp_path: Path) -> None:
    write(repo, {".kitignore": "lib/\n"})
    assert "lib/a.py" not in paths(repo)
    plain = write(tmp_path / "plain", {"a.py": "", "data/x": "", ".kitignore": "/data\n", "__pycache__/a.pyc": ""})
    assert paths(plain) == {"a.py", ".kitignore"}


def test_a_folder_that_git_ignores_is_taken_as_it_is(repo: Path) -> None:
    write(repo, {".gitignore": "/scratch/\n", "scratch/job/train.py": "x"})
    assert paths(repo / "scratch/job") == {"train.py"}


def test_what_the_caller_names_is_left_out(repo: Path) -> None:
    write(repo, {"runs/r/batch.sh": "", "data/a": "", "logs/a-1.out": "", "logs/readme": ""})
    found = paths(repo, without=[repo / "runs", repo / "data", Path("/elsewhere")], rules=["/logs/a-*.out"])
    assert found == {"train.py", "lib/a.py", ".gitignore", "logs/readme"}


def test_the_commands_own_output_is_left_out(repo: Path) -> None:
    """`kit submit >said.txt 2>errors.txt` in the job's folder changed its own files, and was refused."""
    code = "import sys; from pathlib import Path; from kit.snapshots.chosen_files import choose\n"
    code += "print(*choose(Path(sys.argv[1]), asked_by='job.toml').files, sep='\\n')"
    with (repo / "said.txt").open("w") as said, (repo / "errors.txt").open("w") as errors:
        subprocess.run([sys.executable, "-c", code, str(repo)], check=True, stdout=said, stderr=errors)
    assert set((repo / "said.txt").read_text().split()) == {"train.py", "lib/a.py", ".gitignore"}


def test_submodules_and_repositories_inside_are_taken_and_one_never_fetched_is_empty(
    repo: Path, tmp_path: Path
) -> None:
    other = write(tmp_path / "other", {"sub.py": "sub\n"})
    for folder in (other, write(repo / "inner", {"inner.py": "x"})):
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "x")
    git(repo, "submodule", "add", "-q", str(other), "sub")
    write(repo, {"sub/added.py": "x"})
    assert {"sub/sub.py", "sub/added.py", "inner/inner.py"} <= paths(repo)
    shutil.rmtree(repo / "sub")
    (repo / "sub").mkdir()
    assert not any(path.startswith("sub/") for path in paths(repo))


def test_a_repository_that_git_will_not_read_is_refused(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo / ".git/config").write_text("[core\n")
    with pytest.raises(ConfigError, match="git does not say which files"):
        taken(repo)


def test_without_git_its_rules_still_hold(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(repo, {"x.log": "noise"})
    monkeypatch.setattr("kit.shell.which", lambda _name: None)
    assert paths(repo) == {"train.py", "lib/a.py", ".gitignore"}


def test_modes_links_and_other_things(repo: Path, tmp_path: Path) -> None:
    (repo / "train.py").chmod(0o750)
    (repo / "lib/a.py").chmod(0o600)
    (repo / "near").symlink_to("lib/a.py")
    (repo / "lib/out").symlink_to("../../data")
    os.mkfifo(repo / "fifo")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(repo / "socket"))
        # git lists neither of the two; without it they are seen, and said.
        (repo / ".git").rename(tmp_path / "git")
        done = taken(repo)
    assert done.passed == ("fifo", "socket") or set(done.passed) == {"fifo", "socket"}
    assert done.outward == (f"lib/out -> {tmp_path}/data",)
    entries = done.tree.by_path
    assert entries["train.py"].kind == "program"
    assert entries["lib/a.py"].kind == "file"
    assert entries["near"] == ListedFile("near", "link", "lib/a.py")
    tree = Store(tmp_path / "s").put(done) / "files"
    assert os.access(tree / "train.py", os.X_OK)
    assert not (tree / "lib/a.py").stat().st_mode & 0o100
    assert (tree / "near").readlink() == Path("lib/a.py")
    assert not (tree / "fifo").exists()


def test_large_files_and_sums_are_refused_by_name(repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (repo / "model.bin").open("wb") as file:
        file.truncate(3_000_000_000)
    with pytest.raises(ConfigError) as caught:
        taken(repo)
    assert "snapshot: a run takes its workspace with it, and files over 50 MB are data: model.bin (3000 MB)" in str(
        caught.value
    )
    assert 'mounts = [{ source = "model.bin", target = "/workspace/model.bin" }]' in str(caught.value)
    (repo / "model.bin").unlink()
    for number in range(11):
        with (repo / f"part-{number}").open("wb") as file:
            file.truncate(49_000_000)
    with pytest.raises(ConfigError, match=r"has 539 MB, and a run takes 500 MB with it at most; the largest: part-9"):
        taken(repo)
    monkeypatch.setattr(chosen_files, "MOST_FILES", 10)
    with pytest.raises(ConfigError, match="more than 10 files"):
        taken(repo)


def test_a_workspace_of_many_files_gets_a_warning(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = write_job(repo, 'name = "a"\nlauncher = "ddp"\nscript = "train.py"\n')
    resolved = config.load_job(job, cluster="local")
    done = taken(repo)
    assert [*workspace.warnings(done, resolved)] == []
    monkeypatch.setattr(workspace, "MANY_FILES", len(done.tree.entries) - 1)
    (said,) = workspace.warnings(done, resolved)
    assert f"{repo} has {len(done.tree.entries)} files: each is copied" in said.problem


def said_to_an_ordinary_user(folder: Path) -> str:
    """What a scan says to a user who owns the folder and may not read all of it; root becomes one, in another process."""
    if os.geteuid() != 0:
        with pytest.raises(ConfigError) as caught:
            taken(folder)
        return str(caught.value)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    for path in folder.parents[:-2]:
        path.chmod(path.stat().st_mode | 0o011)
    reader, writer = os.pipe()
    if not (child := os.fork()):
        with os.fdopen(writer, "w") as sink:
            try:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                os.environ["HOME"] = "/nonexistent"
                taken(folder)
            except BaseException as error:  # noqa: BLE001 - the test reads it
                sink.write(f"{error}")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as source:
        said = source.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("by_git", [True, False])
def test_a_file_that_may_not_be_read_is_named(repo: Path, tmp_path: Path, *, by_git: bool) -> None:
    if not by_git:
        (repo / ".git").rename(tmp_path / "git")
    (repo / "train.py").chmod(0)
    said = said_to_an_ordinary_user(repo)
    assert "job.toml: snapshot: train.py cannot be read: Permission denied" in said
    assert "chmod u+r train.py" in said


@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("by_git", [True, False])
def test_a_folder_that_may_not_be_read_is_named(repo: Path, tmp_path: Path, *, by_git: bool, tracked: bool) -> None:
    """git passes over it with a warning, and the run would have lacked its files."""
    if not by_git:
        (repo / ".git").rename(tmp_path / "git")
    name = "lib" if tracked else "new"
    write(repo, {"new/b.py": "b\n"})
    (repo / name).chmod(0)
    said = said_to_an_ordinary_user(repo)
    (repo / name).chmod(0o755)
    assert f"job.toml: snapshot: the folder {name} cannot be read: Permission denied" in said
    assert f"chmod u+rx {name}" in said


def test_a_fifo_beside_the_files_of_a_repository_is_said(repo: Path) -> None:
    """git lists none."""
    for name in ("lib/fifo", "noise.log", "left-out"):
        os.mkfifo(repo / name)
    write(repo, {".kitignore": "left-out\n"})
    done = taken(repo)
    assert done.by_git
    assert done.passed == ("lib/fifo",)
    assert "lib/fifo" not in done.tree.by_path


def test_a_file_that_cannot_be_read_is_named(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = untrusted_files.open_regular

    def refuse(path: Path) -> object:
        if path.name == ".kitignore":
            return whole(path)
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("kit.files.untrusted_files.open_regular", refuse)
    with pytest.raises(ConfigError) as caught:
        taken(repo)
    assert [fault.problem for fault in caught.value.faults][-1] == "train.py cannot be read: Permission denied"
    assert len(caught.value.faults) == 3


def test_a_file_that_changes_while_it_is_read_is_refused(repo: Path) -> None:
    path, done = repo / "train.py", threading.Event()
    path.write_bytes(b"x" * 20_000_000)

    def grow() -> None:
        with path.open("ab") as file:
            while not done.wait(0.001):
                file.write(b"x")
                file.flush()

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        with pytest.raises(ConfigError, match=r"train.py changes while it is read"):
            taken(repo)
    finally:
        done.set()
        writer.join()


def test_what_was_read_before_is_not_read_again(repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = Store(tmp_path / "s")
    monkeypatch.setattr(scan, "_COARSEST_NS", -(10**12))  # as if the files were old
    first = put(repo, kept)
    read: list[Path] = []
    whole = untrusted_files._open

    def noted(path: Path | str) -> tuple[int, int]:
        read.append(Path(path))
        return whole(path)

    monkeypatch.setattr("kit.files.untrusted_files._open", noted)
    assert put(repo, kept) == first
    assert {path.name for path in read if path.is_relative_to(repo)} == {".kitignore"}
    read.clear()
    write(repo, {"lib/a.py": "b\n"})
    second = put(repo, kept)
    assert {path.name for path in read if path.is_relative_to(repo)} == {".kitignore", "a.py"}
    assert (second / "lib/a.py").read_text() == "b\n"
    assert (first / "lib/a.py").read_text() == "a\n"
    assert (first / "train.py").samefile(second / "train.py")


def test_a_file_that_was_just_written_is_read_again(repo: Path, tmp_path: Path) -> None:
    kept = Store(tmp_path / "s")
    put(repo, kept)
    seen = (repo / "train.py").stat()
    (repo / "train.py").write_text("two\n")
    # Same inode, same size, and the time that it had: only ctime could tell, and it may be too coarse.
    os.utime(repo / "train.py", ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert (put(repo, kept) / "train.py").read_text() == "two\n"


def test_the_store_is_closed_to_others_and_read_only(repo: Path, tmp_path: Path) -> None:
    kept = Store(tmp_path / "s")
    tree = put(repo, kept)
    assert kept.root.stat().st_mode & 0o777 == 0o700
    assert (tree / "train.py").stat().st_mode & 0o777 == 0o444


def test_the_hash_names_everything_and_the_listing_is_read_back(tmp_path: Path) -> None:
    names = ["a b", "back\\slash", "line\nbreak", "ünï", os.fsdecode(b"byte-\xff"), "d/e/f"]
    folder = write(tmp_path / "w", dict.fromkeys(names, "x"))
    (folder / "link\n").symlink_to("a b")
    (folder / "a b").chmod(0o755)
    done = taken(folder)
    assert tree_listing.parse(done.tree.text, name="x") == done.tree
    into = Store(tmp_path / "s")
    tree = into.put(done)
    check = subprocess.run(["sha256sum", "--check", "--quiet", "../listing"], cwd=tree / "files", check=False)
    assert check.returncode == 0
    before = done.tree.hash
    (folder / "a b").chmod(0o644)
    assert taken(folder).tree.hash != before


@pytest.mark.parametrize(
    "line",
    [
        f"{'0' * 64}  ../out",
        f"{'0' * 64}  /etc/passwd",
        f"{'0' * 64}  a//b",
        '# link ["../x", "y"]',
        '# link ["x"]',
        "# other",
        f"{'0' * 63}  a",
        f"{'0' * 64}  b\n{'0' * 64}  a",
        f"{'0' * 64}  a\n{'0' * 64}  a",
        f'# link ["a", "/etc"]\n{"0" * 64}  a/passwd',
        "",
    ],
)
def test_a_hostile_listing_is_refused(line: str) -> None:
    text = f"# kit workspace, form 1\n{line}\n".encode()
    with pytest.raises(RunError, match="x: not the listing of a workspace, or damaged"):
        tree_listing.parse(text, name="x")


def test_a_change_in_the_second_of_the_commit_is_in_the_patch(repo: Path) -> None:
    """Same size, same time: git compares the contents only if the file is not older than its index, and so for a copy of it."""
    git(repo, "config", "core.trustctime", "false")
    at = time.time() - 60
    os.utime(repo / "train.py", (at, at))
    git(repo, "update-index", "--refresh")
    size = (repo / "train.py").stat().st_size
    (repo / "train.py").write_text("x" * size)
    for path in ("train.py", ".git/index"):
        os.utime(repo / path, (at, at))
    assert f"+{'x' * size}" in patch.against_commit(taken(repo))


def test_the_patch_makes_the_workspace_of_the_commit(repo: Path, tmp_path: Path) -> None:
    before = git(repo, "count-objects", "-v"), (repo / ".git/index").read_bytes()
    write(repo, {"train.py": "two\n", "lib/new.py": "new\n"})
    (repo / "bin").write_bytes(bytes(range(256)))
    (repo / "lib/a.py").unlink()
    text = patch.against_commit(taken(repo))
    assert (git(repo, "count-objects", "-v"), (repo / ".git/index").read_bytes()) == before
    git(tmp_path, "clone", "-q", str(repo), "clone")
    (tmp_path / "p").write_text(text)
    git(tmp_path / "clone", "apply", "../p")
    assert taken(tmp_path / "clone").tree.hash == taken(repo).tree.hash
    assert workspace.patch(taken(write(tmp_path / "plain", {"a": ""}))) == ""


def test_a_clean_workspace_has_no_patch(repo: Path) -> None:
    assert patch.against_commit(taken(repo)) == ""


def test_a_file_that_changes_between_plan_and_submit_is_refused(repo: Path, tmp_path: Path) -> None:
    kept = Store(tmp_path / "s")
    done = taken(repo)
    write(repo, {"train.py": "other\n"})
    with pytest.raises(RunError, match=r"train.py was changed while the job was submitted"):
        kept.put(done)
    assert list((kept.root / "trees").iterdir()) == []
    (repo / "train.py").unlink()
    with pytest.raises(RunError, match=r"train.py was removed while the job was submitted"):
        kept.put(done)


def test_a_full_disk_leaves_nothing(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Store(tmp_path / "s")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.link", full)
    with pytest.raises(RunError, match="No space left on device") as caught:
        put(repo, kept)
    assert caught.value.hint == "free some space, or set paths.runs of the cluster"
    assert list((kept.root / "trees").iterdir()) == []


def test_where_no_file_can_be_linked_it_is_copied(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, _target: Path) -> None:
        raise OSError(1 if source.exists() else 2, "no")

    monkeypatch.setattr("os.link", refuse)
    assert (put(repo, Store(tmp_path / "s")) / "train.py").read_text() == "one\n"


_PUT = """
import sys
from pathlib import Path
from kit.snapshots import scan
from kit.snapshots.store import Store
store, folder = Store(Path(sys.argv[1])), Path(sys.argv[2])
print(store.put(scan.scan(folder, index=store.index(folder), asked_by="job.toml")))
"""


def test_two_at_once_make_one_tree(tmp_path: Path) -> None:
    folder = write(tmp_path / "w", {f"{n}.py": str(n) for n in range(300)})
    argv = [sys.executable, "-c", _PUT, str(tmp_path / "s"), str(folder)]
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {one.communicate()[0] for one in both}
    assert [one.returncode for one in both] == [0, 0]
    assert len(said) == 1
    assert len(list((tmp_path / "s/trees").iterdir())) == 1


def test_a_kill_in_the_middle_leaves_nothing_half(tmp_path: Path) -> None:
    folder = write(tmp_path / "w", {f"{n}.py": str(n) for n in range(2000)})
    kept = Store(tmp_path / "s")
    argv = [sys.executable, "-c", _PUT, str(kept.root), str(folder)]
    one = subprocess.Popen(argv, stdout=subprocess.PIPE)
    while len(list(kept.root.glob("trees/.partial-*/files/*"))) < 100:
        assert one.poll() is None
        time.sleep(0.002)
    one.send_signal(signal.SIGKILL)
    one.wait()
    left = [*kept.root.glob("trees/.partial-*")]
    assert left
    assert [path for path in (kept.root / "trees").iterdir() if path not in left] == []
    for path in left:
        os.utime(path, (0, 0))
    tree = put(folder, kept)
    assert len(list(tree.iterdir())) == 2000
    assert [path.name for path in (kept.root / "trees").iterdir()] == [tree.parent.name]


def test_pruning_keeps_what_is_used_or_young(repo: Path, tmp_path: Path) -> None:
    kept = Store(tmp_path / "s")
    hashes = []
    for text in ("one", "two", "three"):
        write(repo, {"train.py": text})
        hashes.append(put(repo, kept).parent.name)
    used, old, _young = hashes
    for tree in (used, old):
        os.utime(kept.tree(tree), (0, 0))
    assert kept.prune({used}, dry_run=True) == [old]
    assert kept.holds(old)
    assert kept.prune({used}) == [old]
    assert {path.name for path in (kept.root / "trees").iterdir()} == set(hashes) - {old}
    # A file's name may be linked to by another machine at this moment: it goes a day later.
    assert (kept.root / "objects").exists()
    with pytest.raises(RunError, match="is not in"):
        kept.read_listing(old)


def test_an_object_that_was_left_short_is_made_anew(repo: Path, tmp_path: Path) -> None:
    """Objects are not flushed one by one: a power cut may leave an empty one, and another tree with the same file would have it."""
    kept = Store(tmp_path / "s")
    short = put(repo, kept) / "lib/a.py"
    short.chmod(0o644)
    os.truncate(short, 0)
    write(repo, {"train.py": "another tree\n"})
    tree = put(repo, kept)
    assert (tree / "lib/a.py").read_text() == "a\n"
    assert kept.damaged(kept.read_listing(tree.parent.name)) == []
    assert kept.damaged(kept.read_listing(short.parent.parent.parent.name)) == ["lib/a.py"]


def test_a_prune_that_is_killed_leaves_no_half_tree(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree with its listing and without its files would have been taken for whole by the next submit."""
    kept = Store(tmp_path / "s")
    tree = put(repo, kept).parent
    os.utime(tree, (0, 0))

    def killed(path: Path, **_: object) -> None:
        (path / "files/train.py").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("kit.snapshots.store.shutil.rmtree", killed)
        kept.prune(set())
    assert not kept.holds(tree.name)
    assert kept.damaged(kept.read_listing(put(repo, kept).parent.name)) == []


def test_a_damaged_listing_is_refused(repo: Path, tmp_path: Path) -> None:
    kept = Store(tmp_path / "s")
    tree = put(repo, kept).parent
    assert kept.read_listing(tree.name).by_path.keys() == paths(repo)
    (tree / "listing").write_text("x")
    with pytest.raises(RunError, match="damaged"):
        kept.read_listing(tree.name)


def test_a_workspace_of_a_job_leaves_out_its_runs_mounts_logs_and_secrets(tmp_path: Path) -> None:
    text = (
        'name = "x"\nlauncher = "ddp"\nscript = "train.py"\nargs = ["--data", "big/x.bin", "--out=o", "--in=data/x"]\n'
        'mounts = [{ source = "data", target = "/workspace/data" }]\nslurm.output = "logs/%x-%j.out"\n'
        'secrets.file = ".env"\n'
    )
    folder = write(tmp_path / "p", dict.fromkeys(("train.py", "data/x", "logs/x-7.out", "logs/a.py", "big/x.bin"), ""))
    write(folder, {".env": "TOKEN=1\n", ".kitignore": "/big\n", "clusters/c.toml": "", "runs/r/manifest.json": ""})
    job = write_job(folder, text)
    made = prepare_run.prepare_job(job, cluster="local", overrides=[], containers=False)
    assert made.scan is not None
    assert made.scan.tree.by_path.keys() == {"train.py", "logs/a.py", ".kitignore", "clusters/c.toml", "job.toml"}
    assert [(one.key, one.problem.partition(" and ")[0]) for one in made.warnings] == [
        ("args[1]", f"big/x.bin is in {folder}")
    ]
    assert f"KIT_TREE={made.scan.tree.hash}" in made.plan.text_of("batch.sh")
    assert not list((folder / "runs").glob(".snapshots*"))  # planning writes nothing
    live = prepare_run.prepare_job(job, cluster="local", overrides=["snapshot=false"], containers=False)
    assert live.plan.decisions.paths.workspace == str(folder)
    write(folder, {".kitignore": "/train.py\n"})
    with pytest.raises(ConfigError, match=r"script: 'train.py' is in .*, and the run would not see it"):
        prepare_run.prepare_job(job, cluster="local", overrides=[], containers=False)


def test_a_sweep_of_a_thousand_points_has_one_snapshot(tmp_path: Path) -> None:
    sweep = f"[sweep.grid]\nseed = {[*range(1000)]}\n"
    folder = write(tmp_path / "p", {"train.py": ""})
    job = write_job(folder, f'name = "x"\nlauncher = "ddp"\nscript = "train.py"\n{sweep}')
    made = sweeps.prepare_sweep(job, cluster="local", containers=False)
    assert len(made.points) == 1000
    assert {made.runs[point].site.snapshot for point in (0, 500, 999)} == {made.first.site.snapshot}
    assert made.first.site.snapshot is not None


def test_what_runs_refer_to_is_not_pruned(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    write(runs, {"r1/batch.sh": f"readonly KIT_TREE={'a' * 64}\n", "r2/batch.sh": "readonly KIT_TREE=''\n"})
    assert workspace.used(runs) == {"a" * 64}
