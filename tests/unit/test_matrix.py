"""`python -m tests.matrix`: when a root of another suite is used, made or skipped by name."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import matrix
from tests.support import REPO


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH where unshare works and nothing else is there, and a cache of its own."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "unshare").write_text("#!/bin/bash\nexit 0\n")
    (tmp_path / "unshare").chmod(0o755)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", ["matrix", "trixie", "--make", "--skip"])
    assert matrix.main() == 0
    return capsys.readouterr().out


def test_a_root_that_is_there_needs_no_mmdebstrap(
    programs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = hashlib.sha256("\n".join(["trixie", *matrix.PACKAGES]).encode()).hexdigest()[:12]
    root = programs / "cache" / "kit" / "roots" / f"trixie-{recipe}"
    root.mkdir(parents=True)
    assert said(capsys, monkeypatch) == f"{root}\n"


@pytest.mark.parametrize(
    ("unshare", "why"), [("exit 0", "mmdebstrap: no such program"), ("exit 1", "lets root make no namespaces")]
)
def test_what_this_machine_cannot_do_is_skipped_by_name(
    programs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, unshare: str, why: str
) -> None:
    (programs / "unshare").write_text(f"#!/bin/bash\n{unshare}\n")
    text = said(capsys, monkeypatch)
    assert text.startswith("matrix: trixie: SKIPPED: ")
    assert why in text


def test_a_full_disk_is_no_failure_of_the_product(
    programs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert "SKIPPED: [Errno 28]" in said(capsys, monkeypatch)


def test_what_runs_in_the_root_ends_with_the_one_who_started_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """timeout(1) ends this process alone, and unshare takes no TERM."""
    ran: list[list[str]] = []

    def recorded(argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        ran.append(argv)
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(subprocess, "run", recorded)
    assert matrix.run(tmp_path, ["tool", "word"]) == 0
    assert ran[0][:3] == ["setpriv", "--pdeathsig=KILL", "unshare"]
    assert ran[0][-3:] == ["--", "tool", "word"]


@pytest.mark.parametrize(
    ("words", "there", "absent"),
    [
        ([], ["tests/cluster", "--numprocesses", *matrix.IMAGES], matrix.SHORT),
        (["--short", "--workers", "0"], matrix.SHORT, ["tests/cluster", "--numprocesses"]),
        (["--short", "tests/unit/test_x.py", "-x"], ["tests/unit/test_x.py", "-x"], [*matrix.SHORT, *matrix.IMAGES]),
        (["--soak", "7", "--seed", "1"], ["tests.soak", "7", "--seed"], ["pytest", *matrix.IMAGES]),
    ],
    ids=["whole", "short", "named", "soak"],
)
def test_what_runs_in_the_root(
    monkeypatch: pytest.MonkeyPatch, words: list[str], there: Sequence[str], absent: Sequence[str]
) -> None:
    ran: list[str] = []

    def recorded(_: Path, argv: list[str]) -> int:
        ran.extend(argv)
        return 3

    monkeypatch.setattr(matrix, "made", Path)
    monkeypatch.setattr(matrix, "run", recorded)
    monkeypatch.setattr(sys, "argv", ["matrix", "trixie", *words])
    assert matrix.main() == 3, "the command's own code"
    assert set(there) <= set(ran)
    assert not set(absent) & set(ran)


_ORPHANS = """
import os, pathlib, time
for _ in range(3):
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            time.sleep(0.1)
        os._exit(0)
    os.waitpid(child, 0)
deadline = time.monotonic() + 10
while time.monotonic() < deadline:
    states = [path.read_text().rpartition(") ")[2][0] for path in pathlib.Path("/proc").glob("[0-9]*/stat")]
    if len(states) <= 2:
        break
    time.sleep(0.1)
raise SystemExit(7 if len(states) <= 2 and "Z" not in states else 1)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a root of another suite takes root")
def test_orphans_do_not_stay_as_zombies() -> None:
    """They stayed while the tests themselves were the first process, and a test takes a zombie for a process that still runs."""
    argv = [*matrix._NAMESPACES, "bash", str(REPO / "tests/in_root.sh"), "/", str(REPO), "--"]
    assert subprocess.run([*argv, "/usr/bin/python3", "-c", _ORPHANS], check=False).returncode == 7
