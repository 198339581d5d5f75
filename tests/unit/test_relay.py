"""The relay between two clusters: it joins who has the run's token, and nobody else stays or learns anything."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPO

DILOCO = REPO / "launchers" / "diloco"
TOKEN = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def launchers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """launchers/diloco can be imported, as a rank imports it."""
    monkeypatch.syspath_prepend(str(DILOCO))
    yield
    for name in ("relay", "gate", "streams"):
        sys.modules.pop(name, None)


def module(name: str) -> Any:
    return importlib.import_module(name)


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Relay:
    """A relay of its own process, and what its run folder holds."""

    def __init__(self, run_dir: Path, path: str = "") -> None:
        (run_dir / "state").mkdir(parents=True)
        (run_dir / ".secrets").write_text(f"export OTHER='a b'\nexport KIT_RELAY_TOKEN={TOKEN}\n")
        self.run_dir, self.port = run_dir, free_port()
        argv = [sys.executable, str(DILOCO / "relay.py"), str(run_dir), "--host", "127.0.0.1", "--port", str(self.port)]
        env = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
        self.process = subprocess.Popen([*argv, "--bind", "127.0.0.1"], env=env, stderr=subprocess.PIPE, text=True)
        until((run_dir / "state" / "relay.json").exists, "the relay listens")

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    def plain(self) -> socket.socket:
        """A connection that has said nothing yet, after the greeting."""
        made = socket.create_connection(self.address, timeout=60)
        assert made.recv(256).startswith(b"kit-relay 1 ")
        return made

    def end(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        return self.process.communicate(timeout=60)[1]


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    made = Relay(tmp_path / "run")
    yield made
    made.end()


def met(address: tuple[str, int], name: str, token: str = TOKEN, seconds: float = 60) -> tuple[Any, Any]:
    """Both ends of a meeting."""
    meet, found = module("streams").meet, dict[str, Any]()
    thread = threading.Thread(target=lambda: found.update(b=meet(address, token, name, "b", seconds)))
    thread.start()
    found["a"] = meet(address, token, name, "a", seconds)
    thread.join(60)
    return found["a"], found["b"]


def test_two_ends_of_a_meeting_become_one_stream(relay: Relay) -> None:
    a, b = met(relay.address, "one")
    with a, b:
        data = os.urandom(3 << 20)
        sender = threading.Thread(target=lambda: (a.sendall(data), a.shutdown(socket.SHUT_WR)))
        sender.start()
        got = b""
        while more := b.recv(1 << 16):
            got += more
        sender.join(60)
        assert got == data  # the last byte, too, of an end that closed at once


def test_meetings_of_other_names_and_equal_sides_do_not_mix(relay: Relay) -> None:
    meet = module("streams").meet
    with pytest.raises(TimeoutError, match="nobody came to lonely"):
        meet(relay.address, TOKEN, "lonely", "a", 1)
    first, second = met(relay.address, "x")
    other, another = met(relay.address, "y")
    with first, second, other, another:
        first.sendall(b"x")
        other.sendall(b"y")
        assert (second.recv(1), another.recv(1)) == (b"x", b"y")


def test_an_end_that_left_while_it_waited_is_never_met(relay: Relay) -> None:
    streams = module("streams")
    gone = relay.plain()  # one that proves itself, waits, and goes
    gone.close()
    waiting = threading.Thread(target=lambda: _ignore(lambda: streams.meet(relay.address, TOKEN, "z", "a", 1)))
    waiting.start()
    waiting.join(60)
    a, b = met(relay.address, "z")
    with a, b:
        a.sendall(b"!")
        assert b.recv(1) == b"!"


def _ignore(work: Callable[[], object]) -> None:
    try:
        work()
    except OSError:
        return


HOSTILE = {
    "nothing but a blank line": b"\n",
    "another program's words": b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n",
    "an endless line": b"a" * 100_000,
    "bytes": bytes(range(256)) * 4,
    "a proof of nothing": b"0" * 32 + b" " + b"0" * 64 + b"\n",
    "a nonce of another form": b"../../etc " + b"0" * 64 + b"\n",
    "a request without a proof": b"meet lighthouse a 60\n",
    "a proof that is no ASCII": b"0" * 32 + b" " + "é".encode() * 32 + b"\n",
}


@pytest.mark.parametrize("said", HOSTILE.values(), ids=[*HOSTILE])
def test_who_does_not_prove_that_he_has_the_token_is_closed_at_once(relay: Relay, said: bytes) -> None:
    with relay.plain() as one:
        _ignore(lambda: one.sendall(said))
        assert _rest(one) == b""  # closed, and told nothing
    assert relay.process.poll() is None
    for end in met(relay.address, "after"):
        end.close()


def _rest(one: socket.socket) -> bytes:
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while more := one.recv(4096):
            got += more
    return got


def test_another_token_is_refused_by_both_ends(relay: Relay) -> None:
    streams = module("streams")
    with pytest.raises((ConnectionResetError, module("relay").PeerRefused)):
        streams.meet(relay.address, "f" * 64, "one", "a", 1)


def test_a_relay_without_the_token_is_refused_by_the_client() -> None:
    """It would hear what groups send, and answer what it likes."""
    server = socket.create_server(("127.0.0.1", 0))

    def pretend() -> None:
        one, _ = server.accept()
        with one:
            one.sendall(b"kit-relay 1 " + b"0" * 32 + b"\n")
            one.recv(256)
            one.sendall(b"0" * 64 + b"\n")
            one.recv(256)

    thread = threading.Thread(target=pretend)
    thread.start()
    refused = module("relay").PeerRefused
    with server, pytest.raises(refused, match="not this run's gate"):
        module("streams").meet(server.getsockname(), TOKEN, "one", "a", 1)
    thread.join(60)


def test_the_token_is_never_sent_and_a_proof_is_good_once(relay: Relay) -> None:
    heard: list[bytes] = []
    between = socket.create_server(("127.0.0.1", 0))

    def listen() -> None:
        one, _ = between.accept()
        with one, socket.create_connection(relay.address, timeout=60) as other:
            for source, sink in ((other, one), (one, other), (other, one)):
                heard.append(source.recv(4096))
                sink.sendall(heard[-1])

    thread = threading.Thread(target=listen)
    thread.start()
    _ignore(lambda: module("streams").meet(between.getsockname(), TOKEN, "one", "a", 1))
    thread.join(60)
    between.close()
    assert len(heard) == 3
    assert TOKEN.encode() not in b"".join(heard)
    with relay.plain() as again:  # the recorded proof, to another greeting
        again.sendall(heard[1])
        assert _rest(again) == b""


def test_silent_connections_do_not_keep_others_out(relay: Relay) -> None:
    """More than may be unproved at a time: the oldest are closed, and the run's own come in."""
    most = module("relay").MOST_UNPROVED
    with ExitStack() as stack:
        silent = [stack.enter_context(relay.plain()) for _ in range(most + 20)]
        a, b = met(relay.address, "one")
        with a, b:
            a.sendall(b"!")
            assert b.recv(1) == b"!"
        assert _rest(silent[0]) == b""


def test_requests_that_are_not_of_the_conversation_are_closed(relay: Relay) -> None:
    asked = module("relay").asked
    import asyncio

    async def ask(request: str) -> str:
        answer, _, writer = await asked(relay.address, TOKEN, request, 5)
        writer.close()
        return str(answer)

    assert asyncio.run(ask("peek lighthouse")) == "no"
    for request in ("peek ../x", "meet one c 5", "meet one a -1", "connect 10.0.0.1 22", "meet a b", ""):
        with pytest.raises(module("relay").PeerRefused):
            asyncio.run(ask(request))


def test_a_changed_message_is_refused() -> None:
    """The relay carries the bytes; only the two ranks can make a message of their stream."""
    streams = module("streams")
    ours, theirs = socket.socketpair()
    between, far = socket.socketpair()
    sender = streams.MessageStream(ours, TOKEN, "s", "a", 60)
    receiver = streams.MessageStream(far, TOKEN, "s", "b", 60)
    sender.send(b"weights")
    sender.flush()
    between.sendall(theirs.recv(4096))
    assert receiver.receive() == b"weights"
    sender.send(b"weights")
    sender.flush()
    second = theirs.recv(4096)
    between.sendall(second.replace(b"weights", b"wEights"))
    with pytest.raises(module("relay").PeerRefused, match="changed on its way"):
        receiver.receive()
    between.sendall(second[:0])
    for one in (sender, receiver):
        one.close()
    theirs.close()
    between.close()


@pytest.mark.parametrize("what", ["again", "as an answer"])
def test_a_message_counts_once_and_in_its_direction(what: str) -> None:
    streams = module("streams")
    ours, theirs = socket.socketpair()
    sender = streams.MessageStream(ours, TOKEN, "s", "a", 60)
    sender.send(b"one")
    sender.flush()
    sent = theirs.recv(4096)
    between, far = socket.socketpair()
    receiver = streams.MessageStream(far, TOKEN, "s", "b" if what == "again" else "a", 60)
    between.sendall(sent)
    if what == "again":
        assert receiver.receive() == b"one"
        between.sendall(sent)
    with pytest.raises(module("relay").PeerRefused):
        receiver.receive()
    for one in (sender, receiver):
        one.close()
    theirs.close()
    between.close()


SQUEUE = """\
#!/bin/sh
cat "{folder}/answer"
exit "$(cat "{folder}/code")"
"""


def test_the_relay_ends_when_slurm_has_no_job_of_its_run(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "squeue").write_text(SQUEUE.format(folder=tools))
    (tools / "squeue").chmod(0o755)
    (tools / "answer").write_text("PENDING\n")
    (tools / "code").write_text("0")
    made = Relay(tmp_path / "run", str(tools))
    (made.run_dir / "manifest.json").write_text(json.dumps({"job_id": 7}))
    events = made.run_dir / "state" / "events.jsonl"
    events.write_text("{}\n")
    time.sleep(3)
    assert made.process.poll() is None  # the job waits in the queue
    (tools / "answer").write_text("")
    (tools / "code").write_text("1")  # a controller that does not answer is no reason to end
    os.utime(events, (1, 1))
    time.sleep(3)
    assert made.process.poll() is None
    (tools / "code").write_text("0")
    os.utime(events, (2, 2))
    assert made.process.wait(60) == 0
    assert not (made.run_dir / "state" / "relay.json").exists()
    assert "ends with its run" in made.process.communicate()[1]


def test_the_relay_ends_when_slurm_has_not_answered_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = module("relay")
    (tmp_path / "manifest.json").write_text('{"job_id": 7}')
    (tmp_path / "bin").mkdir()
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text(f"#!/bin/sh\necho >>{tmp_path}/asked\necho timed out >&2\nexit 1\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name, value in {"LOOK_S": 0.01, "ASK_S": 0.0, "SILENT_S": 0.5}.items():
        monkeypatch.setattr(relay, name, value)
    began = time.monotonic()
    asyncio.run(asyncio.wait_for(relay.job_over(tmp_path), 60))
    assert time.monotonic() - began >= 0.5
    assert (tmp_path / "asked").exists()


def test_a_relay_without_a_token_or_a_port_says_why(tmp_path: Path) -> None:
    def start(port: int) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(DILOCO / "relay.py"), str(tmp_path), "--host", "h", "--port", str(port)]
        return subprocess.run([*argv, "--bind", "127.0.0.1"], capture_output=True, text=True, timeout=60, check=False)

    assert "has no KIT_RELAY_TOKEN" in start(free_port()).stderr
    (tmp_path / ".secrets").write_text(f"export KIT_RELAY_TOKEN={TOKEN}\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = start(taken.getsockname()[1])
    assert done.returncode == 1
    assert "cannot listen on port" in done.stderr


class Echo:
    """In the place of a lighthouse: says its name to whoever connects."""

    def __init__(self, name: bytes) -> None:
        self._server, self._name = socket.create_server(("127.0.0.1", 0)), name
        self.port: int = self._server.getsockname()[1]
        self.clients = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                one, _ = self._server.accept()
            except OSError:
                return
            self.clients += 1
            one.sendall(self._name)
            threading.Thread(target=lambda it=one: _rest(it), daemon=True).start()

    def close(self) -> None:
        self._server.close()


def gate(relay: Relay, own: Echo, *, first: bool) -> tuple[subprocess.Popen[bytes], int, int]:
    groups, clients = free_port(), free_port()
    argv = [sys.executable, str(DILOCO / "gate.py"), "--relay", f"127.0.0.1:{relay.port}"]
    argv += ["--own", f"127.0.0.1:{own.port}", "--groups", str(groups), "--lighthouse", str(clients)]
    made = subprocess.Popen([*argv, *(["--first"] if first else [])], env={**os.environ, "KIT_RELAY_TOKEN": TOKEN})
    until(lambda: listens(clients), "the gate listens")
    return made, groups, clients


def asked_lighthouse(port: int) -> bytes:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
            one.sendall(b"GET")
            return one.recv(16)
    except OSError:
        return b""


def test_silent_connections_to_the_gate_cost_no_connection_to_the_lighthouse(relay: Relay) -> None:
    """Every user of the cluster can connect to it, and each connection opened another one."""
    own = Echo(b"own")
    with ExitStack() as stack:
        stack.callback(own.close)
        made, _, clients = gate(relay, own, first=True)
        stack.callback(made.wait, 60)
        stack.callback(made.terminate)
        most = module("gate").MOST_UNPROVED
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", clients), timeout=60)) for _ in range(most + 20)
        ]
        assert _rest(silent[0]) == b"", "the oldest is closed"
        assert asked_lighthouse(clients) == b"own"
        assert own.clients == 1


def test_gates_lead_to_one_lighthouse_and_to_the_own_while_the_other_is_away(relay: Relay) -> None:
    a, b = Echo(b"first"), Echo(b"second")
    with ExitStack() as stack:
        stack.callback(a.close)
        stack.callback(b.close)
        second, groups_b, clients_b = gate(relay, b, first=False)
        stack.callback(second.wait, 60)
        stack.callback(second.terminate)
        until(lambda: asked_lighthouse(clients_b) == b"second", "its own, while the first job has not begun")
        first, groups_a, clients_a = gate(relay, a, first=True)
        stack.callback(first.wait, 60)
        stack.callback(first.terminate)
        assert asked_lighthouse(clients_a) == b"first"
        until(lambda: asked_lighthouse(clients_b) == b"first", "the first job's, once it is there")

        meet = module("streams").meet
        found: dict[str, Any] = {}
        thread = threading.Thread(target=lambda: found.update(b=meet(("127.0.0.1", groups_b), TOKEN, "s-0-1", "b", 60)))
        thread.start()
        with meet(("127.0.0.1", groups_a), TOKEN, "s-0-1", "a", 60) as one:
            thread.join(60)
            with found["b"] as other:
                one.sendall(b"across")
                assert other.recv(16) == b"across"
        for end in met(("127.0.0.1", groups_b), "here-s-1-2"):
            end.close()

        held = socket.create_connection(("127.0.0.1", clients_b), timeout=60)
        with held:
            held.sendall(b"GET")
            assert held.recv(16) == b"first"
            first.terminate()
            assert held.recv(16) == b""  # let go, so that its client asks anew
        until(lambda: asked_lighthouse(clients_b) == b"second", "its own again")
        for end in met(("127.0.0.1", groups_b), "here-s-2-3"):
            end.close()
