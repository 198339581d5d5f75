"""kit_keep without torch: how it closes the connections of a process."""

from __future__ import annotations

import subprocess
import sys

from tests.support import REPO

_PROGRAM = """
import os, socket
import kit_keep
listener = socket.create_server(("127.0.0.1", 0))
here = socket.create_connection(listener.getsockname())
there, _ = listener.accept()
one, other = socket.socketpair()
before = sorted(os.listdir("/proc/self/fd"))
for _ in range(50):
    kit_keep._break_groups()
assert sorted(os.listdir("/proc/self/fd")) == before
assert here.recv(1) == there.recv(1) == b"", "the connection is shut down at both ends"
one.send(b"x")
assert other.recv(1) == b"x", "a socket that is no TCP connection stays"
socket.create_connection(listener.getsockname()).close()
"""


def test_connections_are_shut_down_and_no_file_is_left_open() -> None:
    """A file that is no socket left a copy of itself at each call, so that a slow survivor ran out of files within a second."""
    path = {"PYTHONPATH": str(REPO / "templates" / "kit_node")}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=path, check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
