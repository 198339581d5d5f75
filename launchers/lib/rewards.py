"""The user's own reward: a function in a Python file, given as path/to/file.py:function.

    def reward(prompt: str, completion: str, problem: dict) -> float: ...

problem: the line of the problems file. The reward is any finite number; 1 or more counts as right. The function runs in its own
process (reward_process.py). The program stops with one error where that process ends, or hangs, even inside C code that holds the
interpreter's lock. If the function raises, or returns anything else, the error names the line of its file.
"""

import atexit
import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .faults import Refused

Reward = Callable[[str, str, dict[str, Any]], float]
TIMEOUT_S = 120.0  # a verifier that runs tests or a model takes seconds; one that takes minutes needs --reward-timeout


def opened(which: str, *, timeout: float = TIMEOUT_S) -> Reward:
    """A function that asks the user's function in its own process. Refused where the file or the function fails or cannot be used.

    timeout: seconds for one call, and for reading the file at the start.
    """
    name, colon, function = which.rpartition(":")
    path = Path(name)
    if not colon or path.suffix != ".py" or not function.isidentifier():
        raise Refused(f"--reward {which}: not written as FILE.py:FUNCTION", hint="--reward /workspace/reward.py:reward")
    if not path.is_file():
        raise Refused(
            f"--reward {which}: no such file", hint="a path as the program sees it: mount it into the container"
        )
    if not timeout > 0:
        raise Refused(f"--reward-timeout {timeout:g}: seconds, above 0")
    process = _Process(path, function, timeout)
    process.answer("the file was not read")

    def checked(prompt: str, completion: str, problem: dict[str, Any]) -> float:
        process.ask({"prompt": prompt, "completion": completion, "problem": problem})
        return float(process.answer("no answer")["reward"])

    return checked


class _Process:
    """Runs reward_process.py, which answers one question after the other. It ends when this process ends, in whatever way."""

    def __init__(self, path: Path, function: str, timeout: float) -> None:
        self._named, self._timeout = f"{path}: {function}", timeout
        questions, self._questions = os.pipe()
        self._answers, answers = os.pipe()
        argv = [sys.executable, "-u", "-m", "lib.reward_process", str(os.getpid()), str(questions), str(answers)]
        folders = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        # A new session, so that programs that the function starts can be killed with it.
        self._process = subprocess.Popen(
            [*argv, str(path), function],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
            stdin=subprocess.DEVNULL,
            pass_fds=(questions, answers),
            start_new_session=True,
        )
        os.close(questions)
        os.close(answers)
        atexit.register(self._end)
        self._rest = b""

    def ask(self, question: dict[str, Any]) -> None:
        """Send a question. If the process has ended, answer() raises."""
        left = json.dumps(question).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while left:
                left = left[os.write(self._questions, left) :]

    def answer(self, late: str) -> dict[str, Any]:
        """The answer to the last question. late: the error where none comes in time. Refused for anything that is not a reward."""
        waited = 0.0
        while b"\n" not in self._rest:
            began = time.monotonic()
            ready, _, _ = select.select([self._answers], [], [], min(1.0, self._timeout - waited))
            # Count at most one second at a time: a job that was suspended for an hour has not waited for an hour.
            waited += min(1.0, time.monotonic() - began)
            if ready:
                read = os.read(self._answers, 65536)
                if not read:
                    raise Refused(f"{self._named}: its process ended {_exit_reason(self._process.wait())}")
                self._rest += read
            elif waited >= self._timeout:
                self._end()
                raise Refused(
                    f"{self._named}: {late} within {self._timeout:g} s, the limit (--reward-timeout)",
                    hint="see where it hangs, or a longer limit",
                )
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        if "fault" in found:
            raise Refused(found["fault"], hint=found.get("hint", ""))
        return found

    def _end(self) -> None:
        """Kill the process and the programs that it started: nothing else would end them."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _exit_reason(code: int) -> str:
    return f"by signal {-code}" if code < 0 else f"with exit code {code}"


def fault_of(value: object) -> str:
    """The error text for a returned value that is not a finite number; else empty."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return f"it returned {value!r:.200}, which is not a number"
    return "" if math.isfinite(value) else f"it returned {value!r}, which is not finite"
