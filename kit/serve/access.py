"""Access to the pages: a request needs the token, and must come from a page of this server. All others get 404.

The token is the first part of every path, not a cookie: a page of another site cannot make a browser send it, and a name that was
rebound to 127.0.0.1 leads to 404 like any other guess.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# What a browser calls the machine that it runs on, which is also what `ssh -L` leads to.
_OWN_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})
# A form of another site cannot send it, and a script of another site has to ask first, which is never granted.
CONTROL_HEADER = "x-kit"
_READ = frozenset({"GET", "HEAD"})
_HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def new_token() -> str:
    """A random token of 256 bits, in characters that a URL can hold."""
    return secrets.token_urlsafe(32)


class Access:
    """Passes requests with the token to `app`, without the token in their path. Only GET and HEAD, unless `control` is set."""

    def __init__(self, app: ASGIApp, *, token: str, control: bool = False) -> None:
        self._app, self._token, self._control = app, token, control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request. A WebSocket is closed at once, because the server has none."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def harden(message: Message) -> None:
            if message["type"] == "http.response.start":
                had = {name.lower() for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in had]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, harden)
            return
        await self._app({**scope, "root_path": f"/{self._token}"}, receive, harden)

    def _refused(self, scope: Scope) -> PlainTextResponse | RedirectResponse | None:
        given, slash, _ = scope["path"].removeprefix("/").partition("/")
        if not secrets.compare_digest(given.encode(errors="surrogatepass"), self._token.encode()):
            return PlainTextResponse("Not Found", 404)
        headers = Headers(scope=scope)
        if not _is_own(headers):
            return PlainTextResponse("this server is called 127.0.0.1 or localhost, and by no other name", 403)
        if scope["method"] not in _READ and not (self._control and scope["method"] == "POST"):
            return PlainTextResponse("read only; 'kit serve --control' lets runs be cancelled and resumed", 405)
        if scope["method"] == "POST" and not _is_from_own_page(headers):
            return PlainTextResponse("only a page of this server may do that", 403)
        return None if slash else RedirectResponse(f"/{self._token}/", 307)


def _is_own(headers: Headers) -> bool:
    hosts = headers.getlist("host")
    return len(hosts) == 1 and _name(hosts[0]) in _OWN_NAMES


def _name(host: str) -> str:
    """The host's name without its port, which `ssh -L` may have changed."""
    name, colon, port = host.rpartition(":")
    return name.lower() if colon and port.isdecimal() else host.lower()


def _is_from_own_page(headers: Mapping[str, str]) -> bool:
    """Browsers say where a request comes from (Fetch Metadata, https://www.w3.org/TR/fetch-metadata/; Origin, RFC 6454)."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    return (
        headers.get(CONTROL_HEADER) == "control"
        and (origin is None or origin == f"http://{headers['host']}")
        and (site is None or site == "same-origin")
    )
