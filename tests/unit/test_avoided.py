"""Nodes which the kit itself avoids: a refusal that may come of them, and records that another user may have made."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kit import shell
from kit.errors import ConfigError, RunError, SlurmError
from kit.hosts import avoided_nodes
from kit.planning.batch_file import AVOID_DIR
from kit.ssh import shell_program
from kit.submission import submit
from tests.support import REPO, make_site, plan_of, write_job
from tests.unit.test_remote import sh

NOBODY = 65534
JOB = 'name = "digits"\nlauncher = "ddp"\n[resources]\nnodes = 2\ngpus_per_node = 2\n'
# What a file in the shared folder of runs can be called: each of the first two ran as the next user who submitted.
HOSTILE = ("lab-1\nid -un >here", "lab-1 --export=ALL,BASH_ENV=evil.sh", "-o", "lab-1;id", "lab\x1b[1m")


@pytest.mark.parametrize("avoid", [(), ("n1", "n2")])
def test_p2_a_refusal_names_the_nodes_that_the_kit_avoids(
    monkeypatch: pytest.MonkeyPatch, avoid: tuple[str, ...]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SlurmError("Requested node configuration is not available")

    monkeypatch.setattr("kit.submission.submit.client.test_only", refuse)
    site = SimpleNamespace(avoid=avoid)
    plan = SimpleNamespace(decisions=SimpleNamespace(site=site), text_of=lambda name: "", argv=("sbatch", "-", "-"))
    with pytest.raises(SlurmError) as error:
        submit.ask_slurm(cast(Any, SimpleNamespace(plan=plan, env={})))
    assert ("excludes n1, n2" in error.value.message) == bool(avoid)
    assert error.value.hint == ("kit nodes --forget n1" if avoid else "")


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """The folder of records, with one of the reader's own."""
    avoided_nodes.add(tmp_path, "n3", "no GPU")
    return tmp_path / AVOID_DIR


def test_c10_a_file_name_that_is_no_node_is_no_record(records: Path) -> None:
    for name in HOSTILE:
        (records / name).touch()
    assert [one.node for one in avoided_nodes.read_avoided(records.parent)] == ["n3"]


def test_c10_a_record_is_a_regular_file_and_no_link(records: Path) -> None:
    """A FIFO held a submit for ever; a link can lead to a file of the reader's own."""
    os.mkfifo(records / "n4")
    (records / "n5").symlink_to(records / "n3")
    (records / "n6").mkdir()
    assert [one.node for one in avoided_nodes.read_avoided(records.parent)] == ["n3"]


def test_c10_a_record_of_another_user_is_shown_and_not_obeyed(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        (records / "n4").touch()
        os.chown(records / "n4", NOBODY, NOBODY)
        others, own = ["n4"], ["n3"]
    else:
        monkeypatch.setattr("os.geteuid", lambda: NOBODY)
        others, own = ["n3"], []
    found = avoided_nodes.read_avoided(records.parent)
    assert [one.node for one in found if one.recorded_by] == others
    assert [*avoided_nodes.obeyed(found)] == own


def test_c10_a_look_removes_no_record(records: Path) -> None:
    os.utime(records / "n3", (0, 0))
    assert avoided_nodes.read_avoided(records.parent) == []
    assert (records / "n3").exists()
    avoided_nodes.add(records.parent, "n7", "")
    assert [path.name for path in records.iterdir()] == ["n7"]


def test_c10_the_login_node_names_who_recorded_a_node(records: Path) -> None:
    """What a cluster over ssh answers: `-` stands for the user's own record."""
    for name in HOSTILE:
        (records / name).touch()
    (records / "n4").write_text("computes wrong numbers\nmore\n")
    if os.geteuid() == 0:
        os.chown(records / "n4", NOBODY, NOBODY)
    source = (REPO / "templates/remote/index.sh").read_text()
    script = f'RUNS="$1" AVOID={AVOID_DIR} KIT_UID=$(id -u)\n{source}\navoided'
    lines = shell.run(["sh", "-c", script, "-", str(records.parent)]).stdout.splitlines()
    words = sorted(line.split(" ", 3) for line in lines)
    other = "nobody" if os.geteuid() == 0 else "-"
    assert [(who, node, reason) for who, node, _, reason in words] == [
        ("-", "n3", "no GPU"),
        (other, "n4", "computes wrong numbers"),
    ]


@pytest.mark.parametrize("name", HOSTILE[:1])
def test_c10_no_option_begins_another_line_of_the_script(tmp_path: Path, name: str) -> None:
    """The last door: whatever reads a name wrongly, no text of it becomes a line of batch.sh."""
    with pytest.raises(ConfigError, match="control character"):
        plan_of(write_job(tmp_path, JOB), site=replace(make_site(), avoid=(name,)))


# ---- the folder itself: everybody who may write the folder of runs may make it first ----


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """A folder of the reader's own with an old file, to which a colleague's link leads in place of the records."""
    (tmp_path / "own").mkdir()
    old = tmp_path / "own" / "thesis.tex"
    old.write_text("three years\n")
    os.utime(old, (0, 0))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / AVOID_DIR).symlink_to(tmp_path / "own")
    return old


def test_no_file_is_removed_where_a_link_in_place_of_the_records_leads(thesis: Path, tmp_path: Path) -> None:
    """`kit nodes --avoid` removed all files of the reader's that were older than a day."""
    with pytest.raises(RunError, match="not a folder of records, but a link"):
        avoided_nodes.add(tmp_path / "runs", "n1", "no GPU")
    os.utime(thesis)
    assert avoided_nodes.read_avoided(tmp_path / "runs") == []
    assert [path.name for path in thesis.parent.iterdir()] == ["thesis.tex"]


def test_the_login_node_follows_no_link_in_place_of_the_records(thesis: Path, tmp_path: Path) -> None:
    constants = {"RUNS": tmp_path / "runs", "STORE": "/nowhere", "AVOID": AVOID_DIR, "NODE": "n1", "REASON": "no GPU"}
    reply = sh(shell_program.text("avoid", constants, mark="mark"), tmp_path)
    assert (reply.codes["avoid"], "is a link" in reply.stderr) == (1, True)
    assert [path.name for path in thesis.parent.iterdir()] == ["thesis.tex"]
    (tmp_path / "runs" / AVOID_DIR).unlink()
    assert sh(shell_program.text("avoid", constants, mark="mark"), tmp_path).codes["avoid"] == 0
    assert [(one.node, one.reason) for one in avoided_nodes.read_avoided(tmp_path / "runs")] == [("n1", "no GPU")]


def test_the_login_node_writes_through_no_link_of_a_name_that_was_taken(thesis: Path, tmp_path: Path) -> None:
    """The name of a record that is not complete yet was `.new-PID`: a colleague's links of these names led to any file."""
    records = tmp_path / "runs" / AVOID_DIR
    records.unlink()
    records.mkdir()
    constants = {"RUNS": tmp_path / "runs", "STORE": "/nowhere", "AVOID": AVOID_DIR, "NODE": "n1", "REASON": "no GPU"}
    text = shell_program.text("avoid", constants, mark="mark")
    taken = text.replace("avoid() {", f'avoid() {{\n    ln -s {thesis} "$RUNS/$AVOID/.new-$$"', 1)
    assert sh(taken, tmp_path).codes["avoid"] == 0
    assert thesis.read_text() == "three years\n"
