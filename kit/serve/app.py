"""The paths of the server, all behind the token: /TOKEN/… (access.py)."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from kit.errors import KitError, RunError
from kit.files.safe_text import clean
from kit.serve import control, exposition
from kit.serve.access import Access
from kit.serve.current_runs import Board
from kit.serve.page_changes import LOOK_S, Hub
from kit.serve.pages import Key, Pages

_NOT_FOUND = PlainTextResponse("Not Found", 404)


def app(board: Board, *, token: str, script: str, may_control: bool, look_s: float = LOOK_S) -> tuple[ASGIApp, Hub]:
    """The server, and the Hub that tells its readers of changes. script: from vega_library.script(). look_s: seconds between
    checks."""
    pages = Pages(board, control=may_control)
    hub = Hub(pages, look_s=look_s)
    handlers = _Handlers(board, pages, hub, script)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(hub.run())
        yield
        looking.cancel()

    routes = [
        Route("/", handlers.page),
        Route("/compare", handlers.page),
        Route("/events", handlers.events),
        Route("/metrics", handlers.metrics),
        Route("/vega.js", handlers.script),
        Route("/{kind}s/{name}", handlers.page),
        Route("/{kind}s/{name}/report.json", handlers.data),
        *([Route("/{kind}s/{name}/{action}", handlers.act, methods=["POST"])] if may_control else []),
    ]
    return Access(Starlette(routes=routes, lifespan=lifespan), token=token, control=may_control), hub


class _Handlers:
    def __init__(self, board: Board, pages: Pages, hub: Hub, script: str) -> None:
        self._board, self._pages, self._hub, self._script = board, pages, hub, script.encode()

    async def page(self, request: Request) -> Response:
        return await self._made(_key(request), "html")

    async def data(self, request: Request) -> Response:
        return await self._made(_key(request), "data")

    async def _made(self, key: Key, what: str) -> Response:
        try:
            made = await to_thread.run_sync(self._pages.get, key)
        except RunError:
            return _NOT_FOUND
        except KitError as error:
            return PlainTextResponse(clean(error.message), 500)
        return Response(made.html, media_type="text/html") if what == "html" else _json(made.data)

    async def events(self, request: Request) -> Response:
        key = Key.parse(request.query_params.get("page", ""))
        try:
            await to_thread.run_sync(self._pages.shows, key)
        except RunError:
            return _NOT_FOUND
        if self._hub.full:
            return PlainTextResponse("too many readers", 503)
        told = self._hub.events(key, request.query_params.get("made", ""))
        return StreamingResponse(told, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def metrics(self, request: Request) -> Response:
        found = await to_thread.run_sync(exposition.text, self._board)
        return Response(found, headers={"content-type": exposition.CONTENT_TYPE})

    async def script(self, request: Request) -> Response:
        # It is the same for as long as the token, which is in its path, is.
        held = {"cache-control": "private, max-age=604800, immutable"}
        return Response(self._script, media_type="text/javascript", headers=held)

    async def act(self, request: Request) -> Response:
        kind, name, action = (request.path_params[key] for key in ("kind", "name", "action"))
        try:
            done = await to_thread.run_sync(control.act, self._board, kind, name, action)
        except KitError as error:
            print(clean(control.said(action, name, error.message)), file=sys.stderr)
            return PlainTextResponse(clean(error.message), 409)
        print(clean(control.said(action, name, done)), file=sys.stderr)
        return PlainTextResponse(clean(done))


def _key(request: Request) -> Key:
    if request.url.path.endswith("/compare"):
        return Key("compare", tuple(request.query_params.getlist("run")))
    if "name" in request.path_params:
        return Key(request.path_params["kind"], (request.path_params["name"],))
    return Key("list")


def _json(text: str) -> Response:
    return Response(text, media_type="application/json")
