"""Links in another user's run folder, which lead to files that only the reader may read: none is followed."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from kit.archive import exporting
from kit.errors import RunError
from kit.files import untrusted_files
from kit.hosts import submission
from kit.record import find_runs, foreign_runs, logs
from kit.record.logs import Wanted
from kit.ssh import shell_program
from kit.sweeps import find, lost_arrays
from kit.sweeps.record import SweepRecord
from tests.unit.test_export import ended  # noqa: F401
from tests.unit.test_hostile_files import answer_of
from tests.unit.test_remote import sh
from tests.unit.test_reports import make
from tests.unit.test_rerun import project, run  # noqa: F401

NOBODY = 65534
SECRET = "of-the-reader-alone"
# Each is a line of a log and of no JSON: a message about wrong JSON would hold it, too.
TEXT = f"RuntimeError: {SECRET}\n"
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("runs",), ("status", "RUN"), ("status", "RUN", "--json"), ("why", "RUN"), ("time", "RUN"), ("top", "RUN", "--once"),
    ("logs", "RUN"), ("report", "RUN", "-o", "page.html"), ("stacks", "RUN"), ("prune-runs", "--dry-run"),
)  # fmt: skip

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def give(path: Path) -> None:
    """To another user, with all below it; links themselves, not what they lead to."""
    for one in (path, *path.rglob("*")):
        os.chown(one, NOBODY, NOBODY, follow_symlinks=False)


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A file that the reader alone may read."""
    path = tmp_path / "private" / "rank-0.log"
    path.parent.mkdir(mode=0o700)
    path.write_text(TEXT)
    path.chmod(0o600)
    return path


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of another user, whose ranks and batch script printed."""
    here = tmp_path / "project"
    (here / ".git").mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = make(here / "runs" / "gpt-1", 8, minutes=2)
    for name in ("batch", "rank-0", "rank-1"):
        (found / f"logs/{name}.log").write_text("RuntimeError: lost\n")
    give(found)
    return found


def printed(words: tuple[str, ...]) -> str:
    text, found = answer_of(*("gpt-1" if word == "RUN" else word for word in words))
    assert found == ""
    page = Path("page.html")
    return text + (page.read_text() if page.is_file() else "")


def test_no_command_follows_a_link_in_place_of_a_file_of_another_users_run(theirs: Path, private: Path) -> None:
    for file in sorted(path for path in theirs.rglob("*") if path.is_file()):
        content = file.read_bytes()
        file.unlink()
        file.symlink_to(private)
        give(theirs)
        for words in COMMANDS:
            assert SECRET not in printed(words), (file.relative_to(theirs), words)
        file.unlink()
        file.write_bytes(content)


def test_no_log_is_read_by_a_link_of_another_user(theirs: Path, private: Path) -> None:
    """It was printed as a line of the colleague's run, and so into what the reader sends on."""
    (theirs / "logs/rank-2.log").symlink_to(private)
    found = {name for name, _ in logs.follow(theirs, Wanted(ranks=[1, 2]), ended=lambda: True, once=True)}
    assert found == {"rank-1", "rank-2"}
    give(theirs)
    found = {name for name, _ in logs.follow(theirs, Wanted(ranks=[1, 2]), ended=lambda: True, once=True)}
    assert found == {"rank-1"}


@pytest.mark.parametrize("folder", ["logs", "monitor", "state", "state/failures-1/train-1", "logs/trainer"])
def test_a_folder_of_another_users_run_is_no_link(theirs: Path, private: Path, folder: str) -> None:
    place = theirs / folder
    if place.exists():
        place.rename(theirs.parent / "before")
    place.symlink_to(private.parent)
    give(theirs)
    with pytest.raises(RunError) as refused:
        find_runs.find_one("gpt-1", [theirs.parent])
    assert str(place) in str(refused.value)
    # A run of one's own may have its logs elsewhere, and so may another user's have its checkpoints.
    os.chown(theirs, 0, 0)
    assert find_runs.find_one("gpt-1", [theirs.parent]) == theirs
    place.unlink()
    (theirs / "checkpoints").symlink_to(private.parent)
    (theirs / "same").symlink_to("logs")
    give(theirs)
    assert find_runs.find_one("gpt-1", [theirs.parent]) == theirs


def test_a_point_of_another_users_sweep_is_no_link(tmp_path: Path, private: Path) -> None:
    """An array's links to the points of the same sweep are the kit's own."""
    sweep = tmp_path / "runs" / "lr-1"
    (sweep / "points/0001").mkdir(parents=True)
    (sweep / "arrays/0").mkdir(parents=True)
    (sweep / "sweep.json").write_text("{}")
    (sweep / "arrays/0/1").symlink_to("../../points/0001")
    give(sweep)
    folders = [sweep.parent]
    assert find.named("lr-1", folders) == find.find_one("lr-1", folders) == sweep
    (sweep / "points/0002").symlink_to(private.parent)
    for look in (find.named, find.find_one):
        with pytest.raises(RunError, match="points/0002: another user's link"):
            look("lr-1", folders)


def test_another_users_sweep_makes_no_point_from_an_array_of_the_reader(theirs: Path, tmp_path: Path) -> None:
    """Its tokens were a program of sed, which `kit status` ran as the reader."""
    array = theirs.parent / "lr-1/arrays/0"
    array.mkdir(parents=True)
    (array / "points").write_text("0 0 x\n")
    (array / "job").write_text("41\n")
    evil = theirs.parent / "evil"
    (evil / "templates/0").mkdir(parents=True)
    (evil / "points").mkdir()
    (evil / "sweep.json").write_text("{}")
    theirs.rename(evil / "templates/0/run")
    program = "x/x/;1s/.*/touch ran/e;s/x"
    (evil / "templates/0/tokens").write_text(f"a\nb\nc\nd\n{program}\n")
    (evil / "templates/0/files").write_text("manifest.json\n")
    (evil / "arrays").mkdir()
    (evil / "arrays/0").symlink_to(array)
    give(evil)
    for words in (("status",), ("status", "evil.0"), ("runs",), ("why",), ("cancel", "evil.0")):
        answer_of(*words)
        assert [*theirs.parent.rglob("ran")] == [*(evil / "points").iterdir()] == [*array.glob(".making")] == []
    # A real array, too.
    (evil / "arrays/0").unlink()
    array.rename(evil / "arrays/0")
    give(evil)
    assert foreign_runs.is_foreign(evil / "points/evil.0")
    assert foreign_runs.owners([evil / "points/evil.0"]) == [NOBODY]
    assert "evil.0" in answer_of("runs")[0]
    answer_of("status", "evil.0")
    assert [*(evil / "points").iterdir()] == []
    (evil / "templates/0/run").rename(evil / "run")
    (evil / "templates/0/run").symlink_to(tmp_path)
    with pytest.raises(RunError, match="templates/0/run: another user's link"):
        foreign_runs.require_own_folders(evil / "points/evil.0")


def test_lost_arrays_of_another_users_sweep_are_not_recorded(theirs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.sweeps.lost_arrays.find_host", lambda _: pytest.fail("the cluster is asked"))
    fields: dict[str, Any] = {"cluster": "here", "arrays": ()}
    record = SweepRecord.model_construct(**fields)
    assert lost_arrays.recovered(theirs, record) is record


def test_a_note_that_is_a_link_is_its_makers(private: Path, tmp_path: Path) -> None:
    (tmp_path / "note").symlink_to(private)
    os.chown(tmp_path / "note", NOBODY, NOBODY, follow_symlinks=False)
    assert submission.is_own(private)
    assert not submission.is_own(tmp_path / "note")


def test_an_export_takes_nothing_by_a_link(ended: Path, private: Path, tmp_path: Path) -> None:  # noqa: F811
    (ended / "metrics.jsonl").unlink()
    (ended / "replica-0").mkdir()
    (ended / "replica-0/metrics.jsonl").symlink_to(private)
    (private.parent / "metrics.jsonl").write_text(TEXT)
    (ended / "replica-1").symlink_to(private.parent)
    exporting.export(ended, tmp_path / "x.tar.gz")
    with tarfile.open(tmp_path / "x.tar.gz") as packed:
        found = [packed.extractfile(one) for one in packed if one.isfile()]
        assert not [one for one in found if one is not None and SECRET.encode() in one.read()]


def test_a_link_is_followed_to_a_file_of_its_maker(tmp_path: Path, private: Path) -> None:
    """A job's own output file, which a log of its run leads to; and whatever a link of root or of the reader leads to."""
    link, second = tmp_path / "link", tmp_path / "second"
    link.symlink_to(private)
    second.symlink_to("link")
    assert untrusted_files.read_text(second) == TEXT
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(OSError, match="a link of another user to a file that is not his"):
        untrusted_files.read_text(second)
    os.chown(private, NOBODY, NOBODY)
    assert untrusted_files.read_text(second) == TEXT


def test_a_link_in_a_circle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        untrusted_files.read_text(tmp_path / "a")


def test_a_login_node_sends_nothing_by_a_link_of_another_user(theirs: Path, private: Path) -> None:
    """It came into the mirror as a line of the colleague's log: `find -L` followed every link in his run."""
    before = fetched(theirs)
    (theirs / "logs/rank-20.log").symlink_to(private)
    (theirs / "more.jsonl").symlink_to(private)
    (theirs / "logs/trainer").symlink_to(private.parent)
    (theirs.parent / "his.log").write_text("his own\n")
    (theirs / "logs/rank-21.log").symlink_to("../../his.log")
    os.chown(theirs.parent / "his.log", NOBODY, NOBODY)
    give(theirs)
    assert fetched(theirs) == before | {"gpt-1/logs/rank-21.log": b"his own\n"}
    # The owner of a run may have its logs anywhere.
    for one in (theirs, *theirs.rglob("*")):
        os.chown(one, 0, 0, follow_symlinks=False)
    found = fetched(theirs)
    assert found["gpt-1/logs/rank-20.log"] == found["gpt-1/logs/trainer/rank-0.log"] == TEXT.encode()
    # Not where others can put links into it.
    theirs.chmod(0o777)
    os.chown(theirs / "logs/rank-20.log", NOBODY, NOBODY, follow_symlinks=False)
    assert "gpt-1/logs/rank-20.log" not in fetched(theirs)


def fetched(run_dir: Path) -> dict[str, bytes]:
    """The files that a login node sends of a run."""
    text = shell_program.text(
        "fetch", {"RUNS": str(run_dir.parent), "STORE": "/nowhere", "RUN": run_dir.name, "KNOWN": 0, "JOBS": "",
        "QUEUE": "", "WHOLE": "", "RELAY": ""}, mark="mark",
    )  # fmt: skip
    return {one.path: one.content for one in sh(text, run_dir.parent).files}


@pytest.mark.parametrize(("mode", "owner", "refused"), [(0o644, 12345, False), (0o640, 12345, True), (0o644, 0, True)])
def test_a_link_to_a_third_users_file_is_followed_if_all_may_read_it(
    tmp_path: Path, mode: int, owner: int, *, refused: bool
) -> None:
    """A project's cluster file may be a link that a colleague made, to a file of whoever looks after the cluster."""
    file, link = tmp_path / "pod.toml", tmp_path / "link.toml"
    file.write_text("x = 1\n")
    file.chmod(mode)
    os.chown(file, owner, owner)
    link.symlink_to(file)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    if refused:
        with pytest.raises(OSError, match="a link of another user"):
            untrusted_files.read_bytes(link)
    else:
        assert untrusted_files.read_bytes(link) == b"x = 1\n"


def test_without_a_name_the_newest_is_the_readers_own(theirs: Path) -> None:
    """Whoever shares the folder could otherwise choose what `kit status` shows, or end it with an error."""
    runs = theirs.parent
    assert find_runs.find_one(None, [runs]) == theirs, "the only one"
    own = make(runs / "gpt-0", 8, minutes=9)
    newest = [path for path, _ in find_runs.find_all([runs])]
    assert newest == [own, theirs]
    assert find_runs.find_one(None, [runs]) == own
