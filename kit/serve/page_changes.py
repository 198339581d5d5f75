"""Tells readers when their page has changed. Each page is checked once, however many readers it has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from anyio import to_thread

from kit.errors import KitError
from kit.serve.pages import Key, Pages

LOOK_S = 2.0
# A proxy, or `ssh`, may close a connection that says nothing.
_QUIET_S = 15.0
MOST_READERS = 500


class Hub:
    """The readers of one event loop. look_s: seconds between two checks of the pages that somebody reads."""

    def __init__(self, pages: Pages, *, look_s: float = LOOK_S) -> None:
        self._pages, self._look_s = pages, look_s
        self._readers: dict[Key, set[asyncio.Event]] = {}
        self._versions: dict[Key, str] = {}
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether the maximum number of readers is reached."""
        return sum(map(len, self._readers.values())) >= MOST_READERS

    async def run(self) -> None:
        """Check pages until cancelled. A page that cannot be made now is checked again later."""
        while True:
            for key in list(self._readers):
                with contextlib.suppress(KitError, OSError):
                    made = await to_thread.run_sync(self._pages.get, key)
                    if self._versions.get(key) != made.version:
                        self._versions[key] = made.version
                        for reader in self._readers.get(key, ()):
                            reader.set()
            await asyncio.sleep(self._look_s)

    def close(self) -> None:
        """End every reader's connection: the server stops."""
        self._closed = True
        for readers in self._readers.values():
            for one in readers:
                one.set()

    async def events(self, key: Key, version: str) -> AsyncIterator[str]:
        """Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html): one for each change of the page.

        version: of the page that the reader has.
        """
        changed = asyncio.Event()
        self._readers.setdefault(key, set()).add(changed)
        try:
            # Milliseconds after which a browser that lost the server asks again.
            yield "retry: 3000\n\n"
            while not self._closed:
                newest = self._versions.get(key, version)
                if newest != version:
                    version = newest
                    yield f"event: changed\ndata: {version}\n\n"
                try:
                    await asyncio.wait_for(changed.wait(), _QUIET_S)
                    changed.clear()
                except TimeoutError:
                    yield ": nothing new\n\n"
        finally:
            self._readers[key].discard(changed)
            if not self._readers[key]:
                del self._readers[key]
                self._versions.pop(key, None)
