"""A listener on 127.0.0.1 that takes connections of its own user and of root only.

Every user of a machine can connect to its loopback address. proc(5), net/tcp: the kernel lists both ends of such a connection, each
with the user who made its socket.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kit.errors import UsageError

_TABLE = "/proc/net/tcp"


def user_of(connection: socket.socket) -> int | None:
    """The user who opened a connection to this machine's loopback address; None if the kernel does not list it (any more)."""
    theirs, ours = _listed(connection.getpeername()), _listed(connection.getsockname())
    with open(_TABLE, encoding="ascii") as table:  # noqa: PTH123 - a file of /proc, read to its end
        for line in table:
            fields = line.split()
            if fields[1:3] == [theirs, ours]:
                return int(fields[7])
    return None


def _listed(address: tuple[str, int]) -> str:
    """An address as the table has it: the bytes of the address as one number of this machine, and the port."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"


class OwnSocket(socket.socket):
    """A listening IPv4 socket. `accept` closes the connections of other users, and then raises ConnectionAbortedError.

    asyncio waits for the next connection after this error, as after one that its other end has given up.
    """

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection, as socket.accept has it."""
        taken, address = super().accept()
        try:
            owner = user_of(taken)
        except OSError:
            owner = None
        if owner in {0, os.geteuid()}:
            return taken, address
        taken.close()
        raise ConnectionAbortedError("a connection of another user")


@contextmanager
def listening(option: str, port: int) -> Iterator[socket.socket]:
    """A socket on 127.0.0.1 that only its own user reaches. port: 0 for any free one. option: of the command, that names the port.

    UsageError if another program uses the port.
    """
    with OwnSocket(socket.AF_INET, socket.SOCK_STREAM) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(f"{option} {port}: {error.strerror}", hint=f"{option} 0 takes any free port") from None
        # Whoever is told the URL may ask before the server runs.
        opened.listen()
        yield opened
