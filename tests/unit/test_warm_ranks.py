"""A forked rank is, in all that a program can ask, the rank of a plain start.

warm_ranks.py and warm_client.py; warm_request.py (what is refused), warm_imports.py, warm_child.py (environment, files, limits) and
warm_program.py (how a program runs and ends).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import REPO
from tests.warm import TIMEOUT_S, Warm, came

# What a program sees of itself. The addresses of objects, and what names this start, are left out.
SEES = """
import __main__, json, os, re, resource, signal, sys, warnings
seen = {
    "argv": sys.argv, "path": sys.path, "flags": str(sys.flags), "words": getattr(sys, "orig_argv", None),
    "options": [sys._xoptions, sys.warnoptions], "executable": sys.executable, "filters": str(warnings.filters),
    "main": {name: re.sub("0x[0-9a-f]+", "", str(value)) for name, value in vars(__main__).items() if name.startswith("__")},
    "is main": sys.modules["__main__"] is __main__, "env": dict(sorted(os.environ.items())), "cwd": os.getcwd(),
    "umask": os.umask(0o22), "handlers": {int(n): str(signal.getsignal(n)) for n in signal.valid_signals()},
    "mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
    "files": sorted((fd, os.readlink(f"/proc/self/fd/{fd}")) for fd in ("0", "1", "2")),
    "others": [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}")],
    "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
    "cpus": sorted(os.sched_getaffinity(0)), "cmdline": open("/proc/self/cmdline").read().rstrip("\\0"),
    "comm": open("/proc/self/comm").read(), "stdout": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdout.write_through],
    "environ": sorted(word for word in open("/proc/self/environ").read().split("\\0") if word),
}
print(json.dumps(seen, indent=1))
"""


@pytest.fixture
def noted() -> Iterator[list[int]]:
    """Signals that a client passed to its parent, which is rank.sh in a run, and these tests here."""
    got: list[int] = []
    before = {n: signal.signal(n, lambda number, _: got.append(number)) for n in (signal.SIGUSR1, signal.SIGTERM)}
    yield got
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    made = Warm(tmp_path)
    yield made
    if made.process is not None:
        made.process.kill()
        made.process.wait()


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("how", [("p.py", "a", "--b=c d"), ("./p.py",), ("-m", "p", "a"), ("-m", "package.part", "x")])
def test_a_forked_program_sees_what_a_plain_one_sees(warm: Warm, how: tuple[str, ...]) -> None:
    (warm.folder / "package").mkdir()
    for name in ("p.py", "package/part.py"):
        warm.write(SEES, name)
    warm.serve("decimal,xml.dom.minidom")
    warm.env |= {"RANK": "3", "SLURM_PROCID": "3", "KIT_ANY": "x\ny"}
    plain = json.loads(warm.run(*how, warm=False)[1])
    code, out, err = warm.run(*how)
    forked = json.loads(out)
    assert (code, err) == (0, "")
    # The number of the shell that a rank has above it, and the numbers of files: out and err are written anew.
    assert forked["env"].pop("KIT_RANK_SHELL") == str(warm.process and warm.process.pid)
    forked["environ"] = [word for word in forked["environ"] if not word.startswith("KIT_RANK_SHELL=")]
    for name, value in plain.items():
        assert forked[name] == value, name


def test_modules_are_there_before_the_program_asks(warm: Warm) -> None:
    warm.write("import sys; print('xml.dom.minidom' in sys.modules)")
    warm.serve("xml.dom.minidom")
    assert warm.run("p.py", warm=False)[1] == "False\n"
    assert warm.run("p.py")[1] == "True\n"


def test_what_was_imported_is_not_collected_again_by_each_rank(warm: Warm) -> None:
    """A collection looked at all objects of torch: 0.17 seconds for a rank that lives on, and all of their pages copied."""
    warm.write("import gc; print(gc.get_freeze_count() > 0, len(gc.get_objects()) < 1000)")
    warm.serve("xml.dom.minidom")
    assert warm.run("p.py")[1] == "True True\n"


@pytest.mark.parametrize(
    "text",
    [
        "raise SystemExit(7)",
        "import sys; sys.exit('words')",
        "import os; os._exit(200)",
        "def f():\n    raise ValueError('x')\nf()",
        "raise KeyboardInterrupt",
        # Python 3.8 names another line where it reads the text from the file itself.
        pytest.param("def f(", id="syntax"),
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit, threading, time\natexit.register(print, 'bye')\n"
        "def late():\n    time.sleep(0.1)\n    print('late')\nthreading.Thread(target=late).start()",
        "import sys\nsys.excepthook = lambda *of: print(of[0], of[2].tb_frame.f_code.co_filename)\nraise OSError",
    ],
)
def test_a_forked_program_ends_as_a_plain_one(warm: Warm, text: str) -> None:
    """Code or signal, output, and the traceback: it has no line of the kit's."""
    warm.write(text)
    warm.serve("json")
    assert warm.run("p.py") == warm.run("p.py", warm=False)


def test_ranks_share_no_random_numbers(warm: Warm) -> None:
    warm.write(
        "import random\ntry:\n    import numpy.random as of\nexcept ImportError:\n    import random as of\n"
        "print(random.random(), of.random())"
    )
    warm.serve("random")
    drawn = [word for _ in range(3) for word in warm.run("p.py")[1].split()]
    assert len({*drawn}) == 6


@pytest.fixture
def slurmstepd(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this name."""
    program = tmp_path / "slurmstepd"
    shutil.copy(shutil.which("sleep") or "sleep", program)
    started = subprocess.Popen([program, "60"])
    yield started
    started.kill()
    started.wait()


@pytest.mark.parametrize("lives", [True, False])
def test_a_rank_without_its_slurmstepd_is_killed_and_not_hung_up(
    warm: Warm, slurmstepd: subprocess.Popen[bytes], lives: bool
) -> None:
    """Pyxis's tasks get HUP when their slurmstepd was killed. The run then ended with 129, as if the program had got it."""
    warm.write("import time\nprint('up', flush=True)\ntime.sleep(60)")
    warm.serve("json")
    rank = warm.start("p.py", KIT_SLURMSTEPD=str(slurmstepd.pid))
    came(lambda: "up" in (warm.folder / "out").read_text())
    if not lives:
        slurmstepd.kill()
        slurmstepd.wait()
    rank.send_signal(signal.SIGHUP)
    assert rank.wait(TIMEOUT_S) == -(signal.SIGHUP if lives else signal.SIGKILL)


@pytest.mark.parametrize(("gone_after", "waits"), [(0, 0), (3, 3), (1000, 50)])
def test_a_slurmstepd_that_is_killed_after_that_of_the_warm_process_is_seen(
    monkeypatch: pytest.MonkeyPatch, gone_after: int, waits: int
) -> None:
    """rank.sh looks for it once the client has ended. It lived for another moment, and `kit why` named srun instead."""
    monkeypatch.setattr(sys, "path", [str(REPO / "templates" / "kit_node"), *sys.path])
    client = import_module("warm_client")
    slept: list[float] = []
    # Only the client's own clock: other threads of the tests sleep, too.
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append, strftime=time.strftime)
    monkeypatch.setattr(client, "time", clock)
    monkeypatch.setattr(client, "_is_gone", lambda _: len(slept) >= gone_after)
    connection = SimpleNamespace(recv=lambda _: b"")
    assert client._stand_for(connection, 5) == ("killed", signal.SIGKILL)
    assert abs(len(slept) - waits) <= 1, "a second at most"
    slept.clear()
    client._stand_for(connection, None)
    assert slept == [], "where it cannot be seen"


def test_a_signal_reaches_the_rank_once(warm: Warm, noted: list[int]) -> None:
    """As Slurm sends it: to the client alone, or to each process of all steps."""
    warm.write(
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('got', flush=True))\n"
        "pathlib.Path('up').write_text(f'{os.getpid()} ')\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.01)"
    )
    server = warm.serve("json")
    rank = warm.start("p.py")
    up, out = warm.folder / "up", warm.folder / "out"
    came(lambda: up.exists() and up.read_text().endswith(" "))
    rank.send_signal(signal.SIGUSR1)
    came(lambda: out.read_text() == "got\n")
    assert noted == []
    # The second time it reaches the server and its child, too.
    for pid in (server.pid, int(up.read_text()), rank.pid):
        os.kill(pid, signal.SIGUSR1)
    came(lambda: out.read_text() == "got\ngot\n" and noted)
    time.sleep(2)  # a third one would be passed on after a second
    (warm.folder / "go").touch()
    assert rank.wait(TIMEOUT_S) == 0
    assert out.read_text() == "got\ngot\n"
    assert noted == [signal.SIGUSR1], "rank.sh knows that its program was told"


def test_what_a_killed_client_leaves_is_ended(warm: Warm) -> None:
    """Slurm kills the clients with their step. The rank goes, and what it has started."""
    warm.write(
        "import os, pathlib, subprocess, time\nleft = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "pathlib.Path('pids').write_text(f'{os.getpid()} {left.pid} ')\ntime.sleep(1000)"
    )
    warm.serve("json")
    rank = warm.start("p.py")
    came(lambda: (warm.folder / "pids").exists() and (warm.folder / "pids").read_text().endswith(" "))
    pids = [int(word) for word in (warm.folder / "pids").read_text().split()]
    assert all(map(alive, pids))
    rank.kill()
    rank.wait()
    came(lambda: not any(map(alive, pids)))
    warm.write("print('again')")
    assert warm.run("p.py")[:2] == (0, "again\n"), "the warm process serves the next start"


def test_ranks_end_with_their_warm_process(warm: Warm) -> None:
    warm.write("import os, pathlib, time\npathlib.Path('up').write_text(f'{os.getpid()} ')\ntime.sleep(1000)")
    server = warm.serve("json")
    rank = warm.start("p.py")
    came(lambda: (warm.folder / "up").exists() and (warm.folder / "up").read_text().endswith(" "))
    server.kill()
    assert rank.wait(TIMEOUT_S) == -signal.SIGKILL
    came(lambda: not alive(int((warm.folder / "up").read_text())))
    assert "the warm process is gone, and its ranks with it" in (warm.folder / "err").read_text()


@pytest.mark.parametrize(
    ("modules", "why"),
    [
        ("no_such_module", "no_such_module cannot be imported: ModuleNotFoundError"),
        ("threads", "the imports have left threads, which a fork does not copy"),
        ("reports", "kit_rank belongs to one rank"),
        ("json", "differs in OTHER"),
    ],
)
def test_what_cannot_be_forked_starts_plainly_and_says_why(warm: Warm, modules: str, why: str) -> None:
    warm.write(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()", "threads.py"
    )
    warm.write("import kit_rank", "reports.py")
    warm.write("import os; print(os.environ['KIT_RANK_SHELL'], 'json' in __import__('sys').modules)")
    warm.serve(modules)
    code, out, err = warm.run("p.py", OTHER="1")
    assert (code, out) == (0, f"{os.getpid()} False\n")
    assert why in err
    assert err.endswith("; the rank imports by itself\n")


def test_the_prompt_of_a_virtual_environment_is_no_difference(warm: Warm) -> None:
    """`source .venv/bin/activate` exports PS1, made from the one that it finds: no rank of such a job was warm."""
    warm.write("import os; print(os.environ['PS1'], 'json' in __import__('sys').modules)")
    warm.serve("json")
    code, out, err = warm.run("p.py", PS1="(.venv) ", _OLD_VIRTUAL_PS1="x")
    assert (code, out, err) == (0, "(.venv)  True\n", "")


def test_without_a_warm_process_the_rank_starts_plainly(warm: Warm) -> None:
    warm.write("import sys; sys.exit(5)")
    words = [word if word != "20" else "0" for word in warm.words("p.py")]
    done = subprocess.run(
        words, env=warm.env, cwd=warm.folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 5
    assert "there is no warm process on this node; the rank imports by itself" in done.stderr


def test_it_ends_when_it_is_told_to_and_has_no_rank(warm: Warm, noted: list[int]) -> None:
    """A rank that still saves keeps it."""
    warm.write(
        "import pathlib, time\npathlib.Path('up').touch()\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.01)"
    )
    server = warm.serve("json")
    rank = warm.start("p.py")
    came((warm.folder / "up").exists)
    server.terminate()
    time.sleep(0.5)
    assert server.poll() is None
    (warm.folder / "go").touch()
    assert (rank.wait(TIMEOUT_S), server.wait(TIMEOUT_S)) == (0, 0)
    assert noted == [signal.SIGTERM]
