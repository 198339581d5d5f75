"""A read-only file system over TCP, for benchmarks: a server of a folder, and a FUSE mount of it. Few test machines have NFS.

    python _network_file_system.py serve FOLDER ADDRESS PORT
    python _network_file_system.py mount ADDRESS PORT FOLDER       ends when it is unmounted; needs root

As with NFS, what a node has read stays in its page cache, and the kernel reads ahead. The structures are those of linux/fuse.h.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import socketserver
import stat
import struct
import sys
from pathlib import Path
from typing import BinaryIO, cast

_HEADER, _ANSWER = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_ATTR, _INIT = struct.Struct("<QQQQQQIIIIIIIIII"), struct.Struct("<IIII")
_READ = struct.Struct("<QQII")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ_FILE, _STATFS, _RELEASE, _FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
_START, _OPENDIR, _READDIR, _RELEASEDIR, _ACCESS, _BATCH_FORGET, _INTERRUPT, _DESTROY = 26, 27, 28, 29, 34, 42, 36, 38
_ASYNC_READ, _MAX_PAGES = 1 << 0, 1 << 22
_MOST_READ, _BUFFER = 1 << 20, (1 << 20) + 4096
_ROOT, _FOREVER_S = 1, 3600


class Server(socketserver.ThreadingTCPServer):
    """Serves the files of a folder: a line of JSON asks, and a line of JSON answers, with bytes behind it for a read."""

    allow_reuse_address = True
    daemon_threads = True
    folder = Path()


class _Client(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        """Answer until the client ends."""
        server = cast("Server", self.server)
        for line in self.rfile:
            asked = json.loads(line)
            path = server.folder / asked["path"]
            try:
                if "size" in asked:
                    with path.open("rb") as stream:
                        content = os.pread(stream.fileno(), asked["size"], asked["offset"])
                    self.wfile.write(json.dumps({"length": len(content)}).encode() + b"\n" + content)
                else:
                    found = path.stat()
                    facts = {
                        "size": found.st_size,
                        "mode": found.st_mode,
                        "mtime": int(found.st_mtime),
                        "ino": found.st_ino,
                    }
                    self.wfile.write(json.dumps(facts).encode() + b"\n")
            except OSError as error:
                self.wfile.write(json.dumps({"errno": error.errno}).encode() + b"\n")


class Mount:
    """The FUSE side: each inode is a path that the kernel has looked up."""

    def __init__(self, address: str, port: int, folder: str) -> None:
        self._link = socket.create_connection((address, port))
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers: BinaryIO = self._link.makefile("rb")
        self._paths = {_ROOT: ""}
        self._fuse = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={_MOST_READ}"
        libc = ctypes.CDLL(None, use_errno=True)
        # MS_RDONLY | MS_NOSUID | MS_NODEV
        if libc.mount(b"network", folder.encode(), b"fuse", ctypes.c_ulong(7), options.encode()) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def serve(self) -> None:
        """Answer the kernel until it is unmounted."""
        while True:
            try:
                request = os.read(self._fuse, _BUFFER)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in {errno.EINTR, errno.ENOENT}:
                    continue
                raise
            _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
            if opcode in {_FORGET, _BATCH_FORGET, _INTERRUPT}:
                continue
            try:
                number, content = 0, self._answer(opcode, node, request[_HEADER.size :])
            except OSError as error:
                number, content = -(error.errno or errno.EIO), b""
            os.write(self._fuse, _ANSWER.pack(_ANSWER.size + len(content), number, unique) + content)
            if opcode == _DESTROY:
                return

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:  # noqa: PLR0911 - one answer for each request
        if opcode == _START:
            read_ahead, flags = _INIT.unpack_from(body)[2:]
            kept = flags & (_ASYNC_READ | _MAX_PAGES)
            return struct.pack(
                "<IIIIHHIIHHII6I", 7, 31, read_ahead, kept, 16, 12, _MOST_READ, 1, 256, 0, 0, 0, *[0] * 6
            )
        if opcode == _LOOKUP:
            name = body.rstrip(b"\0").decode()
            path = f"{self._paths[node]}/{name}".lstrip("/")
            facts = self._ask(path=path)
            self._paths[facts["ino"]] = path
            return struct.pack("<QQQQII", facts["ino"], 0, _FOREVER_S, _FOREVER_S, 0, 0) + _attributes(facts)
        if opcode == _GETATTR:
            return struct.pack("<QII", _FOREVER_S, 0, 0) + _attributes(self._ask(path=self._paths[node]))
        if opcode in {_OPEN, _OPENDIR}:
            return struct.pack("<QII", 0, 2, 0)  # FOPEN_KEEP_CACHE
        if opcode == _READ_FILE:
            _, offset, size, _ = _READ.unpack_from(body)
            length = self._ask(path=self._paths[node], offset=offset, size=size)["length"]
            return self._answers.read(length)
        if opcode == _STATFS:
            return struct.pack("<QQQQQIIII6I", 0, 0, 0, 0, 0, 4096, 255, 4096, 0, *[0] * 6)
        if opcode in {_READDIR, _RELEASE, _RELEASEDIR, _FLUSH, _ACCESS, _DESTROY}:
            return b""
        raise OSError(errno.ENOSYS, "not needed")

    def _ask(self, **question: object) -> dict[str, int]:
        self._link.sendall(json.dumps(question).encode() + b"\n")
        facts: dict[str, int] = json.loads(self._answers.readline())
        if "errno" in facts:
            raise OSError(facts["errno"], os.strerror(facts["errno"]))
        return facts


def _attributes(facts: dict[str, int]) -> bytes:
    mode = stat.S_IMODE(facts["mode"]) & 0o555 | stat.S_IFMT(facts["mode"])
    size, mtime = facts["size"], facts["mtime"]
    return _ATTR.pack(facts["ino"], size, -(-size // 512), mtime, mtime, mtime, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def main() -> None:
    """Serve, or mount."""
    if sys.argv[1] == "serve":
        Server.folder = Path(sys.argv[2])
        with Server((sys.argv[3], int(sys.argv[4])), _Client) as server:
            server.serve_forever()
    else:
        Mount(sys.argv[2], int(sys.argv[3]), sys.argv[4]).serve()


if __name__ == "__main__":
    main()
