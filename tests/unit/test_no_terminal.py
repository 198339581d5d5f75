"""Every command without a terminal: it asks nothing, waits for no input, and prints neither colour nor progress."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.cli import GROUPS
from tests.unit.test_command_line import project

__all__ = ["project"]

COMMANDS = [name for commands in GROUPS.values() for name in commands]
# Words with which a command does its work, or as much of it as can be done without a Slurm, an engine and a network.
WORDS = {
    "run": ["train.py"], "cancel": ["digits-8"], "resume": ["digits-8"], "build-image": ["train-cpu"],
    "cluster": ["down"], "migrate": ["batch.sh"], "shell": ["-c", "local"], "diff": ["digits-7", "digits-8"],
    "bisect": ["--good", "digits-7", "--bad", "digits-8"], "wait": ["digits-8", "--timeout", "1"],
    "export": ["digits-8"], "import": ["digits.tar.zst"], "port": ["digits-8", "6006"],
    "import-image": ["here", "docker://127.0.0.1:1/none"], "verify-image": ["train-cpu"],
    "sign-image": ["train-cpu", "--key", "key"], "diff-images": ["train-cpu", "train-cpu"], "trust": ["list"],
    "watch": ["--once"], "convert-checkpoint": ["a", "b"], "prepare-data": ["text", "a", "b"], "generate": ["out"],
    "template": ["list"], "schema": ["job"], "model": ["config.json"], "checkpoint-size": ["--params", "1e9"],
    "prune-runs": ["--keep", "0"], "rerun": ["digits-8"], "time": ["digits-8"],
}  # fmt: skip
# Terminal control: an escape, or a carriage return that writes over a line.
CONTROL = re.compile(r"[\x1b\r\x08]")


@pytest.fixture
def sockets() -> Iterator[Path]:
    """For tmux, whose server stays when the command has ended. The path of a socket must be short."""
    with tempfile.TemporaryDirectory(prefix="kit-") as folder:
        yield Path(folder)
        if shutil.which("tmux"):
            env = {**os.environ, "TMUX_TMPDIR": folder}
            subprocess.run(["tmux", "kill-server"], env=env, capture_output=True, check=False)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("stdin", ["closed", "silent"])
def test_a_command_without_a_terminal(
    command: str, stdin: str, project: Path, sockets: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """stdin: closed, as in some cron jobs and CI runners, or open without a writer that ever writes: a prompt would hang."""
    (project / "train.py").write_text("print(1)\n")
    (project / "batch.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python train.py\n")
    words = [sys.executable, "-m", "kit", command, *WORDS.get(command, [])]
    env = {
        "PATH": "/usr/bin:/bin", "HOME": str(project / "home"), "SLURM_CONF": "/nonexistent", "TERM": "xterm-256color",
        "DOCKER_HOST": "unix:///nonexistent", "TMUX_TMPDIR": str(sockets),
    }  # fmt: skip
    said = tmp_path_factory.mktemp("said")
    # A server reads its stdin for as long as it lives.
    reader, writer = os.pipe()
    source = subprocess.DEVNULL if command == "mcp" else reader
    with (said / "out").open("w") as out, (said / "err").open("w") as err:
        child = subprocess.Popen(
            ["sh", "-c", 'exec "$@" <&-', "sh", *words] if stdin == "closed" else words,
            stdin=source, stdout=out, stderr=err, cwd=project, env=env, start_new_session=True,
        )  # fmt: skip
        os.close(reader)
        try:
            code = end(child, said / "out") if command == "serve" else child.wait(100)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            os.close(writer)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    text, errors = (said / "out").read_text(), (said / "err").read_text()
    assert code is not None, f"kit {command} waits: {text}{errors}"
    assert "Traceback" not in text + errors, text + errors
    assert 0 <= code <= 128 or command == "serve", text + errors
    assert not CONTROL.search(text + errors), text + errors
    if code:
        assert errors.strip(), "an error says why"


def end(server: subprocess.Popen[bytes], out: Path) -> int:
    """End a server as soon as it says its URL; return its exit code."""
    for _ in range(1000):
        if server.poll() is not None or out.stat().st_size:
            break
        time.sleep(0.1)
    server.terminate()
    return server.wait(100)
