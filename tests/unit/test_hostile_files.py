"""Files of a job, a cluster and a run with values that no program of the kit writes: each command ends with an answer or one error.

KIT_TEST_FILES: how many files are tried, instead of 200; KIT_TEST_SEED: of the choice.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import pytest

from kit import __main__ as command
from kit.record import metrics
from tests.support import REPO
from tests.unit.test_reports import make

HOW_MANY = int(os.environ.get("KIT_TEST_FILES", "200"))
SEED = int(os.environ.get("KIT_TEST_SEED", "1"))

# Seconds after which a command hangs: none of these takes one on a machine that has nothing else to do.
HANGS_S = 120
# Lines that a run's metrics keep. Each command reads all of them, so that 2,000 took most of the time, and found nothing more.
STEPS = 40

# Of each type, and at each limit.
TOML = (
    '""', '"\\u0000"', '"a\\nb"', '"\\u001b]0;x\\u0007"', '"\\u202e"', '"/dev/zero"', '"../../x"', '"$(id)"', "-1", "0", "1e400",
    "nan", "inf", "9223372036854775807", "100000000000000000000", "true", "[]", "[[]]", "{}", "{ a = { b = 1 } }",
    "1979-05-27T07:32:00Z", f'"{"x" * 5000}"', '["", ""]',
)  # fmt: skip
JSON: tuple[object, ...] = (
    None, True, -1, 0.5, 10**400, 1e308, -1e308, float("inf"), float("nan"), "", "9" * 5000, "\x1b]0;x\x07", "\ud800", "../..",
    {"a": 1}, [1, "x"], [[[[]]]],
)  # fmt: skip
TABLES = (
    "[sweep]",
    "[roles.x]",
    "[retry]",
    "[watch]",
    "[[stages]]",
    "[secrets]",
    "[notify]",
    "[slurm]",
    f"x.{'y.' * 200}z = 1",
)
COMMANDS = (
    ("status",), ("status", "--json"), ("why",), ("time",), ("time", "--json"), ("top", "--once"), ("logs", "--tail", "3"),
    ("report", "-o", "page.html"),
)  # fmt: skip


def other_toml(text: str, choice: random.Random) -> str:
    lines = text.splitlines()
    for _ in range(choice.randint(1, 3)):
        at = choice.randrange(len(lines))
        match choice.randrange(8):
            case 0:
                del lines[at]
            case 1:
                lines[at] = lines[at][: choice.randrange(len(lines[at]) + 1)]
            case 2:
                lines.insert(at, choice.choice(TABLES))
            case 3:
                lines.insert(at, choice.choice(lines))
            case _:
                keys = [n for n, line in enumerate(lines) if "=" in line and not line.startswith("#")]
                if keys:
                    key = choice.choice(keys)
                    lines[key] = f"{lines[key].partition('=')[0]}= {choice.choice(TOML)}"
        lines = lines or [""]
    return "\n".join(lines)


def other_json(line: str, choice: random.Random) -> str:
    content = json.loads(line)
    for _ in range(choice.randint(1, 3)):
        key = choice.choice([*content, "new"])
        if choice.random() < 0.2:
            content.pop(key, None)
        else:
            content[key] = choice.choice(JSON)
    text = json.dumps(content)
    match choice.randrange(20):
        case 0:
            return text[: choice.randrange(len(text))]
        case 1:
            return "[" * 5000 + text
    return text


def other_progress(line: str, choice: random.Random) -> str:
    words = line.split(" ")
    words[choice.randrange(len(words))] = choice.choice(["inf", "nan", "-1", "", "9" * 400, "x", "1e308", "\t"])
    return " ".join(words)


def by_line(change: Callable[[str, random.Random], str]) -> Callable[[str, random.Random], str]:
    """Changes some of the lines of a file, and always its last one."""

    def of_text(text: str, choice: random.Random) -> str:
        lines = text.splitlines()
        chosen = {len(lines) - 1, *(choice.randrange(len(lines)) for _ in range(3))}
        return "\n".join(change(line, choice) if n in chosen else line for n, line in enumerate(lines)) + "\n"

    return of_text


CHANGES: dict[str, Callable[[str, random.Random], str]] = {
    "manifest.json": other_json,
    "state/events.jsonl": by_line(other_json),
    "metrics.jsonl": by_line(other_json),
    "job.toml": other_toml,
    "monitor/slurm-7.n0.progress": by_line(other_progress),
}


def answer_of(*words: str) -> tuple[str, str]:
    """What a command printed, and the traceback of its end, if it has one."""
    out, found = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True), ""
    before, sys.argv = sys.argv, ["kit", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
            command.main()
    except BaseException:  # noqa: BLE001 - whatever it is, it is what is looked for
        found = traceback.format_exc()
    finally:
        sys.argv = before
    assert isinstance(out.buffer, io.BytesIO)
    return out.buffer.getvalue().decode(), found


def answer_in_time(*words: str) -> tuple[str, str]:
    """The same; a command that hangs ends with the traceback of what it was doing. Only in a process of its own."""
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(HANGS_S)
    try:
        return answer_of(*words)
    finally:
        signal.alarm(0)


def _hangs(*_: object) -> None:
    raise TimeoutError(f"no answer within {HANGS_S} s")


@pytest.fixture
def commands(project: Path) -> Iterator[Executor]:
    """A process of its own: what the commands import there has no effect on other tests."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        yield pool


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / ".git").mkdir()
    shutil.copytree(REPO / "clusters", tmp_path / "clusters")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path


def problem(commands: Executor, words: tuple[str, ...], changed: str) -> str:
    """What is wrong with the answer of a command; empty if it is an answer or one error."""
    text, found = commands.submit(answer_in_time, *words).result()
    if "\x1b]" in text:
        found = f"a title of the terminal from a file: {text!r}"
    return f"kit {' '.join(words)}\n{found}\nwith:\n{changed[:4000]}" if found else ""


@pytest.mark.timeout(0)
def test_no_file_of_a_job_or_cluster_ends_in_a_traceback(project: Path, commands: Executor) -> None:
    choice = random.Random(SEED)
    jobs = [path.read_text() for path in sorted(REPO.glob("examples/*/job.toml"))]
    cluster = (REPO / "clusters" / "pod.toml").read_text()
    for _ in range(HOW_MANY // 2):
        changed = other_toml(choice.choice(jobs), choice)
        theirs = cluster if choice.random() < 0.7 else other_toml(cluster, choice)
        (project / "job.toml").write_text(changed)
        (project / "clusters" / "pod.toml").write_text(theirs)
        words = (
            *choice.choice([("render",), ("render", "--no-container"), ("sweep", "--dry-run")]),
            "job.toml",
            "-c",
            "pod",
        )
        assert problem(commands, words, f"{changed}\n# clusters/pod.toml\n{theirs}") == ""


@pytest.mark.timeout(0)
def test_no_file_of_a_run_ends_in_a_traceback(project: Path, commands: Executor) -> None:
    choice = random.Random(SEED)
    good = make(project / "good", 8, minutes=2)
    steps = (good / "metrics.jsonl").read_text().splitlines()
    (good / "metrics.jsonl").write_text("\n".join(steps[-STEPS:]))
    run = project / "runs" / "gpt-1"
    shutil.copytree(good, run)
    assert "FAILED" in commands.submit(answer_in_time, "status", run.name).result()[0]
    for number in range(HOW_MANY // 2):
        if number % 10 == 0:
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(good, run)
        name = choice.choice(list(CHANGES))
        changed = CHANGES[name]((good / name).read_text(), choice)
        (run / name).write_text(changed, encoding="utf-8", errors="surrogatepass")
        words = choice.choice(COMMANDS)
        words = (words[0], run.name, *words[1:])
        assert problem(commands, words, f"{name}: {changed[-2000:]}") == ""


def test_values_that_nothing_can_compute_with_are_dropped(tmp_path: Path) -> None:
    good = {"kind": "step", "time": "t", "restart": 0, "step": 3, "loss": 0.5}
    wrong: tuple[dict[str, object], ...] = (
        {"step": 10**400},
        {"step": [1]},
        {"restart": {}},
        {"kind": 7},
        {"loss": -(10**30)},
        {"step": True},
    )
    lines = [
        json.dumps(good),
        *(json.dumps(good | one) for one in wrong),
        '{"kind": "st',
        json.dumps(good | {"kind": "\ud800"}),
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    found = metrics.records(tmp_path)
    assert found[0] == good
    assert [set(good) - set(record) for record in found[1:-1]] == [set(one) for one in wrong]
    assert found[-1]["kind"] == "?"
