"""lib/workspace.sh: a run's own copy of what was submitted, in a bash without a Slurm."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kit.planning.parts import all_parts
from kit.snapshots import scan
from kit.snapshots.store import Store
from tests.scripts.batch_lab import BIN, BatchLab


class Taken:
    """A batch lab and a workspace that is in a store."""

    def __init__(self, folder: Path) -> None:
        self.lab = BatchLab(folder)
        self.source = folder / "job"
        (self.source / "lib").mkdir(parents=True)
        for name in ("train.py", "same.py", "lib/a b.py"):
            (self.source / name).write_text("one\n")
        (self.source / "run.sh").write_text("#!/bin/sh\n")
        (self.source / "run.sh").chmod(0o755)
        (self.source / "link").symlink_to("train.py")
        self.store = Store(folder / ".snapshots")

    def put(self) -> Path:
        """Keep the workspace as it is now; its tree in the store."""
        index = self.store.index(self.source)
        return self.store.put(scan.scan(self.source, index=index, asked_by="job.toml"))

    def prepare(self, tree: Path, then: str = "") -> list[str]:
        constants = f"KIT_SNAPSHOT={tree} KIT_TREE={tree.name}"
        return self.lab.bash(f"{constants}\nworkspace::listed && workspace::prepare; echo code $?\n{then}")

    @property
    def copy(self) -> Path:
        return self.lab.run_dir / "workspace"


@pytest.fixture
def taken(tmp_path: Path) -> Taken:
    return Taken(tmp_path)


def test_the_copy_is_what_was_submitted_and_may_be_written(taken: Taken) -> None:
    tree = taken.put()
    assert taken.prepare(tree) == ["code 0"]
    assert (taken.copy / "link").readlink() == Path("train.py")
    assert os.access(taken.copy / "run.sh", os.X_OK)
    assert taken.copy.stat().st_mode & 0o777 == 0o700
    (taken.copy / "train.py").write_text("two\n")
    (taken.copy / "wandb").mkdir()
    # Two files of the same content are one in the store, and two here.
    assert (taken.copy / "same.py").read_text() == "one\n"
    assert (tree / "files/train.py").read_text() == "one\n"
    assert not (tree / "files/wandb").exists()


def test_the_empty_folder_of_the_submit_becomes_the_copy(taken: Taken) -> None:
    """It was left beside the copy in every run."""
    tree = taken.put()
    taken.copy.mkdir()
    taken.prepare(tree)
    assert [path.name for path in taken.copy.parent.glob("workspace*")] == ["workspace"]


def test_a_later_start_goes_on_with_what_the_programs_wrote_and_says_what_they_changed(taken: Taken) -> None:
    tree = taken.put()
    taken.prepare(tree)
    (taken.copy / "out.txt").write_text("mine\n")
    assert taken.prepare(tree) == ["code 0"]
    (taken.copy / "train.py").write_text("two\n")
    said = taken.prepare(tree)
    assert "workspace: 1 of the submitted files were changed by the run, such as train.py: FAILED" in said[0]
    assert said[1:] == ["code 0"]
    assert (taken.copy / "out.txt").read_text() == "mine\n"
    # A snapshot that was removed since is not needed any more.
    shutil.rmtree(tree)
    assert taken.prepare(tree)[-1] == "code 0"


def test_another_snapshot_is_another_copy(taken: Taken) -> None:
    taken.prepare(first := taken.put())
    (taken.copy / "out.txt").write_text("mine\n")
    (taken.source / "train.py").write_text("two\n")
    assert taken.prepare(taken.put()) == ["code 0"]
    assert (taken.copy / "train.py").read_text() == "two\n"
    (before,) = taken.lab.run_dir.glob(f"workspace.{first.name[:12]}.*")
    assert (before / "out.txt").read_text() == "mine\n"


def test_the_folder_is_there_while_its_content_changes(taken: Taken) -> None:
    """The nodes' checks look for it at the same time. For an instant it was gone, and a point of a retried sweep failed."""
    taken.prepare(taken.put())
    (taken.source / "train.py").write_text("two\n")
    tree = taken.put()
    constants = f"KIT_SNAPSHOT={tree} KIT_TREE={tree.name}"
    look = f'mv() {{ command mv "$@"; [[ -d {taken.copy} ]] || echo gone; }}'
    assert taken.lab.bash(f"{constants}\nworkspace::listed\n{look}\nworkspace::prepare; echo code $?") == ["code 0"]
    batch = (BIN / "batch.sh").read_text()
    assert batch.index("parts::require listed") < batch.index("parts::require prepare")
    order = [part.name for part in all_parts()]
    assert order.index("workspace") < order.index("preflight")


def test_what_a_kill_left_is_made_anew(taken: Taken) -> None:
    tree = taken.put()
    partial = taken.lab.run_dir / "workspace.partial"
    partial.mkdir()
    (partial / "half").touch()
    assert taken.prepare(tree) == ["code 0"]
    assert not (taken.copy / "half").exists()


@pytest.mark.parametrize("broken", ["file", "listing", "gone", "missing"])
def test_a_damaged_snapshot_is_refused(taken: Taken, broken: str) -> None:
    tree = taken.put()
    if broken == "file":
        (tree / "files/train.py").chmod(0o644)
        (tree / "files/train.py").write_text("changed\n")
        what = "has other contents than at the submit: lib/a b.py: FAILED same.py: FAILED train.py: FAILED"
    elif broken == "listing":
        (tree / "listing").write_text("# kit workspace, form 1\n")
        what = "has another listing than that of the submit"
    elif broken == "missing":
        (tree / "files/lib/a b.py").unlink()
        what = "has other contents than at the submit: lib/a b.py: FAILED open or read"
    else:
        shutil.rmtree(tree)
        what = "cannot be read"
    said = taken.prepare(tree)
    assert said[-1] == "code 1"
    assert any(f"the workspace in {tree} {what}; submit the job again" in line for line in said)
    assert [*taken.copy.iterdir()] == []


def test_an_empty_workspace(taken: Taken) -> None:
    shutil.rmtree(taken.source)
    taken.source.mkdir()
    assert taken.prepare(taken.put()) == ["code 0"]
    assert list(taken.copy.iterdir()) == []


def test_a_damaged_tree_is_marked_and_the_next_submit_mends_it(taken: Taken) -> None:
    """Before, every submit of the same files failed at its start until somebody removed the tree by hand."""
    tree = taken.put()
    file = tree / "files/lib/a b.py"
    file.chmod(0o644)
    file.write_text("two\n")  # and with it the object, and all that share it
    said = taken.prepare(tree)
    assert "has other contents than at the submit" in said[0]
    assert said[-1] == "code 1"
    assert taken.put() == tree
    assert taken.prepare(tree) == ["code 0"]
    assert (taken.copy / "lib/a b.py").read_text() == (taken.copy / "same.py").read_text() == "one\n"
    assert not (tree / "damaged").exists()


def test_a_tree_without_its_files_or_its_listing_is_mended(taken: Taken) -> None:
    for damage in (lambda tree: shutil.rmtree(tree / "files"), lambda tree: (tree / "listing").write_text("x")):
        tree = taken.put()
        damage(tree)
        assert taken.prepare(tree)[-1] == "code 1"
        taken.put()
        assert taken.prepare(tree)[-1] == "code 0"
        shutil.rmtree(taken.copy)
    (tree / "listing").unlink()
    assert taken.put() == tree
    assert taken.prepare(tree)[-1] == "code 0"


def test_c11_a_file_that_the_listing_lacks_is_not_copied_into_a_run(taken: Taken) -> None:
    """It would be imported before the module of that name, such as getpass.py."""
    tree = taken.put()
    (tree / "files/getpass.py").write_text("")
    said = taken.prepare(tree)
    assert said[-1] == "code 1"
    assert "files that were not submitted" in said[0]
    assert not list(taken.copy.iterdir())


def test_c11_a_link_that_the_listing_lacks_is_not_copied_into_a_run(taken: Taken) -> None:
    tree = taken.put()
    (tree / "files/link").unlink()
    (tree / "files/getpass.py").symlink_to("train.py")
    (tree / "files/other").symlink_to("train.py")
    assert taken.prepare(tree)[-1] == "code 1"


def test_c11_a_store_that_others_may_write_is_not_copied(taken: Taken) -> None:
    tree = taken.put()
    taken.store.root.chmod(0o770)
    said = taken.prepare(tree)
    assert said[-1] == "code 1"
    assert "is where others may have put files" in said[0]
    # A file of the user's own, where a colleague's link in such a store leads, keeps its text.
    assert not (tree / "damaged").exists()


def test_a_copy_that_a_signal_ended_says_nothing_of_the_snapshot(taken: Taken) -> None:
    tree = taken.put()
    taken.lab.command("cp", "kill -s TERM $$")
    said = taken.prepare(tree)
    assert "a signal ended the copy of the workspace" in said[-2]
    assert said[-1] == "code 1"
    assert not (tree / "damaged").exists()
