"""Connects the replica groups of one job with those on another cluster. relay.py joins the gates of the two jobs.

    python3 gate.py --relay HOST:PORT --groups PORT --lighthouse PORT --own HOST:PORT [--first]

It carries the groups' streams. It joins streams between groups of the same job itself; streams to the other cluster go to the
relay. The groups also reach their lighthouse through it. With --first it is always the job's own lighthouse. The gate of the other
job leads to the first job's lighthouse through the relay. While that one cannot be reached, it leads to its own: each cluster then
trains alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections import deque

from relay import (
    ENDS,
    LOOK_S,
    MOST_PROVED,
    MOST_UNPROVED,
    PROOF_S,
    TOKEN,
    Meetings,
    PeerRefused,
    asked,
    fail,
    left_while,
    opened,
    say,
    splice,
    steady,
)

# The meeting at which the other job's gate reaches the first job's lighthouse.
LIGHTHOUSE = "lighthouse"
# In front of the names of meetings with a group of the same job: its gate joins them, and the relay never sees them.
HERE = "here-"
# How long each end of the first job waits at the relay for a client of its lighthouse, before it asks anew; how many do.
SERVE_S = 600.0
WAITING_SERVERS = 4


class Gate:
    """The connection of one job's groups to the other cluster. own: the address of the job's own lighthouse."""

    def __init__(self, token: str, relay: tuple[str, int], own: tuple[str, int], *, first: bool) -> None:
        self._token, self._relay, self._own, self._first = token, relay, own, first
        # Of the job without the lighthouse: whether the other one's can be asked; None before the first answer.
        self.there: bool | None = None
        self._asking: set[Writer] = set()
        # Clients of the lighthouse that have said nothing yet.
        self._silent: deque[Writer] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def across(self, name: str, side: str, seconds: float, reader: Reader, writer: Writer) -> bool:
        """Join a stream with its other end at the relay; False for a meeting of groups of this job, which the gate joins itself."""
        if name.startswith(HERE):
            return False
        asking = asyncio.ensure_future(asked(self._relay, self._token, f"meet {name} {side} {seconds:.0f}", seconds))
        gone = await left_while(reader, asking)
        if not asking.done():
            asking.cancel()
        try:
            answer, their_reader, their_writer = await asking
        except (*ENDS, asyncio.CancelledError):
            answer = ""
        if answer == "met" and not gone:
            writer.write(b"met\n")
            await splice((reader, writer), (their_reader, their_writer))
        else:
            writer.write(b"nobody\n")
            if answer:
                their_writer.close()
        return True

    async def lighthouse(self, reader: Reader, writer: Writer) -> None:
        """Serve one connection to the lighthouse that is valid now."""
        self._asking.add(writer)
        with contextlib.suppress(OSError):
            steady(writer.get_extra_info("socket"))
        try:
            # A closed connection is the client's answer: it asks again.
            with contextlib.suppress(*ENDS):
                said = await self._first_bytes(reader, writer)
                there = await self._to_lighthouse()
                there[1].write(said)
                await splice((reader, writer), there)
        finally:
            self._asking.discard(writer)
            writer.close()

    async def _first_bytes(self, reader: Reader, writer: Writer) -> bytes:
        """What a client sends first: clients of HTTP speak before the server.

        PeerRefused for one that stays silent: a stranger's connections cost none to the lighthouse. Of too many silent ones, the
        oldest is closed.
        """
        if len(self._asking) > MOST_PROVED:
            raise PeerRefused("too many connections")
        self._silent.append(writer)
        if len(self._silent) > MOST_UNPROVED:
            self._silent.popleft().transport.abort()
        try:
            said = await asyncio.wait_for(reader.read(1 << 16), PROOF_S)
        finally:
            if writer in self._silent:
                self._silent.remove(writer)
        if not said:
            raise PeerRefused("no request")
        return said

    async def _to_lighthouse(self) -> tuple[Reader, Writer]:
        if self._first or not self.there:
            return await opened(*self._own)
        answer, reader, writer = await asked(self._relay, self._token, f"meet {LIGHTHOUSE} b 5", 5)
        if answer != "met":
            writer.close()
            raise PeerRefused(answer)
        return reader, writer

    async def serve_lighthouse(self) -> None:
        """In the first job: keep a connection to the relay open, through which the other job reaches the lighthouse."""
        while True:
            try:
                request = f"meet {LIGHTHOUSE} a {SERVE_S:.0f}"
                answer, reader, writer = await asked(self._relay, self._token, request, SERVE_S)
            except ENDS:
                await asyncio.sleep(LOOK_S)
                continue
            if answer == "met":
                task = asyncio.ensure_future(self._to_own(reader, writer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                writer.close()

    async def _to_own(self, reader: Reader, writer: Writer) -> None:
        try:
            own = await opened(*self._own)
        except ENDS:
            writer.close()
            return
        await splice((reader, writer), own)

    async def look(self) -> None:
        """In the other job: check repeatedly whether the first job's lighthouse can be reached. All groups switch together.

        It counts as lost after three failed checks in a row, because its connection at the relay may be in use for a moment.
        """
        missed = 0
        while True:
            try:
                answer, _, writer = await asked(self._relay, self._token, f"peek {LIGHTHOUSE}", 5)
                writer.close()
            except ENDS:
                answer = "no"
            missed = 0 if answer == "yes" else missed + 1
            there = answer == "yes" or (bool(self.there) and missed < 3)
            if there != self.there:
                say(f"the lighthouse is {'the other cluster' if there else 'this job'}'s")
                self.there = there
                for one in list(self._asking):
                    one.transport.abort()
            await asyncio.sleep(LOOK_S)


async def run(token: str, relay: tuple[str, int], own: tuple[str, int], ports: tuple[int, int], *, first: bool) -> int:
    """Run a job's gate until a signal ends the process. ports: for the groups' streams, and for the lighthouse's clients."""
    made = Gate(token, relay, own, first=first)
    groups = await asyncio.start_server(Meetings(token, made.across).serve, None, ports[0])
    if first:
        made.there = False
        tasks = [asyncio.ensure_future(made.serve_lighthouse()) for _ in range(WAITING_SERVERS)]
    else:
        tasks = [asyncio.ensure_future(made.look())]
        until = time.monotonic() + PROOF_S
        while made.there is None and time.monotonic() < until:
            await asyncio.sleep(0.1)
    lighthouse = await asyncio.start_server(made.lighthouse, None, ports[1])
    say(f"gate listens on ports {ports[0]} and {ports[1]}")
    # Until a signal ends the process, or a fault of this program: the tasks end by nothing else.
    await asyncio.gather(*tasks, groups.serve_forever(), lighthouse.serve_forever())
    return 1


def address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, or [ADDRESS]:PORT."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def main() -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(description="The way of a job's replica groups to those on another cluster.")
    parser.add_argument("--relay", type=address, required=True, metavar="HOST:PORT")
    parser.add_argument("--own", type=address, required=True, metavar="HOST:PORT", help="this job's lighthouse")
    parser.add_argument("--groups", type=int, required=True, metavar="PORT", help="for this job's groups")
    parser.add_argument("--lighthouse", type=int, required=True, metavar="PORT", help="for the lighthouse's clients")
    parser.add_argument("--first", action="store_true", help="this job's lighthouse is the one that counts")
    args = parser.parse_args()
    token = os.environ.get(TOKEN, "")
    if not token:
        return fail(f"{TOKEN} is not set")
    return asyncio.run(run(token, args.relay, args.own, (args.groups, args.lighthouse), first=args.first))


if __name__ == "__main__":
    sys.exit(main())
