"""A warm process and its clients, without a Slurm: templates/kit_node/warm_ranks.py and warm_client.py."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.support import NODE, NODE_PYTHON

TIMEOUT_S = 120


class Warm:
    """A warm process, and a client of it. folder: of the programs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, f"kit-test-{os.getpid()}-{random.getrandbits(40)}"
        self.env = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",
            "PYTHONPATH": str(folder / "code"),
        }
        (folder / "code").mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    def serve(self, modules: str, *program: str, orders: bool = False, **env: str) -> subprocess.Popen[bytes]:
        """orders: it takes orders and reports, as from the batch script."""
        words = [
            NODE_PYTHON,
            str(NODE / "warm_ranks.py"),
            self.name,
            modules,
            NODE_PYTHON,
            *(program or ("p.py",)),
        ]
        with (self.folder / "server").open("w") as log:
            self.process = subprocess.Popen(
                words,
                env={"KIT_WARM_ROOM": " " * 60_000, **({"KIT_WARM_ORDERS": "1"} if orders else {}), **self.env, **env},
                cwd=self.folder,
                stdin=subprocess.PIPE if orders else subprocess.DEVNULL,
                stdout=subprocess.PIPE if orders else None,
                stderr=log,
            )
        return self.process

    def order(self, *words: str) -> None:
        """What the batch script would order."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(("\t".join(words) + "\n").encode())
        self.process.stdin.flush()

    def report(self) -> list[str]:
        """The words of the next report; waits for it."""
        assert self.process is not None
        assert self.process.stdout is not None
        mark, *words = self.process.stdout.readline().decode().split()
        assert mark == "kit-warm"
        return words

    @property
    def log(self) -> str:
        return (self.folder / "server").read_text()

    def words(self, *program: str, warm: bool = True) -> list[str]:
        client = ["-I", "-S", str(NODE / "warm_client.py"), self.name, "20", str(os.getpid())] if warm else []
        return [NODE_PYTHON, *client, *([NODE_PYTHON] if warm else []), *program]

    def start(self, *program: str, warm: bool = True, out: str = "out", **env: str) -> subprocess.Popen[str]:
        """A rank. Its output goes to the file `out`, its messages to err."""
        with (self.folder / out).open("w") as out_file, (self.folder / "err").open("w") as err:
            return subprocess.Popen(
                self.words(*program, warm=warm),
                env={**self.env, **env},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err,
                text=True,
            )

    def run(self, *program: str, warm: bool = True, **env: str) -> tuple[int, str, str]:
        """Exit code, output and messages of a rank that ends."""
        code = self.start(*program, warm=warm, **env).wait(TIMEOUT_S)
        return code, (self.folder / "out").read_text(), (self.folder / "err").read_text()

    def write(self, text: str, name: str = "p.py") -> str:
        (self.folder / name).write_text(text)
        return name


def came(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
