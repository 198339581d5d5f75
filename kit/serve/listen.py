"""Listens only on 127.0.0.1, or on a Unix socket that only its user may open."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from kit.errors import UsageError
from kit.serve.page_changes import MOST_READERS, Hub


@contextlib.contextmanager
def on_path(path: Path) -> Iterator[socket.socket]:
    """A Unix socket of mode 0600, removed at the end. UsageError if the path is another file, or a socket that is in use."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as opened:
        _clear(path)
        before = os.umask(0o177)
        try:
            opened.bind(str(path))
        except OSError as error:
            hint = "a path of less than 100 bytes, in a folder of your own"
            raise UsageError(f"--socket {path}: {error.strerror or error}", hint=hint) from None
        finally:
            os.umask(before)
        opened.listen()
        mine = path.stat().st_ino
        try:
            yield opened
        finally:
            with contextlib.suppress(OSError):
                if path.stat().st_ino == mine:
                    path.unlink()


def _clear(path: Path) -> None:
    """Remove the socket of a server that was killed."""
    if not os.path.lexists(path):
        return
    if not path.is_socket() or path.is_symlink():
        raise UsageError(f"--socket {path}: there is a file of that name", hint=f"--socket {path}.2")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(1.0)
        try:
            asked.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            # Neither an answer nor a refusal: whoever holds the socket lives.
            taken = "something holds this socket and does not answer"
        else:
            taken = "a server listens there"
    raise UsageError(f"--socket {path}: {taken}", hint=f"--socket {path}.2")


class _Server(uvicorn.Server):
    """Ends the connections that never end by themselves, before it waits for all to end."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.close()
        await super().shutdown(sockets)


def serve(app: ASGIApp, hub: Hub, opened: socket.socket) -> None:
    """Serve until Ctrl-C or TERM. Requests are not logged, because their paths contain the token."""
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        log_config=None,
        ws="none",
        # It accepts by the socket's own method, which looks who connects.
        loop="asyncio",
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=2 * MOST_READERS,
        timeout_graceful_shutdown=2,
    )
    _Server(config, hub).run(sockets=[opened])
