"""The end of a training program: its own exit code, after its exit functions, whatever the threads of gloo still do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke
LAUNCHERS = Path(__file__).parents[2] / "launchers"
BEGIN = "import atexit, sys, threading, time\nfrom lib import ranks\natexit.register(print, 'exit function')\n"
# The last collective is over, and gloo's thread waits for the interpreter's lock to free its tensor. The group lives on, as
# DeepSpeed's do. Nothing is printed: that would give the thread the lock.
GLOO = """\
import sys, time
import torch, torch.distributed as dist
from lib import ranks
def program(world):
    sys.setswitchinterval(100)
    tensor = torch.zeros(3)
    work = dist.all_reduce(tensor, group=world.control, async_op=True)
    del work, tensor
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
    return 0
dist.destroy_process_group = lambda: None
"""


def ended(program: str, at: Path) -> tuple[int, str, str]:
    """Exit code, output and error output of a program of one rank."""
    (at / "program.py").write_text(f"{program}ranks.run(program, 'cpu')\n")
    env = {**os.environ, "PYTHONPATH": str(LAUNCHERS)}
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=at, env=env, check=False, capture_output=True, text=True, timeout=100
    )
    return done.returncode, done.stdout, done.stderr


def test_no_thread_of_gloo_aborts_a_rank_whose_work_is_done(tmp_path: Path) -> None:
    assert ended(GLOO, tmp_path) == (0, "", "")


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("return 75", 75, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('no data')", 1, "no data\n"),
        ("raise ValueError('odd')", 1, "ValueError: odd\n"),
    ],
)
def test_the_exit_code_is_the_programs(tmp_path: Path, body: str, code: int, says: str) -> None:
    found = ended(f"{BEGIN}def program(_):\n    {body}\n", tmp_path)
    assert found[:2] == (code, "exit function\n")
    assert found[2].endswith(says)
    assert bool(found[2]) == bool(says)


def test_a_thread_that_is_no_daemon_ends_first(tmp_path: Path) -> None:
    late = "threading.Thread(target=lambda: (time.sleep(0.3), print('written', end=' '))).start()"
    found = ended(f"{BEGIN}def program(_):\n    {late}\n    return 0\n", tmp_path)
    assert found == (0, "written exit function\n", "")
