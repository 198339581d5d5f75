"""`kit tmux` in a real tmux, with a server of its own."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from kit.sessions import tmux

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run with three roles; tmux's server is one that nobody else has, and ends with the test."""
    folder = tmp_path / "sums-1.2"
    for role in ("inference", "orchestrator", "trainer"):
        (folder / "logs" / role).mkdir(parents=True)
        (folder / "logs" / role / "rank-0.log").write_text(f"{role} says hello\n")
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    monkeypatch.setenv("TMUX_TMPDIR", str(sockets))
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    yield folder
    subprocess.run(["tmux", "kill-server"], check=False, capture_output=True)


def follow(run_dir: Path) -> Callable[[str | None], list[str]]:
    """What `kit logs` prints, without a Slurm to ask whether the run has ended."""
    code = (
        "import sys; from pathlib import Path; from kit.record import logs\n"
        "for source, chunk in logs.follow(Path(sys.argv[1]), logs.Wanted(), ended=lambda: False):\n"
        "    print(source, chunk.decode(), end='', flush=True)\n"
    )
    return lambda role: [sys.executable, "-c", code, str(run_dir)]


def tail(run_dir: Path) -> Callable[[str | None], list[str]]:
    return lambda role: ["tail", "-n+1", "-F", str(run_dir / "logs" / str(role) / "rank-0.log")]


def ask(*words: str) -> list[str]:
    return subprocess.run(["tmux", *words], check=True, capture_output=True, text=True).stdout.splitlines()


def says_hello(pane: str, role: str) -> bool:
    return any(f"{role} says hello" in text for text in ask("capture-pane", "-p", "-t", pane))


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_of_another_shell_gives_the_session_this_one_s_environment(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs asked another cache of clusters, and the shell had no `kit` of this environment."""
    monkeypatch.setenv("HOME", str(run_dir))  # without start files
    monkeypatch.setenv("XDG_CACHE_HOME", "/another")
    ask("new-session", "-d", "-s", "older")
    monkeypatch.setenv("XDG_CACHE_HOME", f"{run_dir}/cache")
    monkeypatch.setenv("TOKEN", "secret")
    session = tmux.session_of(run_dir)
    tmux.make(session, run_dir, cwd=run_dir, following=lambda _: ["sh", "-c", 'echo "cache $XDG_CACHE_HOME"; sleep 60'])
    until(lambda: f"cache {run_dir}/cache" in "".join(ask("capture-pane", "-J", "-p", "-t", f"{session}:logs.0")))

    def shell_has_it() -> bool:
        # Again each time: a shell that is starting drops what was typed before it reads.
        ask("send-keys", "-t", f"{session}:shell", 'echo "here $XDG_CACHE_HOME"', "Enter")
        return f"here {run_dir}/cache" in "".join(ask("capture-pane", "-J", "-p", "-t", f"{session}:shell"))

    until(shell_has_it)
    assert not [line for line in ask("show-environment", "-t", session) if "secret" in line]


def test_two_windows_and_a_pane_for_each_role(run_dir: Path) -> None:
    session = tmux.session_of(run_dir)
    assert session == "sums-1_2"
    assert not tmux.exists(session)
    tmux.make(session, run_dir, cwd=run_dir, following=tail(run_dir))
    assert tmux.exists(session)
    assert ask("list-windows", "-t", session, "-F", "#{window_name}") == ["shell", "logs"]
    panes = ask("list-panes", "-t", f"{session}:logs", "-F", "#{pane_id} #{pane_title}")
    assert [line.split()[1] for line in panes] == ["inference", "orchestrator", "trainer"]
    for line in panes:
        pane, role = line.split()
        until(partial(says_hello, pane, role))
    with (run_dir / "logs" / "trainer" / "rank-0.log").open("a") as log:
        log.write("step 2\n")
    until(lambda: "step 2" in ask("capture-pane", "-p", "-t", panes[2].split()[0]))
    assert ask("display-message", "-p", "-t", f"{session}:shell", "#{pane_current_path}") == [str(run_dir)]


def test_a_pane_outlives_its_command(run_dir: Path) -> None:
    session = tmux.session_of(run_dir)
    # tmux 3.3 loses the text of a command that has ended before its pane is ready. No Python program is that quick.
    tmux.make(session, run_dir, cwd=run_dir, following=lambda role: ["sh", "-c", f"echo the end of {role}; sleep 0.3"])
    (pane, *_) = ask("list-panes", "-t", f"{session}:logs", "-F", "#{pane_id}")
    until(lambda: ask("display-message", "-p", "-t", pane, "#{pane_dead}") == ["1"])
    # With its history: tmux moves the text up when the pane becomes smaller, or to write below it that the command has ended.
    shown = ["capture-pane", "-p", "-S", "-", "-t", pane]
    until(lambda: "the end of inference" in ask(*shown))
    assert ask("display-message", "-p", "-t", pane, "#{pane_dead}") == ["1"]
    assert ask(*shown).count("the end of inference") == 1


@pytest.mark.parametrize("count", [1, 12])
def test_any_number_of_roles_finds_room(count: int, run_dir: Path) -> None:
    shutil.rmtree(run_dir / "logs")
    for number in range(count):
        (run_dir / "logs" / f"replica-{number:02}").mkdir(parents=True)
    session = tmux.session_of(run_dir)
    tmux.make(session, run_dir, cwd=run_dir, following=lambda role: ["sleep", "60"])
    assert len(ask("list-panes", "-t", f"{session}:logs")) == count


def test_a_plain_job_has_one_pane(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "logs")
    (run_dir / "logs").mkdir()
    (run_dir / "logs" / "batch.log").write_text("the batch script\n")
    session = tmux.session_of(run_dir)
    tmux.make(session, run_dir, cwd=run_dir, following=follow(run_dir))
    (pane,) = ask("list-panes", "-t", f"{session}:logs", "-F", "#{pane_id} #{pane_title}")
    assert pane.endswith("all ranks")
    until(lambda: "batch the batch script" in ask("capture-pane", "-p", "-t", pane.split()[0]))
    (run_dir / "logs" / "rank-0.log").write_text("a log made later\n")
    until(lambda: "rank-0 a log made later" in ask("capture-pane", "-p", "-t", pane.split()[0]))


def test_attach_shows_the_session_on_a_terminal(run_dir: Path) -> None:
    session = tmux.session_of(run_dir)
    tmux.make(session, run_dir, cwd=run_dir, following=lambda role: ["sleep", "60"])
    code = f"import sys; from kit.sessions import tmux; sys.exit(tmux.attach({session!r}))"
    process, terminal = pty.fork()
    if process == 0:
        os.execv(sys.executable, [sys.executable, "-c", code])
    until(lambda: bool(ask("list-clients", "-t", session)))
    ask("detach-client", "-s", session)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    os.close(terminal)
    assert tmux.exists(session)


def test_a_hostile_log_leaves_the_terminal_as_it_was(tmp_path: Path, run_dir: Path) -> None:
    """In a real terminal: its title, its clipboard, the lines above. `cat` of the same log changes all three."""
    run = tmp_path / "evil-20261122-100000-abcd"
    (run / "logs").mkdir(parents=True)
    log = run / "logs" / "rank-0.log"
    log.write_bytes(b"\x1b]2;owned\x07\x1b]52;c;cm0gLXJm\x07\x1b[1A\rFORGED\x1b[K\nthe end\n")
    run_tmux = partial(subprocess.run, check=True, capture_output=True, text=True)
    # Without a session of its own the server ends with the first one below, perhaps while the second one is made.
    run_tmux(["tmux", "new-session", "-d", "-s", "other", "sh"])
    for command, title, pasted in (
        (f"{sys.executable} -m kit logs {run}", "before", ""),
        (f"cat {log}", "owned", "rm -rm"),
    ):
        run_tmux(["tmux", "new-session", "-d", "-x", "150", "-y", "24", "-s", "evil", "sh"])
        run_tmux(["tmux", "set-option", "-s", "set-clipboard", "on"])
        run_tmux(["tmux", "select-pane", "-t", "evil", "-T", "before"])
        run_tmux(
            [
                "tmux",
                "send-keys",
                "-t",
                "evil",
                f"PS1=; cd {Path(__file__).parents[2]}; echo first line; {command}",
                "Enter",
            ]
        )
        shown = ""
        end = time.monotonic() + 60
        while "the end" not in shown and time.monotonic() < end:
            time.sleep(0.2)
            shown = run_tmux(["tmux", "capture-pane", "-p", "-t", "evil"]).stdout
        lines = shown.splitlines()
        assert ("first line" in lines) == (title == "before"), shown
        assert ("FORGED" in lines) == (title == "owned"), shown
        assert run_tmux(["tmux", "display-message", "-p", "-t", "evil", "#{pane_title}"]).stdout.strip() == title
        buffers = subprocess.run(["tmux", "show-buffer"], check=False, capture_output=True, text=True).stdout
        assert bool(buffers) == bool(pasted)
        run_tmux(["tmux", "kill-session", "-t", "evil"])
