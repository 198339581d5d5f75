"""Strangers at listeners of the nodes: the sender of an image, and the warm process.

The table in docs/concepts/trust.md has the other listeners and their tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit import shell
from tests.support import REPO

NODE = REPO / "templates" / "kit_node"
NOBODY = 65534


def python(script: str, *words: str) -> list[str]:
    """A program that imports the libraries of the nodes; it prints what it finds."""
    done = shell.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(NODE)!r})\n{script}", *words], timeout=100
    )
    return done.stdout.splitlines()


def test_c3_the_sender_of_an_image_serves_again_after_it_had_no_free_file() -> None:
    """Its thread ended with the first accept(2) that failed, and no node took a block from it any more."""
    script = """
import os, resource, socket, threading, time
from types import SimpleNamespace
import image_sender, node_wire
share = SimpleNamespace(meeting=SimpleNamespace(token=b"t" * 32), tell=lambda **_: None)
port = image_sender.Sender(share).listen("127.0.0.1")
late = socket.socket()
resource.setrlimit(resource.RLIMIT_NOFILE, (32, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
late.connect(("127.0.0.1", port))
time.sleep(0.5)
for one in held:
    os.close(one)
late.settimeout(60)
print(len(late.recv(32)) == node_wire.NUMBER_BYTES)
client = socket.create_connection(("127.0.0.1", port))
client.settimeout(60)
node_wire.greet(client, b"t" * 32)
print("serves")
"""
    assert python(script) == ["True", "serves"]


def test_the_sender_of_an_image_holds_at_most_32_strangers() -> None:
    script = """
import socket, subprocess, threading, time
from types import SimpleNamespace
import image_sender
share = SimpleNamespace(meeting=SimpleNamespace(token=b"t" * 32), tell=lambda **_: None)
port = image_sender.Sender(share).listen("127.0.0.1")
most = image_sender._MOST_STRANGERS
held = [socket.create_connection(("127.0.0.1", port)) for _ in range(most)]
for one in held:
    assert len(one.recv(32)) == 32
more = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
def ended(one):
    try:
        return one.recv(32) == b""
    except ConnectionResetError:
        return True
print(all(ended(one) for one in more), threading.active_count() <= most + 2)
"""
    assert python(script) == ["True True"]


def test_the_warm_process_hears_no_request_of_another_user() -> None:
    """Its socket has an abstract name, which every process of the node can connect to."""
    if os.geteuid() != 0 or shell.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to become another user")
    name = f"kit-test-{os.getpid()}"
    script = f"""
import socket, threading, time
import warm_ranks
def heard(connection):
    print("heard", flush=True)
    raise ValueError("not a request")
warm_ranks.receive = heard
sys.argv = ["warm_ranks.py", {name!r}, "json", sys.executable, "p.py"]
warm_ranks.main()
"""
    connects = f"""
import socket
one = socket.socket(socket.AF_UNIX)
one.connect("\\0{name}")
print(one.recv(1))
"""
    server = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(NODE)!r})\n{script}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stderr is not None
        assert "ranks are forked from here" in server.stderr.readline()
        become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        for words in (become, []):
            done = shell.run([*words, "/usr/bin/python3", "-I", "-c", connects], cwd=Path("/"), timeout=60)
            assert done.stdout == "b''"
    finally:
        server.kill()
    assert server.communicate()[0].splitlines() == ["heard"]


def test_a_rank_sends_nothing_to_the_warm_process_of_another_user() -> None:
    """The request has its whole environment; the answer would be a program of the other user."""
    script = """
import os, socket, warm_client
name, own = f"kit-test-{os.getpid()}", os.geteuid()
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + name)
listener.listen()
connection, reason = warm_client._connected(name, 20)
print(connection is not None, reason == "")
os.geteuid = lambda: own + 1
connection, reason = warm_client._connected(name, 20)
print(connection, reason.endswith(f"another user, uid {own}"))
listener.accept()
print(listener.accept()[0].recv(1))
"""
    assert python(script) == ["True True", "None True", "b''"]


def test_a_rank_reports_nothing_in_a_folder_of_another_user(tmp_path: Path) -> None:
    script = """
import os
from kit_rank import RankReporter
own = os.geteuid()
for uid in (own + 1, own):
    os.geteuid = lambda: uid
    RankReporter(sys.argv[1], "@3").step(1)
    print(sorted(os.listdir(sys.argv[1])))
"""
    assert python(script, str(tmp_path)) == ["[]", "['@3', 'stacks..3']"]
