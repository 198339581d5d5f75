"""Runs the command line in forks of one process that has imported it: each command is a process, without the time of the imports.

Tests of clusters run `kit` several times each, and imports are two thirds of a command's processor time. `run` is
`kit.shell.run([sys.executable, "-m", "kit", ...])` in all that a test sees: folder, environment, both outputs, exit code and time
limit. Real starts are in tests/unit, in the blocks of pages, and where a test of a cluster uses subprocess or ssh.
KIT_TEST_STARTS=1 starts a new Python for every command.

As a program it is the server: `python kit_server.py SOCKET`, which ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO

# What Python itself reads when it starts.
_READ_AT_START = ("PYTHON", "LANG", "LC_", "COLUMNS", "LD_", "COVERAGE")
_REPO = str(Path(__file__).parents[1])


def forks(env: Mapping[str, str]) -> bool:
    """Whether a command with this environment may be a fork: the server's Python was started with the same."""
    return env.get("KIT_TEST_STARTS") != "1" and _of_start(env) == _server().begun_with


def _of_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_READ_AT_START)}


def run(words: list[str], *, cwd: Path, env: Mapping[str, str], timeout: float) -> tuple[int, str, str] | None:
    """Exit code (as subprocess gives it), stdout and stderr of `kit WORDS`; None if it was not done in time, and was killed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = _server().ask(words, cwd, env, timeout, [out.fileno(), err.fileno()])
        if code is None:
            return None
        said = _text(out), _text(err)
        from tests import json_answers

        json_answers.check(words, code, *said)
        return code, *said


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").rstrip("\n")


@cache
def _server() -> Server:
    """The server of this process; it ends with this process."""
    return Server()


class Server:
    """A process that has imported the kit, and forks at each command."""

    def __init__(self) -> None:
        # A short path, as sockets need.
        self.place = Path(tempfile.mkdtemp(prefix="commands-", dir="/tmp")) / "s"
        self.begun_with = _of_start(os.environ)
        words = [sys.executable, __file__, str(self.place)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_REPO)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def ask(self, words: list[str], cwd: Path, env: Mapping[str, str], timeout: float, files: list[int]) -> int | None:
        """The command's exit code; None after the time limit."""
        request = json.dumps({"words": words, "cwd": str(cwd), "env": dict(env)}).encode()
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.place))
            socket.send_fds(line, [len(request).to_bytes(8, "big")], files)
            line.sendall(request)
            answers = line.makefile("r")
            pid = int(answers.readline())
            if not select.select([line], [], [], timeout)[0]:
                os.killpg(pid, signal.SIGKILL)
                return None
            return int(answers.readline())


def _serve(place: str) -> list[str] | None:
    """Fork at each request. Returns in the forks alone, with the words of the command; None in the server, at its end."""
    life = sys.stdin.fileno()
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(place)
        door.listen(64)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            ready, _, _ = select.select([door, life], [], [])
            if door not in ready:
                Path(place).unlink()
                Path(place).parent.rmdir()
                return None
            line, _ = door.accept()
            # The first child waits for the second, which is the command; the server waits for neither.
            if os.fork() == 0:
                door.close()
                return _command(line)
            line.close()


def _command(line: socket.socket) -> list[str]:
    """Returns in the command's own process; the one that waits for it ends here."""
    size, files, _, _ = socket.recv_fds(line, 8, 2)
    request = json.loads(line.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        os.setpgid(child, child)
        line.sendall(f"{child}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
            line.sendall(f"{code}\n".encode())
        os._exit(0)
    os.setpgid(0, 0)
    line.close()
    empty = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((empty, *files)):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    return list(request["words"])


def _import_all() -> None:
    """All modules of the kit that commands import; what they import inside of functions is left to the forks."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    import kit

    for module in pkgutil.walk_packages(kit.__path__, "kit."):
        if module.name.rpartition(".")[2] != "__main__":
            with contextlib.suppress(ImportError):  # an extra that is not installed here
                import_module(module.name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    # This folder has modules with the names of others.
    sys.path[0] = _REPO
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _import_all()
    if (words := _serve(sys.argv[1])) is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["", *words]
        runpy.run_module("kit", run_name="__main__", alter_sys=True)
