"""Connections between the nodes of a run: both ends show that they know the run's token before anything else is said.

The token never crosses the network. Each end sends a random number, and answers the other's with its HMAC-SHA256 under the token.
After that a connection carries lines of JSON or blocks of an image, or kit_memory_transfer's messages. Works with any Python from
3.8.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

# Seconds for a connection, and for the other end to show that it knows the token.
CONNECT_S, PROVE_S = 5.0, 5.0
NUMBER_BYTES = 32
PROOF_BYTES = 32
# A line is a list of blocks at most.
_LONGEST_LINE = 4 << 20


class StrangerError(Exception):
    """The other end does not know the token."""


def proof(token: bytes, role: str, first: bytes, second: bytes) -> bytes:
    """What an end of a connection answers. role: client or server, so that an answer cannot be sent back as one's own."""
    return hmac.new(token, role.encode() + first + second, hashlib.sha256).digest()


def connect(address: str, port: int, token: bytes) -> socket.socket:
    """A connection to a node that knows the token. StrangerError when what listens there does not know it."""
    link = socket.create_connection((address, port), timeout=CONNECT_S)
    try:
        greet(link, token)
    except BaseException:
        link.close()
        raise
    return link


def greet(link: socket.socket, token: bytes, seconds: float = PROVE_S) -> bytes:
    """Show a server the token, and see that it knows it, within the time.

    Returns the connection's key. StrangerError when the server does not know the token.
    """
    link.settimeout(seconds)
    theirs, own = read_exactly(link, NUMBER_BYTES), os.urandom(NUMBER_BYTES)
    link.sendall(own + proof(token, "client", theirs, own))
    if not hmac.compare_digest(read_exactly(link, PROOF_BYTES), proof(token, "server", own, theirs)):
        raise StrangerError("the server does not know the run's token")
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return proof(token, "key", theirs, own)


def admit(link: socket.socket, token: bytes, seconds: float = PROVE_S) -> bytes:
    """Let a client in that shows the token within the time.

    Returns the connection's key. StrangerError when the client does not know the token, or says nothing.
    """
    link.settimeout(seconds)
    own = os.urandom(NUMBER_BYTES)
    try:
        link.sendall(own)
        said = read_exactly(link, NUMBER_BYTES + PROOF_BYTES)
    except OSError as error:
        raise StrangerError(str(error) or "no answer") from None
    theirs = said[:NUMBER_BYTES]
    if not hmac.compare_digest(said[NUMBER_BYTES:], proof(token, "client", own, theirs)):
        raise StrangerError("it does not know the run's token")
    link.sendall(proof(token, "server", theirs, own))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return proof(token, "key", own, theirs)


def own_address(other: str) -> str:
    """This node's address on the route to another one; OSError where there is none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))
        return str(probe.getsockname()[0])


def read_exactly(link: socket.socket, length: int) -> bytes:
    """Exactly these bytes. ConnectionError when the other end closes before."""
    content = bytearray(length)
    read_into(link, memoryview(content))
    return bytes(content)


def read_into(link: socket.socket, view: memoryview) -> None:
    """Fill a buffer from a connection. ConnectionError when the other end closes before."""
    while view:
        got = link.recv_into(view)
        if not got:
            raise ConnectionError("the connection ended")
        view = view[got:]


def encode(message: dict[str, Any]) -> bytes:
    """A message as a line."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message in a line. ConnectionError when it is none: a line is cut where its sender died."""
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise ConnectionError("the connection ended in a line")
    return message


def messages(link: socket.socket) -> Iterator[dict[str, Any]]:
    """The messages of a connection, until the other end closes it."""
    with link.makefile("rb") as lines:
        while True:
            line = lines.readline(_LONGEST_LINE)
            if not line:
                return
            yield decode(line)


def say(link: socket.socket, **message: object) -> None:
    """Send a message."""
    link.sendall(encode(message))
