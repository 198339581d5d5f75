"""Sends parts of kit_memory_files between nodes, over plain TCP. Both ends prove that they know the token of the job's ranks.

Each message carries an HMAC-SHA256 under a key of its connection, and the bytes of a part are followed by their sha256. So nobody
without the token can read, store or change a part; the bytes themselves are not encrypted, as those of gloo and NCCL are not.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import struct
import threading
import time
from typing import Any

import node_wire
from kit_memory_files import BLOCK, DamagedError, MemoryFiles

# Seconds in which the other end must send something; bytes of the longest message.
TIMEOUT_S = 60.0
_HANDSHAKE_S, _LONGEST = 10.0, 1 << 16
# Connections that have not shown yet that they know the token: more are closed at once, so that strangers take neither the threads
# nor the files of the program that trains. Seconds after which a server that has no free file looks again.
_MOST_STRANGERS, _NO_FILES_S = 32, 0.2
_LENGTH = struct.Struct("<I")


class Channel:
    """An authenticated connection. OSError where the other end is gone or does not know the token."""

    def __init__(self, connection: socket.socket, token: bytes, *, serves: bool) -> None:
        self._socket = connection
        try:
            self._key = (node_wire.admit if serves else node_wire.greet)(connection, token, _HANDSHAKE_S)
        except node_wire.StrangerError as error:
            raise OSError(str(error)) from None
        connection.settimeout(TIMEOUT_S)
        # The directions have their own names, and messages their numbers: none can be sent back, or again.
        self._names = (b"server", b"client") if serves else (b"client", b"server")
        self._sent = self._heard = 0

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def tell(self, **values: object) -> None:
        """Send a message."""
        body = json.dumps(values).encode()
        self._socket.sendall(_LENGTH.pack(len(body)) + body + self._mac(self._names[0], self._sent, body))
        self._sent += 1

    def hear(self) -> dict[str, Any]:
        """The other end's next message."""
        (length,) = _LENGTH.unpack(node_wire.read_exactly(self._socket, _LENGTH.size))
        if length > _LONGEST:
            raise OSError("the message is too long")
        body = node_wire.read_exactly(self._socket, length)
        if not hmac.compare_digest(
            node_wire.read_exactly(self._socket, hashlib.sha256().digest_size),
            self._mac(self._names[1], self._heard, body),
        ):
            raise OSError("the other end does not know the token of this job")
        self._heard += 1
        said: dict[str, Any] = json.loads(body)
        return said

    def send(self, payload: memoryview, known: bytes | None = None) -> bytes:
        """Send the bytes of a part. Returns their sha256. known: the one that they had when they were written, if it was kept."""
        digest = hashlib.sha256()
        for start in range(0, len(payload), BLOCK):
            block = payload[start : start + BLOCK]
            digest.update(block)
            self._socket.sendall(block)
        self.tell(sha256=(known or digest.digest()).hex())
        return digest.digest()

    def receive(self, payload: memoryview) -> bytes:
        """Fill `payload`. Returns its sha256; DamagedError where it is not the sender's."""
        digest, at = hashlib.sha256(), 0
        while at < len(payload):
            block = payload[at : at + BLOCK]
            node_wire.read_into(self._socket, block)
            digest.update(block)
            at += len(block)
        if self.hear()["sha256"] != digest.hexdigest():
            raise DamagedError("the bytes differ from what was written")
        return digest.digest()

    def _mac(self, name: bytes, number: int, body: bytes) -> bytes:
        return hmac.new(self._key, b"%s %d " % (name, number) + body, hashlib.sha256).digest()


class PartServer:
    """Stores parts that neighbours send, and sends parts to ranks that lack them, on threads of its own."""

    def __init__(self, files: MemoryFiles, token: bytes, address: str) -> None:
        self._files, self._token = files, token
        # None once this server is closed.
        self._open: set[socket.socket] | None = set()
        self._lock = threading.Lock()
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
        self._listener = socket.create_server((address, 0), backlog=128)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="kit-memory", daemon=True).start()

    def close(self) -> None:
        """Accept no further connection, and end those that are open: no part may be stored any more."""
        with self._lock:
            ends, self._open = [self._listener, *(self._open or ())], None
        for one in ends:
            # A thread inside accept(2) or recv(2) holds the socket open: shutdown wakes it.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._open is None:
                    return
                # The program has no free file; a connection that was given up also comes here.
                time.sleep(_NO_FILES_S)
                continue
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="kit-memory", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            if self._open is None:
                connection.close()
                return
            self._open.add(connection)
        # A stranger, or a rank that was killed. The other end reports what this means for it.
        try:
            with connection, self._known(connection) as channel:
                request = channel.hear()
                answer = {"store": self._store, "fetch": self._fetch}[request["do"]]
                answer(channel, request["part"], request["step"], request.get("size", 0))
        except (OSError, ValueError, KeyError, DamagedError):
            return
        finally:
            with self._lock:
                if self._open is not None:
                    self._open.discard(connection)

    def _known(self, connection: socket.socket) -> Channel:
        try:
            return Channel(connection, self._token, serves=True)
        finally:
            self._strangers.release()

    def _store(self, channel: Channel, part: str, step: int, size: int) -> None:
        try:
            draft = self._files.write(part, size)
        except OSError as error:
            channel.tell(problem=str(error))
            return
        channel.tell(problem=None)
        draft.commit(step, channel.receive(draft.payload))
        channel.tell(stored=step)

    def _fetch(self, channel: Channel, part: str, step: int, _: int) -> None:
        payload = self._files.read_part(part, step)
        channel.tell(size=len(payload))
        channel.send(payload, self._files.digest(part, step))


def store(address: tuple[str, int], token: bytes, part: str, step: int, payload: memoryview) -> bytes:
    """Copy a part to the node of `address`. Returns its sha256 when it is complete there. OSError where it cannot be."""
    with _connected(address, token) as channel:
        channel.tell(do="store", part=part, step=step, size=len(payload))
        if problem := channel.hear()["problem"]:
            raise OSError(problem)
        digest = channel.send(payload)
        channel.hear()
    return digest


def fetch(address: tuple[str, int], token: bytes, part: str, step: int, files: MemoryFiles) -> None:
    """Copy a part from the node of `address` into `files`."""
    with _connected(address, token) as channel:
        channel.tell(do="fetch", part=part, step=step)
        draft = files.write(part, channel.hear()["size"])
        draft.commit(step, channel.receive(draft.payload))


def own_address() -> str:
    """The address of this node that the other ranks reach: that of its route to rank 0."""
    try:
        return node_wire.own_address(os.environ.get("MASTER_ADDR", "127.0.0.1"))
    except OSError:
        return "127.0.0.1"


def _connected(address: tuple[str, int], token: bytes) -> Channel:
    connection = socket.create_connection((address[0], address[1]), timeout=_HANDSHAKE_S)
    try:
        return Channel(connection, token, serves=False)
    except BaseException:
        connection.close()
        raise
