"""Real servers that notices are sent to: a webhook and a mail server, each of which keeps what it gets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Hook(ThreadingHTTPServer):
    """A webhook that keeps what it gets; there is nothing at its path /none."""

    def __init__(self, address: str) -> None:
        super().__init__((address, 0), _Handler)
        self.got: list[dict[str, Any]] = []
        self.paths: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Hook)
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.paths.append(self.path)
        self.send_response(404 if self.path.startswith("/none") else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@contextmanager
def webhook(address: str = "127.0.0.1") -> Iterator[Hook]:
    """It listens on this address alone."""
    with Hook(address) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@contextmanager
def mailbox(address: str = "127.0.0.1") -> Iterator[tuple[int, list[Any]]]:
    """Port of a real SMTP server, and what it got."""
    controller = pytest.importorskip("aiosmtpd.controller", reason="pip install aiosmtpd")
    got: list[Any] = []

    class Keep:
        async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
            got.append(envelope)
            return "250 OK"

    with socket.socket() as free:
        free.bind((address, 0))
        port = free.getsockname()[1]
    running = controller.Controller(Keep(), hostname=address, port=port)
    running.start()
    yield port, got
    running.stop()
