"""Connects the replica groups of one training on two clusters whose nodes cannot reach each other.

    python3 relay.py RUN_DIR --host HOST --port PORT        on the login node of the first cluster

The relay opens no connection: gate.py in each cluster's job connects to it. Two connections that ask for the same meeting from
opposite sides become one stream of bytes. First, each end proves that it has the run's token, KIT_RELAY_TOKEN, by an HMAC of the
other end's nonce; the token itself is never sent. A connection without a valid proof is closed after a few bytes and seconds. The
relay ends when Slurm has no more jobs of the run.

It uses only Python's standard library, so that it runs on a login node without installation.

A conversation, before the bytes:

    server   kit-relay 1 NONCE
    client   NONCE PROOF                        HMAC-SHA256 of "client", the server's nonce and its own
    server   PROOF                              of "server" and the same; the client refuses another
    client   peek NAME                          server: yes or no, whether somebody waits to serve this meeting
    client   meet NAME a|b SECONDS              server: met, and the bytes follow; or nobody, when the time is over
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

GREETING = "kit-relay 1"
TOKEN = "KIT_RELAY_TOKEN"

LONGEST_LINE = 256
PROOF_S = 10.0
# Connections without a proof of the token so far. With more, the oldest is closed. A proof takes two round trips.
MOST_UNPROVED = 64
MOST_PROVED = 8192
LONGEST_WAIT_S = 3600.0
LOOK_S = 2.0
# How often Slurm is asked; and when the relay ends although Slurm does not answer, so that none stays for ever.
ASK_S = 60.0
SILENT_S = 7 * 86_400.0


class PeerRefused(Exception):  # noqa: N818 - the end of one connection, not of the program
    """The other end does not belong to this run, or breaks the protocol."""


# Errors that end one connection and nothing else. Before Python 3.11 asyncio's TimeoutError is no OSError.
ENDS = (OSError, PeerRefused, asyncio.TimeoutError)


def proof(token: str, who: str, theirs: str, ours: str) -> str:
    """The proof that `who` has the token. theirs, ours: the server's nonce and the client's."""
    return hmac.new(token.encode(), f"{who} {theirs} {ours}".encode(), hashlib.sha256).hexdigest()


def steady(connection: socket.socket) -> None:
    """Send small messages at once, and notice within half a minute that a peer has vanished."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# ---- a client ----


async def line_of(reader: Reader) -> str:
    """Read the next line. PeerRefused if it is too long, or if more bytes follow: each end must wait for an answer."""
    got = b""
    while b"\n" not in got:
        more = await reader.read(LONGEST_LINE)
        got += more
        if not more or len(got) > LONGEST_LINE:
            raise PeerRefused("no end of a line")
    line, _, rest = got.partition(b"\n")
    if rest:
        raise PeerRefused("bytes after the end of the line")
    return line.decode("ascii", "replace")


async def opened(host: str, port: int) -> tuple[Reader, Writer]:
    """Open a connection, within PROOF_S seconds."""
    reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), PROOF_S)
    steady(writer.get_extra_info("socket"))
    return reader, writer


async def asked(address: tuple[str, int], token: str, request: str, seconds: float) -> tuple[str, Reader, Writer]:
    """Send a request to a relay; return its answer and the connection. OSError or a time-out, or PeerRefused, if there is none."""
    reader, writer = await opened(*address)
    try:
        greeting = await asyncio.wait_for(_unbuffered_line(reader), PROOF_S)
        if not re.fullmatch(rf"{GREETING} [0-9a-f]{{32}}", greeting):
            raise PeerRefused("not a relay")
        theirs, ours = greeting.rpartition(" ")[2], secrets.token_hex(16)
        writer.write(f"{ours} {proof(token, 'client', theirs, ours)}\n".encode())
        answer = await asyncio.wait_for(_unbuffered_line(reader), PROOF_S)
        if not hmac.compare_digest(answer, proof(token, "server", theirs, ours)):
            raise PeerRefused("not this run's relay")
        writer.write(f"{request}\n".encode())
        return await asyncio.wait_for(_unbuffered_line(reader), seconds + PROOF_S), reader, writer
    except BaseException:
        writer.close()
        raise


async def _unbuffered_line(reader: Reader) -> str:
    """A server's line, after which the peer's bytes may come at once: they stay in the reader."""
    try:
        line = await reader.readline()
    except ValueError:
        line = b""  # longer than the reader's buffer
    if not line.endswith(b"\n") or len(line) > LONGEST_LINE:
        raise PeerRefused("no end of a line")
    return line[:-1].decode("ascii", "replace")


async def splice(one: tuple[Reader, Writer], other: tuple[Reader, Writer]) -> None:
    """Carry bytes both ways until one end closes or fails. The other end still gets all of its bytes; then both are closed."""
    ways = [asyncio.ensure_future(_carry(*way)) for way in ((one[0], other[1]), (other[0], one[1]))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        for _, writer in (one, other):
            writer.close()  # after what is still to be sent
        await asyncio.gather(*ways, return_exceptions=True)


async def _carry(reader: Reader, writer: Writer) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


# ---- the relay, and the part of a gate that is one ----


class WaitingConnection:
    """A connection that waits for the other side of its meeting. met: the other side's reader, writer and result."""

    def __init__(self) -> None:
        self.met: asyncio.Future[tuple[Reader, Writer, asyncio.Future[bool]]]
        self.met = asyncio.get_running_loop().create_future()


class Meetings:
    """Joins connections that ask for the same meeting from opposite sides. elsewhere: handles connections for other meetings."""

    def __init__(
        self, token: str, elsewhere: Callable[[str, str, float, Reader, Writer], Awaitable[bool]] | None = None
    ) -> None:
        self._token, self._elsewhere = token, elsewhere
        self._waiting: dict[tuple[str, str], deque[WaitingConnection]] = {}
        self._unproved: deque[Writer] = deque()
        self.proved = 0

    async def serve(self, reader: Reader, writer: Writer) -> None:
        """Serve one connection, from its greeting to its end."""
        proved = False
        try:
            steady(writer.get_extra_info("socket"))
            self._unproved.append(writer)
            if len(self._unproved) > MOST_UNPROVED:
                self._unproved.popleft().transport.abort()
            try:
                await asyncio.wait_for(self._prove(reader, writer), PROOF_S)
                if self.proved >= MOST_PROVED:
                    raise PeerRefused("too many connections wait")
                proved = True
                self.proved += 1
                request = await asyncio.wait_for(line_of(reader), PROOF_S)
            finally:
                if writer in self._unproved:
                    self._unproved.remove(writer)
            await self._answer(request, reader, writer)
        except ENDS:
            pass  # a peer that left or has no proof gets no answer: its connection is closed
        finally:
            self.proved -= proved
            writer.close()

    async def _prove(self, reader: Reader, writer: Writer) -> None:
        ours = secrets.token_hex(16)
        writer.write(f"{GREETING} {ours}\n".encode())
        theirs, _, shown = (await line_of(reader)).partition(" ")
        if not re.fullmatch("[0-9a-f]{32}", theirs) or not hmac.compare_digest(
            shown.encode(), proof(self._token, "client", ours, theirs).encode()
        ):
            raise PeerRefused("no proof")
        writer.write(f"{proof(self._token, 'server', ours, theirs)}\n".encode())
        await writer.drain()

    async def _answer(self, request: str, reader: Reader, writer: Writer) -> None:
        peek = re.fullmatch(r"peek ([A-Za-z0-9-]{1,128})", request)
        wanted = re.fullmatch(r"meet ([A-Za-z0-9-]{1,128}) ([ab]) ([0-9]{1,6})", request)
        if peek:
            writer.write(b"yes\n" if self._waiting.get((peek[1], "a")) else b"no\n")
            await writer.drain()
        elif wanted:
            seconds = min(float(wanted[3]), LONGEST_WAIT_S)
            if self._elsewhere and await self._elsewhere(wanted[1], wanted[2], seconds, reader, writer):
                return
            await self._meet(wanted[1], wanted[2], seconds, reader, writer)
        else:
            raise PeerRefused("no request")

    async def _meet(self, name: str, side: str, seconds: float, reader: Reader, writer: Writer) -> None:
        others = self._waiting.get((name, "b" if side == "a" else "a"), deque())
        while others:
            other, ended = others.popleft(), asyncio.get_running_loop().create_future()
            if not other.met.done():
                other.met.set_result((reader, writer, ended))
                if await ended:  # the task of the end that waited carries the bytes
                    return
        mine = WaitingConnection()
        queue = self._waiting.setdefault((name, side), deque())
        queue.append(mine)
        try:
            gone = await left_while(reader, mine.met, seconds)
        finally:
            with contextlib.suppress(ValueError):
                queue.remove(mine)
            if not queue and self._waiting.get((name, side)) is queue:
                del self._waiting[name, side]
        if not mine.met.done():
            mine.met.cancel()
            writer.write(b"nobody\n")
            return
        their_reader, their_writer, ended = mine.met.result()
        if gone:
            ended.set_result(False)
            return
        try:
            for one in (writer, their_writer):
                one.write(b"met\n")
            await splice((reader, writer), (their_reader, their_writer))
        finally:
            ended.set_result(True)


async def left_while(reader: Reader, awaited: asyncio.Future[Any], seconds: float | None = None) -> bool:
    """Wait for `awaited`, at most this many seconds. True if the peer of `reader` closed, or sent bytes before its turn."""
    gone = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({gone, awaited}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return gone.done()
    finally:
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await gone


# ---- serve: on the login node ----


async def serve(run_dir: Path, host: str, bind: str, port: int) -> int:
    """Run the relay until Slurm has no more jobs of the run. If the relay cannot start, return the exit code."""
    if not (token := token_of(run_dir)):
        return fail(f"{run_dir}/.secrets has no {TOKEN}: has the run ended?")
    try:
        server = await asyncio.start_server(Meetings(token).serve, bind or None, port)
    except OSError as error:
        return fail(f"cannot listen on port {port}: {error.strerror or error}")
    record = run_dir / "state" / "relay.json"
    told = {
        "host": host,
        "port": port,
        "pid": os.getpid(),
        "node": socket.gethostname(),
        "started": started(os.getpid()),
    }
    fresh = record.with_name(f"relay.json.{os.getpid()}.new")
    fresh.write_text(json.dumps(told) + "\n")
    fresh.replace(record)
    say(f"relay listens on port {port}")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    watch = asyncio.ensure_future(job_over(run_dir))
    await asyncio.wait({watch, asyncio.ensure_future(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    with contextlib.suppress(OSError):
        record.unlink()
    say("relay ends" if stop.is_set() else "relay ends with its run")
    server.close()
    # The kernel closes what is open. asyncio would first wait for every conversation to have its end.
    os._exit(0)


def token_of(run_dir: Path) -> str:
    """The relay's token of a run; empty if the run has ended."""
    try:
        words = shlex.split((run_dir / ".secrets").read_text())
    except OSError:
        return ""
    return next((word.partition("=")[2] for word in words if word.startswith(f"{TOKEN}=")), "")


def started(pid: int) -> int:
    """The start of a process, in the kernel's clock ticks. Together with the PID it identifies the process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


async def job_over(run_dir: Path) -> None:
    """Return when Slurm has no more jobs of this run, or when the run folder was removed.

    Slurm is asked once a minute, and at once when the run's record changes. A single answer is not enough. It also returns after
    SILENT_S seconds without an answer.
    """
    looked, record, missing, began = 0.0, (0.0, 0.0), 0, time.monotonic()
    answered = began
    while True:
        await asyncio.sleep(LOOK_S)
        if not run_dir.is_dir():
            return
        now = time.monotonic()
        changed = (_mtime(run_dir / "state" / "events.jsonl"), _mtime(run_dir / "state" / "cancelled-by"))
        if not missing and changed == record and now - looked < ASK_S:
            continue
        looked, record = now, changed
        number = job_of(run_dir)
        if number is None:
            over = now - began > 600
        else:
            said = await asyncio.get_running_loop().run_in_executor(None, is_over, number)
            answered = answered if said is None else now
            over = bool(said)
        missing = missing + 1 if over else 0
        if missing >= 3 or now - answered > SILENT_S:
            return


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def job_of(run_dir: Path) -> int | None:
    """The run's newest job; None before sbatch has given a number."""
    try:
        number = json.loads((run_dir / "manifest.json").read_text())["job_id"]
    except (OSError, ValueError, KeyError):
        return None
    return int(number) if number is not None else None


def is_over(job: int) -> bool | None:
    """Whether a job has ended for Slurm; None if Slurm does not answer."""
    try:
        done = subprocess.run(
            ["squeue", "--noheader", "--format=%T", f"--jobs={job}"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return True if "Invalid job id" in done.stderr else None
    return not done.stdout.strip()


# ---- the command line ----


def say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def fail(line: str) -> int:
    say(f"error: {line}")
    return 1


def main() -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(description="The relay between the two clusters of one training, on a login node.")
    parser.add_argument("run_dir", type=Path, help="the run of the first cluster")
    parser.add_argument("--host", required=True, help="what the nodes of both clusters reach it by")
    parser.add_argument("--bind", default="", help="the address to listen on; default: all")
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    return asyncio.run(serve(args.run_dir, args.host, args.bind, args.port))


if __name__ == "__main__":
    sys.exit(main())
