"""Output of `kit logs`: no control characters, only the lines that were asked for, in memory that does not grow."""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from pathlib import Path

import pytest

from kit import shell
from kit.errors import UsageError
from kit.files import safe_text
from kit.record import logs
from kit.record.logs import Wanted
from tests.support import write_job

HOSTILE = b"\x1b]0;owned\x07\x1b]52;c;cm0gLXJm\x07\x1b[2J\x1b[1A\rrank-9 | forged\nrank-8 | forged too\x85\xe2\x80\xae\xc2\x9b31m\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def lines(run: Path, **wanted: object) -> list[str]:
    found = logs.follow(run, Wanted(**wanted), ended=lambda: True, once=True)  # type: ignore[arg-type]
    return b"".join(logs.shown(source, chunk) for source, chunk in found).decode().splitlines()


def test_a_log_cannot_write_to_the_terminal_nor_forge_a_source(run: Path) -> None:
    (run / "logs/rank-0.log").write_bytes(HOSTILE)
    shown = b"".join(logs.shown(*one) for one in logs.follow(run, Wanted(), ended=lambda: True, once=True))
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", shown)
    assert "\u202e" not in shown.decode()
    assert all(line.startswith("rank-0 | ") for line in shown.decode().splitlines())
    raw = b"".join(logs.shown(*one, raw=True) for one in logs.follow(run, Wanted(), ended=lambda: True, once=True))
    assert raw == HOSTILE.replace(b"\r", b"\n")


def test_colours_are_left_out_and_text_stays(run: Path) -> None:
    (run / "logs/rank-0.log").write_bytes("\x1b[32mloss\x1b[0m 0,5 € ✓ \ttab\n".encode())
    assert lines(run) == ["rank-0 | loss 0,5 € ✓ \ttab"]


def test_a_hostile_name_of_a_log(run: Path) -> None:
    (run / "logs/x\x1b[31m\n.log").write_text("a\n")
    assert lines(run) == ["x\\x1b[31m\\n | a"]


def test_only_regular_files_are_read(run: Path) -> None:
    os.mkfifo(run / "logs/rank-1.log")
    (run / "logs/rank-2.log").symlink_to("/dev/zero")
    (run / "logs/rank-3.log").mkdir()
    (run / "logs/rank-0.log").write_text("a\n")
    assert lines(run) == ["rank-0 | a"]


@pytest.mark.parametrize("role", ["..", "../..", "/etc", "trainer/..", ""])
def test_a_role_is_a_name(run: Path, role: str) -> None:
    (run / "logs/trainer").mkdir()
    with pytest.raises(UsageError, match="has no role"):
        logs.require_role(run, role)


def test_some_ranks_and_the_last_lines(run: Path) -> None:
    for rank in range(12):
        (run / f"logs/rank-{rank}.log").write_text("".join(f"step {step}\n" for step in range(50)) + "end")
    assert lines(run, ranks=[3, 11], tail=2) == [f"rank-{r} | {x}" for r in (3, 11) for x in ("step 49", "end")]
    assert lines(run, ranks=[0], tail=0) == []
    assert len(lines(run, ranks=[0], tail=99)) == 51
    assert lines(run, ranks=[0], grep=re.compile(rb"step .7")) == [f"rank-0 | step {n}7" for n in range(1, 5)]
    assert lines(run, ranks=[0], grep=re.compile(rb"step"), tail=1) == ["rank-0 | step 49"]


def test_since(run: Path) -> None:
    """By the lines' own time stamps. An undated line that no older line follows may be new: a traceback has no times."""
    older = "2026-11-22T07:00:00+0000 z\nolder\n"
    old, new = "2026-11-22T08:00:00+0000 a\nold\n", "2026-11-22T10:00:00+0000 b\nnew\n2026-11-22 11:00:00Z c\n"
    (run / "logs/rank-0.log").write_text(older + old + new)
    (run / "logs/rank-1.log").write_text("undated\n")
    (run / "logs/rank-2.log").write_text("written before\n")
    os.utime(run / "logs/rank-2.log", (0, 0))
    since = 1795338000.0  # 09:00:00Z
    assert lines(run, since=since) == [
        "rank-0 | old",
        "rank-0 | 2026-11-22T10:00:00+0000 b",
        "rank-0 | new",
        "rank-0 | 2026-11-22 11:00:00Z c",
        "rank-1 | undated",
    ]


def test_a_log_that_grows_piece_by_piece(run: Path) -> None:
    path = run / "logs/rank-0.log"
    tail = logs.Tail(path)
    seen = b""
    for piece in (b"a", b"\r", b"\nb\rc", b"\r", b"d", b"\n", b"e"):
        with path.open("ab") as out:
            out.write(piece)
        seen += b"".join(tail.chunks())
    assert seen == b"a\nb\nc\nd\n"
    assert b"".join(tail.chunks(last=True)) == b"e\n"
    path.write_bytes(b"anew\n")
    assert b"".join(tail.chunks()) == b"anew\n"


def test_the_end_of_the_batch_script_comes_last(run: Path) -> None:
    """A helper's log may have got its last line after a look at it: `end of job` was then followed by that line."""
    looks = []

    def ended() -> bool:
        looks.append(1)
        if len(looks) == 2:
            for name in ("batch", "helper"):
                with (run / "logs" / f"{name}.log").open("ab") as log:
                    log.write(b"the end\n")
        return len(looks) == 2

    found = [(source, chunk) for source, chunk in logs.follow(run, Wanted(), ended=ended) if b"the end" in chunk]
    assert [source for source, _ in found] == ["helper", "batch"]


def test_one_long_line_takes_no_memory(run: Path) -> None:
    """A line of 200 MB was joined again at every chunk: minutes, and no output."""
    with (run / "logs/rank-0.log").open("wb") as out:
        out.truncate(1 << 28)
    with (run / "logs/rank-1.log").open("wb") as out:
        for _ in range(64):
            out.write(b"x" * (1 << 20))
    seen = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _, chunk in logs.follow(run, Wanted(ranks=[1]), ended=lambda: True, once=True):
        seen += len(chunk)
        assert len(chunk) <= 4 << 20
    assert seen >= 64 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


def test_logs_of_a_run_without_a_manifest(tmp_path: Path) -> None:
    write_job(tmp_path, "")
    folder = tmp_path / "runs" / "r"
    (folder / "logs").mkdir(parents=True)
    (folder / "manifest.json").touch()
    (folder / "logs/rank-0.log").write_text("a\n")
    words = [sys.executable, "-m", "kit", "logs", str(folder)]
    assert shell.run([*words, "-r", "0"], cwd=tmp_path).stdout == "rank-0 | a"
    assert "nothing is logged yet" in shell.run([*words, "-r", "77"], cwd=tmp_path).stderr
    wrong = shell.run([*words, "--grep", "("], cwd=tmp_path, check=False)
    assert (wrong.returncode, "--grep" in wrong.stderr) == (2, True)


def test_clean_of_bytes_is_clean_of_text() -> None:
    every = "".join(map(chr, [*range(0x300), *range(0x2000, 0x2080)])).replace("\n", "")
    assert safe_text.clean_lines(every.encode()).decode() == safe_text.clean(every)
    assert time.strftime("%Y")


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 1000])
def test_lines_are_the_same_in_whatever_pieces_they_come(
    run: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    """With `\\n`, `\\r`, `\\r\\n`, and none at the end."""
    written = b"a\r\nbb\rccc\r\rdddd\n\neeeeeeeee\r\n\r\nf\xe2\x9c\x93\r"
    expected = ["a", "bb", "ccc", "", "dddd", "", "eeeeeeeee", "", "f✓"]
    tail = logs.Tail(run / "logs/rank-0.log")
    shown = b""
    for start in range(0, len(written), piece):
        with (run / "logs/rank-0.log").open("ab") as out:
            out.write(written[start : start + piece])
        shown += b"".join(tail.chunks())
        # A line is there as soon as its end is; the end of `\r` is known with the byte behind it.
        assert shown.count(b"\n") >= len(re.findall(rb"\r\n|\n|\r(?=[^\n])", written[: start + piece]))
    shown += b"".join(tail.chunks(last=True))
    assert shown.decode().split("\n")[:-1] == expected


def test_every_byte_that_a_terminal_obeys_is_escaped() -> None:
    """What is looked for one by one is what the rule for text says, alone and behind harmless text."""
    for code in [*range(0x3000), *range(0xD7F0, 0xE010), 0xFFFD, 0x1F600]:
        letter = chr(code)
        for line in (letter, f"loss ✓ é — {letter} "):
            if letter not in "\n\t" and not 0xD800 <= code < 0xE000:
                assert safe_text.clean_lines(line.encode()).decode() == safe_text.clean(line)
    for bad in (b"\xff", b"\xc2", b"\xed\xa0\x80", b"\xe2\x80", b"\x1b[\x1b[0m0m", b"\xc2\x1b[0m\x9b"):
        assert re.fullmatch(rb"[\x20-\x7e]*", safe_text.clean_lines(bad))


def test_files_that_torchrun_wrote_are_the_ranks_logs(run: Path) -> None:
    """bin/torchrun-rank.sh links them, for each start, by a second name of the file or by a symbolic link."""
    there = run / "logs/torchrun/none_x/attempt_0/1"
    there.mkdir(parents=True)
    (there / "stderr.log").write_text("first\n")
    (run / "logs/rank-3.1.stderr.log").hardlink_to(there / "stderr.log")
    (there / "stdout.log").write_text("printed\n")
    (run / "logs/rank-3.1.stdout.log").symlink_to("/kit/run/logs/torchrun/none_x/attempt_0/1/stdout.log")
    for name, text in (("rank-3.10.stderr", "tenth\n"), ("rank-3.2.stderr", "second\n"), ("rank-30", "other\n")):
        (run / f"logs/{name}.log").write_text(text)
    (run / "logs/rank-3.log").write_text("own\n")
    shown = ["rank-3 | own", "rank-3.1.stderr | first", "rank-3.1.stdout | printed", "rank-3.2.stderr | second"]
    shown.append("rank-3.10.stderr | tenth")
    assert lines(run, ranks=[3]) == shown
    assert lines(run) == [*shown, "rank-30 | other"]
    with pytest.raises(UsageError, match="has no role 'torchrun'"):
        logs.require_role(run, "torchrun")
