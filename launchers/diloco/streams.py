"""A stream of messages to a rank of another replica group, through the gate of this job (gate.py, relay.py).

The relay could change the bytes that it carries. So each message ends with an HMAC over the stream's name, its direction and the
message's number, with the run's token as key. A message that was changed, left out or repeated on the way is refused. The messages
are not encrypted, as with Gloo and NCCL.
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

from relay import GREETING, LONGEST_LINE, PROOF_S, PeerRefused, proof, steady

# A message on the wire: head (16 bytes, big-endian), content, MAC.
_HEAD = struct.Struct(">QQ")  # number and length of a message
_MAC_BYTES = 32  # of HMAC-SHA256
_CHUNK = 1 << 20  # bytes of one recv or sendall: 1 MiB


def meet(address: tuple[str, int], token: str, name: str, side: str, seconds: float) -> socket.socket:
    """Connect to the other side of a meeting; the sides are a and b. OSError if the other side does not come in time."""
    # The conversation of relay.py. Both ends prove that they have the run's token before any of them trusts the other.
    connection = socket.create_connection(address, timeout=PROOF_S)
    try:
        steady(connection)
        greeting = _line_of(connection)  # ends with the gate's nonce, 32 hexadecimal digits
        if not re.fullmatch(rf"{GREETING} [0-9a-f]{{32}}", greeting):
            raise PeerRefused(f"{address[0]}:{address[1]} is not a gate of the kit")
        # A proof covers both nonces, so that one from an earlier conversation is worth nothing.
        theirs, ours = greeting.rpartition(" ")[2], secrets.token_hex(16)
        connection.sendall(f"{ours} {proof(token, 'client', theirs, ours)}\n".encode())
        # compare_digest takes the same time wherever the two differ, so that timing does not help to guess.
        if not hmac.compare_digest(_line_of(connection).encode(), proof(token, "server", theirs, ours).encode()):
            raise PeerRefused(f"{address[0]}:{address[1]} is not this run's gate")
        connection.sendall(f"meet {name} {side} {seconds:.0f}\n".encode())
        # The gate answers `nobody` after `seconds`. With the margin that answer comes before this socket's time-out.
        connection.settimeout(seconds + PROOF_S)
        if _line_of(connection) != "met":
            raise TimeoutError(f"nobody came to {name} in {seconds:.0f} s")
    except BaseException:  # also SystemExit and KeyboardInterrupt: no connection is left open
        connection.close()
        raise
    return connection


def _line_of(connection: socket.socket) -> str:
    """Read one line, and none of the bytes after it."""
    line = b""
    while not line.endswith(b"\n"):
        # One byte at a time: the bytes after the line belong to the stream, and MessageStream must receive them.
        byte = connection.recv(1)
        if not byte or len(line) >= LONGEST_LINE:
            raise ConnectionResetError("the gate closed the connection")
        line += byte
    return line[:-1].decode("ascii", "replace")


class MessageStream:
    """A stream of messages in both directions. `send` does not wait. `flush` waits until the kernel has accepted all messages."""

    def __init__(self, connection: socket.socket, token: str, name: str, side: str, seconds: float) -> None:
        self._connection = connection
        connection.settimeout(seconds)  # of one recv or sendall
        # A key for each direction: a relay cannot send a message back to its sender as if the other side had written it.
        self._keys = {one: f"{token} {name} {one}".encode() for one in "ab"}
        self._own, self._other = side, "b" if side == "a" else "a"
        self._sent = self._received = 0  # numbers of the next messages; they make a repeated or lost one visible
        self._failure: BaseException | None = None
        # Each message with an event that is set once it is sent, or has failed. None ends the thread.
        self._outgoing: queue.SimpleQueue[tuple[bytes | None, threading.Event]] = queue.SimpleQueue()
        self._last = threading.Event()
        self._last.set()  # nothing is queued yet, so that flush() returns at once
        # In an exchange both sides send before they receive. If both waited for the kernel to take a large message, neither would
        # receive, and both would wait for ever. So a thread sends.
        threading.Thread(target=self._send_all, daemon=True).start()

    def send(self, message: bytes) -> None:
        """Queue a message for the thread that sends."""
        self._last = threading.Event()
        self._outgoing.put((message, self._last))

    def flush(self) -> None:
        """Wait until the kernel has accepted all messages. OSError if one could not be sent."""
        self._last.wait()  # messages are sent in order: after the last one all are sent
        if self._failure is not None:
            raise ConnectionResetError(f"the other group cannot be reached: {self._failure}") from self._failure

    def receive(self) -> bytes:
        """Receive the next message. OSError if none comes in time or the connection is lost; PeerRefused for a changed message."""
        head = self._exactly(_HEAD.size)
        number, length = _HEAD.unpack(head)
        message = self._exactly(length)
        shown = self._exactly(_MAC_BYTES)
        # Head and content: a changed length or number is noticed, too.
        expected = hmac.new(self._keys[self._other], head + message, hashlib.sha256).digest()
        if number != self._received or not hmac.compare_digest(shown, expected):
            raise PeerRefused("a message of another group was changed on its way")
        self._received += 1
        return message

    def close(self) -> None:
        """Close the connection at once. A thread that waits for it gets an OSError."""
        self._outgoing.put((None, threading.Event()))
        with contextlib.suppress(OSError):  # it is gone already
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes a thread in recv; close() alone would not
        self._connection.close()

    def _exactly(self, length: int) -> bytes:
        """Receive `length` bytes. Memory grows only with received bytes, so a wrong length in a header cannot reserve it all."""
        got = bytearray()
        while len(got) < length:
            # recv returns what has come so far, often less than asked for.
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
                # After a failure the rest is dropped. The events are set all the same: nobody waits for ever.
                if self._failure is None:
                    self._send(message)
            except OSError as error:
                self._failure = error
            done.set()

    def _send(self, message: bytes) -> None:
        head = _HEAD.pack(self._sent, len(message))
        mac = hmac.new(self._keys[self._own], head + message, hashlib.sha256).digest()
        view = memoryview(head + message + mac)  # slices of a memoryview are not copies
        for start in range(0, len(view), _CHUNK):
            # In pieces: the time-out counts for each, so that a slow link is no lost one.
            self._connection.sendall(view[start : start + _CHUNK])
        self._sent += 1
