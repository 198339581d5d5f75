"""Coordinates the nodes that pass an image on to each other: `image.stage = "chain"`.

    python3 image_coordinator.py MEETING ADDRESS NODES STORED SHA256 SUMMARY

The batch script starts this on its node. It listens on this node's address on the route to ADDRESS, another node, and writes to
MEETING that address, a port, and a token of this start. image_node.py reads it on every node. image_orders.py decides what the
nodes do. At the end it writes SUMMARY, in lines of a key and a value, for the batch script. It ends when all NODES have the image
of STORED or have failed, at TERM, or when the batch script is gone. Works with any Python from 3.8.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import json
import os
import secrets
import signal
import stat
import sys
import time
from asyncio import StreamReader, StreamWriter
from pathlib import Path
from typing import cast

import image_blocks
import node_wire
from image_orders import NodeReport, Orders, Peer, SendOrder
from image_share import say

# Seconds between looks at the chain, and for the last orders to leave.
_LOOK_S, _LAST_S = 0.5, 0.2
# Connections at a time that have not yet shown that they know the token.
_MOST_STRANGERS = 64
_LONGEST_LINE = 4 << 20
_MOST_LIST_BYTES = 1 << 20  # a list has at most 4,096 blocks (image_blocks)


class Coordinator:
    """The port of the coordinator."""

    def __init__(self, orders: Orders) -> None:
        self.orders, self.token = orders, secrets.token_bytes(32)
        self.over = asyncio.Event()
        self._strangers, self._turned_away = 0, 0

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One connection, from the handshake to its end."""
        peer: Peer | None = None
        address: str = writer.get_extra_info("peername")[0]
        try:
            await self._admit(reader, writer, address)
            hello = node_wire.decode(await reader.readline())
            if "left" in hello:
                self.orders.fail(hello["node"], hello["left"], time.monotonic())
                self._end_if_over()
                return
            peer = Peer(
                hello["node"], address, hello["port"], hello["done"], order=_sending(writer), now=time.monotonic()
            )
            self.orders.arrive(peer, time.monotonic())
            while line := await reader.readline():
                # A key that is missing, or of another type, is reported below.
                said = cast(NodeReport, node_wire.decode(line))
                self.orders.hear(peer, said, time.monotonic())
                if said.get("done"):
                    self._end_if_over()
        except (OSError, EOFError, asyncio.CancelledError):
            # A node that is gone, which the chain does without; or the end of this program.
            pass
        except (KeyError, ValueError) as error:
            say(f"a message from {address} is not understood: {error!r}")
        finally:
            writer.close()
            if peer is not None:
                self.orders.depart(peer, time.monotonic())

    def _end_if_over(self) -> None:
        """End at once when the last node has the image."""
        if self.orders.over(time.monotonic()):
            self.over.set()

    async def _admit(self, reader: StreamReader, writer: StreamWriter, address: str) -> None:
        """Let only those in who know the token. ConnectionError for others; the first of them is reported."""
        if self._strangers >= _MOST_STRANGERS:
            raise ConnectionError("too many connections")
        self._strangers += 1
        try:
            await asyncio.wait_for(self._prove(reader, writer), node_wire.PROVE_S)
        except (OSError, EOFError, asyncio.TimeoutError):
            self._turned_away += 1
            if self._turned_away == 1:
                say(f"a connection from {address} was turned away: it does not know the run's token")
            raise ConnectionError("a stranger") from None
        finally:
            self._strangers -= 1

    async def _prove(self, reader: StreamReader, writer: StreamWriter) -> None:
        """The other side of `node_wire.connect`."""
        own = os.urandom(node_wire.NUMBER_BYTES)
        writer.write(own)
        theirs = await reader.readexactly(node_wire.NUMBER_BYTES)
        shown = await reader.readexactly(node_wire.PROOF_BYTES)
        if not hmac.compare_digest(shown, node_wire.proof(self.token, "client", own, theirs)):
            raise ConnectionError("a wrong proof")
        writer.write(node_wire.proof(self.token, "server", theirs, own))

    async def watch(self, parent: int) -> None:
        """Look at the chain until there is nothing left to do, or the batch script is gone."""
        while not self.over.is_set() and os.getppid() == parent:
            self._end_if_over()
            for peer in self.orders.look(time.monotonic()):
                say(f"{peer.name} has said nothing for a while")
                self.orders.depart(peer, time.monotonic())
                # Its connection ends, so that it arrives again if it can.
                peer.order(bye=True)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.over.wait(), _LOOK_S)


def _sending(writer: StreamWriter) -> SendOrder:
    """Sends a node its orders. After `bye`, the connection ends."""

    def order(**message: object) -> None:
        if "bye" in message:
            writer.transport.abort()
        elif not writer.is_closing():
            writer.write(node_wire.encode(message))

    return order


def _list_file(stored: str) -> Path:
    """Beside the image in the store."""
    return Path(stored).with_suffix(image_blocks.SUFFIX)


def _read_list(stored: str) -> str:
    """The list of an earlier run. OSError unless it is a regular file of the size of a list: others may write to the store."""
    handle = os.open(_list_file(stored), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, encoding="ascii") as stream:
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > _MOST_LIST_BYTES:
            raise OSError(errno.EINVAL, "not a list of blocks", stored)
        return stream.read(_MOST_LIST_BYTES)


def _keep_list(stored: str, text: str) -> None:
    """Write the list for later runs, if this user may write to the store."""
    path = _list_file(stored)
    partial = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    with contextlib.suppress(OSError):
        _write_new(partial, text, mode=0o644)
        try:
            partial.rename(path)
        except OSError:
            partial.unlink()


def _write_new(path: Path, text: str, mode: int) -> None:
    """Write a file that nobody has made before, to the disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(handle)
    except OSError:
        path.unlink()
        raise


async def _coordinate(meeting: Path, other: str, orders: Orders, summary: Path) -> None:
    coordinator = Coordinator(orders)
    parent = os.getppid()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, coordinator.over.set)
    server = await asyncio.start_server(
        coordinator.serve, node_wire.own_address(other), 0, limit=_LONGEST_LINE, backlog=1024
    )
    address, port = server.sockets[0].getsockname()
    facts = {"address": address, "port": port, "token": coordinator.token.hex(), "sha256": orders.sha256}
    incoming = meeting.with_name(f"{meeting.name}.new")
    _write_new(incoming, json.dumps(facts), mode=0o600)
    incoming.rename(meeting)
    try:
        await coordinator.watch(parent)
    finally:
        meeting.unlink()
        server.close()
        for peer in orders.peers.values():
            peer.order(over=True)
        lines = (f"{key} {value}\n" for key, value in orders.summary(time.monotonic()))
        summary.write_text("".join(lines), encoding="utf-8")
        await asyncio.sleep(_LAST_S)


def main() -> None:
    """Coordinate until the end."""
    meeting, other, nodes, stored, sha256, summary = sys.argv[1:]
    orders = Orders(int(nodes), sha256, stored, lambda text: _keep_list(stored, text), time.monotonic())
    with contextlib.suppress(OSError, ValueError):
        orders.take_list(_read_list(stored), time.monotonic())
    asyncio.run(_coordinate(Path(meeting), other, orders, Path(summary)))


if __name__ == "__main__":
    main()
