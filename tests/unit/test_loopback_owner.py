"""Listeners on 127.0.0.1 serve their own user: every user of the machine can connect to them. C4, C18."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kit import shell
from kit.errors import UsageError
from kit.loopback_owner import OwnSocket, listening, user_of

NOBODY = 65534
# Opens so many connections, says nothing, and prints when all of them have been closed.
SILENT = """
import socket, sys
port, number = map(int, sys.argv[1:])
held = [socket.create_connection(("127.0.0.1", port)) for _ in range(number)]
print("open", flush=True)
for one in held:
    try:
        one.recv(1)
    except ConnectionResetError:
        pass
print("closed", flush=True)
"""


def stranger(port: int, connections: int) -> subprocess.Popen[str]:
    """Another user's process with silent connections to a port."""
    if os.geteuid() != 0 or shell.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to become another user")
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    argv = [*become, "/usr/bin/python3", "-I", "-c", SILENT, str(port), str(connections)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def opened() -> Iterator[socket.socket]:
    with listening("--port", 0) as found:
        yield found


def test_the_owner_of_a_connection_is_known(opened: socket.socket) -> None:
    with socket.create_connection(opened.getsockname()) as client:
        taken, _ = opened.accept()
        with taken:
            assert user_of(taken) == os.geteuid()
        assert client.recv(1) == b""


def test_c18_kit_port_and_kit_serve_listen_for_their_owner() -> None:
    with listening("--port", 0) as serves, listening("--local", 0) as forwards:
        assert [type(one) for one in (serves, forwards)] == [OwnSocket, OwnSocket]


def test_a_port_in_use_is_named_with_its_option(opened: socket.socket) -> None:
    port = opened.getsockname()[1]
    with pytest.raises(UsageError) as error, listening("--local", port):
        pass
    assert error.value.message == f"--local {port}: Address already in use"
    assert error.value.hint == "--local 0 takes any free port"


def test_c18_a_connection_of_another_user_is_closed(opened: socket.socket) -> None:
    with stranger(opened.getsockname()[1], 1) as other:
        with pytest.raises(ConnectionAbortedError):
            opened.accept()
        assert other.communicate(timeout=60)[0].split() == ["open", "closed"]


def test_c4_a_flood_by_another_user_takes_nothing_from_the_owner(opened: socket.socket) -> None:
    """1,100 silent connections made kit serve answer its owner with 503. The server of asyncio is uvicorn's, too."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(await reader.readline())
        writer.write(b"yes\n")
        writer.close()

    async def ask() -> bytes:
        async with await asyncio.start_server(answer, sock=opened):
            with stranger(opened.getsockname()[1], 300) as other:
                reader, writer = await asyncio.open_connection(*opened.getsockname())
                writer.write(b"mine\n")
                found = await reader.readline()
                writer.close()
                assert other.stdout
                said = await asyncio.to_thread(other.communicate, None, 60)
                assert said[0].split() == ["open", "closed"]
            return found

    served = list[bytes]()
    assert asyncio.run(ask()) == b"yes\n"
    assert served == [b"mine\n"]


def test_a_listener_that_has_no_free_file_serves_again() -> None:
    """kit_memory's server is inside the program that trains: its thread must not end with the first accept(2) that fails."""
    script = f"""
import os, resource, socket, subprocess, sys, threading, time
sys.path.insert(0, {str(shell_templates())!r})
import kit_memory_transfer as transfer
server = transfer.PartServer(None, b"t" * 32, "127.0.0.1")
threads = lambda: sum(one.name == "kit-memory" for one in threading.enumerate())
silent = subprocess.Popen([sys.executable, "-c", {SILENT!r}, str(server.address[1]), "200"], stdout=subprocess.PIPE)
silent.stdout.readline()
time.sleep(1)
print("threads", threads() <= 33, open("/proc/self/stat").close())
silent.kill(); silent.wait()
while threads() > 1:
    time.sleep(0.1)
late = subprocess.Popen([sys.executable, "-c", "import socket, sys; sys.stdin.readline(); "
    "s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print('up', flush=True); sys.stdin.readline()",
    str(server.address[1])], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
late.stdin.write(b"\\n"); late.stdin.flush(); late.stdout.readline()
time.sleep(1)
for one in held:
    os.close(one)
client = socket.create_connection(server.address)
transfer.Channel(client, b"t" * 32, serves=False)
print("serves")
os._exit(0)
"""
    done = shell.run([sys.executable, "-c", script], timeout=100)
    assert done.stdout.splitlines() == ["threads True None", "serves"]


def shell_templates() -> str:
    """The folder of the libraries that ranks import."""
    from tests.support import REPO

    return str(REPO / "templates" / "kit_node")
