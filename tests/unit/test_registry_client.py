"""The login of a registry goes to this registry, and its answers are read up to a limit. The servers are on 127.0.0.x."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit.errors import ImageError, ToolError
from kit.images.sources import image_reference, layer_cache, registry_client
from kit.images.sources.registry_client import CannotAskError, Client
from kit.schema.cluster import SshRules
from kit.shell import Exchanged
from kit.ssh import connection
from kit.ssh.connection import Connection

BLOB = f"sha256:{'0' * 64}"
Answer = Callable[[BaseHTTPRequestHandler], None]


class Quiet(ThreadingHTTPServer):
    """A server whose clients may hang up, as the kit does on a lie: socketserver would print a traceback."""

    def handle_error(self, *_: object) -> None:
        pass


class Server:
    """A server on one address of this machine, and the requests that it got: path and Authorization."""

    def __init__(self, address: str, answer: Answer) -> None:
        self.seen: list[tuple[str, str | None]] = []
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                seen.append((self.path, self.headers.get("Authorization")))
                answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = Quiet((address, 0), Handler)
        self.server.daemon_threads = True
        self.host = f"{address}:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


def says(code: int, body: bytes = b"", **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@pytest.fixture
def serve() -> Iterator[Callable[[str, Answer], Server]]:
    made: list[Server] = []

    def start(address: str, answer: Answer) -> Server:
        made.append(Server(address, answer))
        return made[-1]

    yield start
    for one in made:
        one.server.shutdown()
        one.server.server_close()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Server], Client]:
    """A client with a login for a registry."""

    def of(registry: Server) -> Client:
        login = base64.b64encode(b"victim:secret").decode()
        (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": login}}}))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        host = registry.host.partition(":")[0]
        (tmp_path / "netrc").write_text("machine 127.0.0.9 login victim password secret\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        assert host == "127.0.0.1"
        return Client(image_reference.parse(f"{registry.host}/a/b:latest"))

    return of


Serve = Callable[[str, Answer], Server]
Of = Callable[[Server], Client]


def test_the_login_does_not_follow_a_redirect(serve: Serve, client: Of) -> None:
    """The target asks for it, with a realm of its own."""
    other = serve("127.0.0.9", lambda handler: challenge(handler))  # noqa: PLW0108 - made below
    challenge = says(401, WWW_Authenticate=f'Bearer realm="http://{other.host}/token",service="s"')
    registry = serve("127.0.0.1", says(307, Location=f"http://{other.host}/blob"))
    with pytest.raises(ImageError, match="401 Unauthorized") as caught:
        list(client(registry).blob(BLOB, 0))
    assert not isinstance(caught.value, CannotAskError), "another tool would answer the challenge"
    assert other.seen == [("/blob", None)]


def test_a_token_of_the_registry_does_not_follow_a_redirect(serve: Serve, client: Of) -> None:
    other = serve("127.0.0.9", says(200, b"content"))

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.path.startswith("/token"):
            says(200, b'{"token": "granted"}')(handler)
        elif handler.headers.get("Authorization") == "Bearer granted":
            says(307, Location=f"http://{other.host}/blob")(handler)
        else:
            says(401, WWW_Authenticate=f'Bearer realm="http://{registry.host}/token"')(handler)

    registry = serve("127.0.0.1", answer)
    assert b"".join(chunk for _, chunk in client(registry).blob(BLOB, 0)) == b"content"
    assert other.seen == [("/blob", None)]
    assert [told.partition(" ")[0] for path, told in registry.seen if told and path.startswith("/token")] == ["Basic"]


def test_a_realm_of_another_server_gets_no_login(serve: Serve, client: Of) -> None:
    other = serve("127.0.0.9", says(200, b'{"token": "x"}'))
    registry = serve("127.0.0.1", says(401, WWW_Authenticate=f'Bearer realm="http://{other.host}/token"'))
    with pytest.raises(ImageError, match=f"asks for your login at http://{other.host}, which is not its own"):
        client(registry).resolve()
    assert other.seen == []


@pytest.mark.parametrize(
    ("registry", "realm", "gets"),
    [
        ("docker.io", "https://auth.docker.io/token", True),
        ("ghcr.io", "https://ghcr.io/token", True),
        ("registry.gitlab.com", "https://gitlab.com/jwt/auth", True),
        ("git.example.org:5050", "https://git.example.org/jwt", True),
        ("ghcr.io", "http://ghcr.io/token", False),
        ("ghcr.io", "https://evil.io/token", False),
        ("ghcr.io", "https://ghcr.io.evil.org/token", False),
        ("ghcr.io", "https://ghcr.io@evil.org/token", False),
        ("registry.gitlab.com", "https://notgitlab.com/token", False),
        ("10.0.0.1", "https://9.0.0.1/token", False),
        ("ghcr.io", "file:///etc/passwd", False),
        ("ghcr.io", "", False),
        ("ghcr.io", "https://[", False),
    ],
)
def test_the_login_goes_to_the_registrys_own_token_server(registry: str, realm: str, *, gets: bool) -> None:
    one = Client(image_reference.parse(f"{registry}/a/b:latest"))
    if gets:
        one._check_realm(realm)
    else:
        with pytest.raises(ImageError, match="not its own server by https"):
            one._check_realm(realm)


@pytest.mark.parametrize("location", ["file:///etc/hostname", "ftp://127.0.0.9/x", "http://["])
def test_a_redirect_out_of_http_is_refused(serve: Serve, client: Of, location: str) -> None:
    registry = serve("127.0.0.1", says(307, Location=location))
    with pytest.raises(ImageError, match="the registry redirects to"):
        list(client(registry).blob(BLOB, 0))


def test_redirects_in_a_circle_end(serve: Serve, client: Of) -> None:
    registry = serve("127.0.0.1", says(307, Location="/v2/a/b/blobs/again"))
    with pytest.raises(ImageError, match="more than 5 redirects"):
        list(client(registry).blob(BLOB, 0))
    assert len(registry.seen) == 5


@pytest.mark.parametrize("start", [0, 7])
def test_a_registry_that_knows_no_range_at_all_is_refused(serve: Serve, client: Of, start: int) -> None:
    registry = serve("127.0.0.1", says(416))
    with pytest.raises(ImageError, match="416"):
        list(client(registry).blob(BLOB, start))
    assert len(registry.seen) == (2 if start else 1)


@pytest.mark.parametrize(("code", "location"), [(404, ""), (307, "file:///etc/hostname")])
def test_the_body_of_an_error_is_read_up_to_a_limit(serve: Serve, client: Of, code: int, location: str) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        handler.send_header("Location", location)
        handler.end_headers()
        handler.close_connection = True
        # The client closes the connection when it has read enough.
        with contextlib.suppress(OSError):
            for _ in range(400):
                handler.wfile.write(b" " * (1 << 20))

    registry = serve("127.0.0.1", endless)
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=r"404|redirects to"):
            client(registry).resolve()
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_login_node_cannot_fill_the_memory() -> None:
    line = Connection("far", SshRules(host="far"))
    bomb = gzip.compress(bytes(256 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ToolError, match="unpacks to over 400 times its size"):
            line._reply(Exchanged(returncode=0, stdout=b"\nmark\n" + bomb, stderr=""), b"mark")
        assert tracemalloc.get_traced_memory()[1] < 160 << 20
    finally:
        tracemalloc.stop()
    text = b"the same line again and again\n" * 1_000_000
    assert connection._unpacked(gzip.compress(text)) == text
    for cut in (0, 5, 20, -1):
        with pytest.raises((EOFError, zlib.error)):
            connection._unpacked(gzip.compress(text)[:cut])


def limited(times: int, then: Answer, wait: str, code: int = 429) -> Answer:
    """Refuses some requests for now."""
    left = [says(code, Retry_After=wait)] * times

    def answer(handler: BaseHTTPRequestHandler) -> None:
        (left.pop() if left else then)(handler)

    return answer


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(registry_client, "time", SimpleNamespace(sleep=found.append, time=time.time))
    return found


@pytest.mark.parametrize("code", [429, 503])
def test_a_limit_is_waited_for(serve: Serve, waits: list[float], code: int) -> None:
    registry = serve("127.0.0.1", limited(2, says(200, b"{}", Docker_Content_Digest=BLOB), "7", code))
    told: list[str] = []
    one = Client(image_reference.parse(f"{registry.host}/a/b:latest"), say=told.append)
    assert one.resolve() == BLOB
    assert (waits, len(registry.seen)) == ([7.0, 7.0], 3)
    assert told == [f"{registry.host}/a/b:latest: the registry limits requests; asking again in 7 s"] * 2


def test_a_limit_until_a_date(serve: Serve, client: Of, waits: list[float]) -> None:
    registry = serve("127.0.0.1", limited(1, says(200, b"{}"), formatdate(time.time() + 90, usegmt=True)))
    client(registry).resolve()
    (wait,) = waits
    assert 1 <= wait <= 90


@pytest.mark.parametrize("wait", ["3600", "99999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_limit_of_hours_is_not_waited_for(serve: Serve, client: Of, waits: list[float], wait: str) -> None:
    registry = serve("127.0.0.1", says(429, Retry_After=wait))
    with pytest.raises(ImageError, match=r"429 Too Many Requests, wait \d+ s") as caught:
        client(registry).resolve()
    assert "docker login" in caught.value.hint
    assert (waits, len(registry.seen)) == ([], 1)


@pytest.mark.parametrize("wait", ["", "soon", "-3", "1e9"])
def test_a_limit_without_a_time(serve: Serve, client: Of, waits: list[float], wait: str) -> None:
    registry = serve("127.0.0.1", says(429, Retry_After=wait))
    with pytest.raises(ImageError, match="429 Too Many Requests"):
        client(registry).resolve()
    assert (waits, len(registry.seen)) == ([], 1)


def test_a_registry_that_limits_for_ever_is_left_after_minutes(serve: Serve, client: Of, waits: list[float]) -> None:
    registry = serve("127.0.0.1", says(503, Retry_After="100"))
    with pytest.raises(ImageError, match="503 Service Unavailable, wait 100 s"):
        client(registry).resolve()
    assert waits == [100.0] * 3


def test_a_layer_is_fetched_after_the_time_that_the_registry_names(
    serve: Serve, client: Of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"layer"
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    waited: list[float | None] = []

    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return False

    monkeypatch.setattr(layer_cache, "threading", SimpleNamespace(Event=Impatient, Lock=threading.Lock))
    registry = serve("127.0.0.1", limited(2, says(200, content), "40"))
    layer_cache.fetch(client(registry), {digest: len(content)}, lambda _: None, name="b")
    assert layer_cache.path(digest).read_bytes() == content
    assert waited == [40.0, 40.0]
    waited.clear()
    again = f"sha256:{'2' * 64}"
    with pytest.raises(ImageError, match=r"does not give the layer .* now: 429 Too Many Requests, wait 110 s"):
        layer_cache.fetch(
            client(serve("127.0.0.1", says(429, Retry_After="110"))), {again: 5}, lambda _: None, name="b"
        )
    assert waited == [110.0, 110.0], "five minutes in all"
    with pytest.raises(
        ImageError, match=r"does not give the layer .* now: 429 Too Many Requests, wait 7200 s"
    ) as caught:
        other = f"sha256:{'1' * 64}"
        layer_cache.fetch(
            client(serve("127.0.0.1", says(429, Retry_After="7200"))), {other: 5}, lambda _: None, name="b"
        )
    assert "docker login" in caught.value.hint
