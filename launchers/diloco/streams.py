"""A stream of messages to a rank of another replica group, through the gate of this job (gate.py, relay.py).

The relay carries bytes and could change them. Each message ends with an HMAC of the run's token, the stream's name, its
direction and the message's number: what somebody on the way changed, left out or sent twice is refused, and never used.
It can be read there, as what Gloo and NCCL send can be.
"""

import contextlib
import hashlib
import hmac
import queue
import re
import secrets
import socket
import struct
import threading

from relay import GREETING, LONGEST_LINE, PROOF_S, Refused, proof, steady

_HEAD = struct.Struct(">QQ")  # number and length of a message
_MAC_BYTES = 32
_CHUNK = 1 << 20


def meet(address: tuple[str, int], token: str, name: str, side: str, seconds: float) -> socket.socket:
    """A connection to whoever takes the other side, a or b, of this meeting. OSError where nobody comes in time."""
    connection = socket.create_connection(address, timeout=PROOF_S)
    try:
        steady(connection)
        greeting = _line_of(connection)
        if not re.fullmatch(rf"{GREETING} [0-9a-f]{{32}}", greeting):
            raise Refused(f"{address[0]}:{address[1]} is not a gate of the kit")
        theirs, ours = greeting.rpartition(" ")[2], secrets.token_hex(16)
        connection.sendall(f"{ours} {proof(token, 'client', theirs, ours)}\n".encode())
        if not hmac.compare_digest(_line_of(connection).encode(), proof(token, "server", theirs, ours).encode()):
            raise Refused(f"{address[0]}:{address[1]} is not this run's gate")
        connection.sendall(f"meet {name} {side} {seconds:.0f}\n".encode())
        connection.settimeout(seconds + PROOF_S)
        if _line_of(connection) != "met":
            raise TimeoutError(f"nobody came to {name} in {seconds:.0f} s")
    except BaseException:
        connection.close()
        raise
    return connection


def _line_of(connection: socket.socket) -> str:
    """One line, and not a byte of what comes after it."""
    line = b""
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte or len(line) >= LONGEST_LINE:
            raise ConnectionResetError("the gate closed the connection")
        line += byte
    return line[:-1].decode("ascii", "replace")


class Stream:
    """Messages both ways. `send` does not wait for the other end; `flush` does until the kernel has all of it."""

    def __init__(self, connection: socket.socket, token: str, name: str, side: str, seconds: float) -> None:
        self._connection = connection
        connection.settimeout(seconds)
        self._keys = {one: f"{token} {name} {one}".encode() for one in "ab"}
        self._own, self._other = side, "b" if side == "a" else "a"
        self._sent = self._received = 0
        self._failure: BaseException | None = None
        self._outgoing: queue.SimpleQueue[tuple[bytes | None, threading.Event]] = queue.SimpleQueue()
        self._last = threading.Event()
        self._last.set()
        threading.Thread(target=self._send_all, daemon=True).start()

    def send(self, message: bytes) -> None:
        """Hand a message to the thread that sends it."""
        self._last = threading.Event()
        self._outgoing.put((message, self._last))

    def flush(self) -> None:
        """Wait until all messages are on their way. OSError when one could not be sent."""
        self._last.wait()
        if self._failure is not None:
            raise ConnectionResetError(f"the other group cannot be reached: {self._failure}") from self._failure

    def receive(self) -> bytes:
        """The next message. OSError when none comes in time or the connection is gone; Refused for a changed one."""
        head = self._exactly(_HEAD.size)
        number, length = _HEAD.unpack(head)
        message = self._exactly(length)
        shown = self._exactly(_MAC_BYTES)
        expected = hmac.new(self._keys[self._other], head + message, hashlib.sha256).digest()
        if number != self._received or not hmac.compare_digest(shown, expected):
            raise Refused("a message of another group was changed on its way")
        self._received += 1
        return message

    def close(self) -> None:
        """Let the connection go at once; whoever waits for it gets an OSError."""
        self._outgoing.put((None, threading.Event()))
        with contextlib.suppress(OSError):  # it is gone already
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, length: int) -> bytes:
        """Receive `length` bytes. Memory grows only with received bytes, so a wrong length in a header cannot reserve it all."""
        got = bytearray()
        while len(got) < length:
            more = self._connection.recv(min(length - len(got), _CHUNK))
            if not more:
                raise ConnectionResetError("the other group closed the connection")
            got += more
        return bytes(got)

    def _send_all(self) -> None:
        while True:
            message, done = self._outgoing.get()
            if message is None:
                return
            try:
                if self._failure is None:
                    self._send(message)
            except OSError as error:
                self._failure = error
            done.set()

    def _send(self, message: bytes) -> None:
        head = _HEAD.pack(self._sent, len(message))
        mac = hmac.new(self._keys[self._own], head + message, hashlib.sha256).digest()
        view = memoryview(head + message + mac)
        for start in range(0, len(view), _CHUNK):
            # In pieces: the time-out counts for each, so that a slow link is no lost one.
            self._connection.sendall(view[start : start + _CHUNK])
        self._sent += 1
