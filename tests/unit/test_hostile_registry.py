"""A registry that lies, floods, stalls or asks for logins: an import ends with one clear error, and gives nothing away.

The registry is a server on 127.0.0.1, and the host that it names beside itself one on 127.0.0.9. Part C of the trust model.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import json
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from kit.errors import ImageError
from kit.images.sources import image_reference, layer_cache, oci, registry, registry_client
from tests.unit.test_registry_client import Answer, Server, says

LAYER = gzip.compress(bytes(10240), mtime=0)
MOST_MEMORY = 300 << 20


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


CONFIG = json.dumps(
    {"architecture": oci.here(), "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}
).encode()


def manifest_of(*layers: tuple[str, object], **more: object) -> bytes:
    described = [{"digest": digest, "size": size} for digest, size in layers]
    return json.dumps({"config": {"digest": digest_of(CONFIG)}, "layers": described, **more}).encode()


MANIFEST = manifest_of((digest_of(LAYER), len(LAYER)))


def endless(code: int = 200, most: int = 1 << 30, **headers: str) -> Answer:
    """A body without an end; it stops after `most` bytes, so that a test of a fault ends."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        _begin(handler, code, headers)
        with contextlib.suppress(OSError):
            for _ in range(most >> 20):
                handler.wfile.write(b" " * (1 << 20))

    return answer


def dripping(handler: BaseHTTPRequestHandler) -> None:
    """Single bytes, slowly: no read of the socket times out."""
    _begin(handler, 200, {"Content-Length": "100000"})
    with contextlib.suppress(OSError):
        for _ in range(600):
            handler.wfile.write(b" ")
            time.sleep(0.05)


def cut(content: bytes) -> Answer:
    """Half of the body that the header promises."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        _begin(handler, 200, {"Content-Length": str(len(content))})
        handler.wfile.write(content[: len(content) // 2])

    return answer


def _begin(handler: BaseHTTPRequestHandler, code: int, headers: dict[str, str]) -> None:
    handler.close_connection = True
    handler.send_response(code)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


@functools.cache
def packed_bomb() -> bytes:
    """Two megabytes that unpack to 400."""
    packer = zlib.compressobj(1, wbits=31)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(400)) + packer.flush()


def bomb(handler: BaseHTTPRequestHandler) -> None:
    says(200, packed_bomb(), Content_Encoding="gzip")(handler)


def challenge(realm: str) -> Answer:
    return says(401, WWW_Authenticate=f'Bearer realm="{realm}",service="s",scope="repository:a/b:pull"')


class Registry:
    """The answers of a registry to what is asked of it; the other host, which it may name; and what both were asked."""

    def __init__(self, manifest: bytes = MANIFEST, layer: bytes = LAYER) -> None:
        self.answers: dict[str, Answer] = {
            "manifests/latest": says(200, manifest),
            f"manifests/{digest_of(manifest)}": says(200, manifest),
            f"blobs/{digest_of(CONFIG)}": says(200, CONFIG),
            f"blobs/{digest_of(LAYER)}": says(200, layer),
        }
        self.always: Answer | None = None
        self.server = Server("127.0.0.1", self._answer)
        self.other = Server("127.0.0.9", says(200, b'{"token": "of the other host"}'))
        self.manifest = f"manifests/{digest_of(manifest)}"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        answer = self.always or self.answers.get(handler.path.partition("/v2/a/b/")[2], says(404))
        with contextlib.suppress(OSError):
            answer(handler)

    def import_it(self) -> int:
        """Read the image's description and bring its layers; the number of bytes that came."""
        reference = image_reference.parse(f"{self.server.host}/a/b:latest")
        came = list[int]()
        registry.describe(reference, oci.Choice()).bring(came.append)
        return sum(came)

    def close(self) -> None:
        for one in (self.server, self.other):
            one.server.shutdown()
            one.server.server_close()


@pytest.fixture(autouse=True)
def no_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of this test's own; no pauses between tries; and a login for this registry and the address of the other."""
    monkeypatch.setattr(layer_cache, "folder", lambda: tmp_path)
    monkeypatch.setattr(layer_cache, "_FIRST_WAIT_S", 0.0)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Registry]]:
    made: list[Registry] = []

    def start(*args: bytes, login: bool = False, **more: bytes) -> Registry:
        made.append(Registry(*args, **more))
        if login:
            auths = {made[-1].server.host: {"auth": "dmljdGltOnNlY3JldA=="}}
            (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
        return made[-1]

    yield start
    for one in made:
        one.close()


Make = Callable[..., Registry]


def test_an_honest_registry_is_imported(make: Make) -> None:
    assert make().import_it() == len(LAYER)


def lies_of_descriptions() -> dict[str, Answer]:
    deep = b'{"manifests":' * 100_000
    return {
        "endless": endless(),
        "a body that is cut": cut(MANIFEST),
        "another image's bytes": says(200, MANIFEST + b" "),
        "a gzip bomb": bomb,
        "nested without end": says(200, deep),
        "huge": says(200, b" " * (40 << 20)),
        "not JSON": says(200, b"\xff\xfe"),
        "a list": says(200, b"[]"),
        "rate limit": says(429, b'{"errors":[{"code":"TOOMANYREQUESTS","message":"x"}]}', Retry_After="86400"),
        "rate limit without end": endless(429, Retry_After="99999999999"),
        "an error of many lines": says(500, json.dumps({"errors": [{"message": "x\n" * 20_000}]}).encode()),
        "a redirect to a label of 64 letters": says(307, Location=f"http://{'a' * 64}.example/x"),
        "a redirect to no address": says(307, Location="http:///x"),
        "a redirect to a port that is none": says(307, Location="http://127.0.0.1:99999/x"),
        "a redirect to bytes": says(307, Location="http://127.0.0.1:1/\x80\xff"),
        "a redirect to a file": says(307, Location="file:///etc/passwd"),
        "no HTTP": lambda handler: handler.wfile.write(b"SSH-2.0-x\r\n") and None,
        "headers without end": lambda handler: (
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000) and None
        ),
        "a digest that is none": says(200, MANIFEST, Docker_Content_Digest="sha256:../../../etc/passwd"),
        "a digest with a query": says(200, MANIFEST, Docker_Content_Digest="x?y=/z"),
    }


@pytest.mark.parametrize("lie", lies_of_descriptions())
@pytest.mark.parametrize("where", ["tag", "config"])
def test_a_lie_about_the_description_is_one_error(make: Make, where: str, lie: str) -> None:
    lab = make(login=True)
    answer = lies_of_descriptions()[lie]
    if where == "tag":
        lab.answers["manifests/latest"] = lab.answers[lab.manifest] = answer
    else:
        lab.answers[f"blobs/{digest_of(CONFIG)}"] = answer
        if lie.startswith("a digest"):
            pytest.skip("a configuration has no such header")
    packed_bomb()
    tracemalloc.start()
    try:
        with pytest.raises(ImageError) as caught:
            lab.import_it()
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 2000
    assert all(told is None for _, told in lab.other.seen)


def test_a_description_that_drips_ends(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte came in time, and the limit for all of it was looked at only after 65,536 of them."""
    monkeypatch.setattr(registry_client, "_LONGEST_S", 0.5)
    lab = make()
    lab.answers["manifests/latest"] = dripping
    with pytest.raises(ImageError, match="does not end"):
        lab.import_it()


def test_an_index_of_more_images_than_any_has(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was fetched, and all were kept."""
    monkeypatch.setattr(registry, "_MOST_DESCRIPTIONS", 20)
    linux = {"os": "linux", "architecture": oci.here()}
    index = json.dumps({"manifests": [{"digest": digest_of(str(n).encode()), "platform": linux} for n in range(60)]})
    lab = make(index.encode())
    for number in range(60):
        content = str(number).encode()
        lab.answers[f"manifests/{digest_of(content)}"] = says(200, content)
    with pytest.raises(ImageError, match="more descriptions than any image has"):
        lab.import_it()
    assert len(lab.server.seen) < 30


def test_an_image_of_more_layers_than_any_has(make: Make) -> None:
    layers = [(digest_of(str(n).encode()), 1) for n in range(20_000)]
    lab = make(manifest_of(*layers))
    with pytest.raises(ImageError, match="20,000 layers"):
        lab.import_it()
    assert len(lab.server.seen) < 10


def lies_of_layers() -> dict[str, Answer]:
    return {
        "other bytes": says(200, LAYER[:-1] + b"x"),
        "more bytes than the manifest says": says(200, LAYER + b"x"),
        "endless": endless(),
        "cut": cut(LAYER),
        "nothing": says(200),
        "encoded": bomb,
        "rate limit": says(429, Retry_After="86400"),
        "gone": says(404),
        "an error": says(503, Retry_After="86400"),
        "a range that is none": says(206, LAYER, Content_Range="bytes 999999999999-9999999999999/x"),
        "a redirect to a label of 64 letters": says(307, Location=f"http://{'a' * 64}.example/x"),
        "no HTTP": lambda handler: handler.wfile.write(b"SSH-2.0-x\r\n") and None,
    }


@pytest.mark.parametrize("lie", lies_of_layers())
def test_a_lie_about_a_layer_leaves_nothing_that_counts(make: Make, tmp_path: Path, lie: str) -> None:
    """No layer lies in the cache under the digest, and the disk is not filled: a layer has the manifest's size."""
    lab = make(login=True)
    lab.answers[f"blobs/{digest_of(LAYER)}"] = lies_of_layers()[lie]
    packed_bomb()
    tracemalloc.start()
    try:
        if lie == "a range that is none":  # the bytes are right
            lab.import_it()
        else:
            with pytest.raises(ImageError):
                lab.import_it()
            assert not layer_cache.path(digest_of(LAYER)).exists()
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    kept = sum(path.stat().st_size for path in tmp_path.iterdir() if path.name.startswith("sha256-"))
    assert kept <= len(LAYER)
    assert len(lab.server.seen) < 30


@pytest.mark.parametrize("size", [-1, 1 << 62, 10**400, 1e308, True, None, "x", [1]])
def test_a_layers_size_that_cannot_be(make: Make, size: object) -> None:
    lab = make(manifest_of((digest_of(LAYER), size)))
    with pytest.raises(ImageError):
        lab.import_it()


@pytest.mark.parametrize("where", ["manifests/latest", f"blobs/{digest_of(CONFIG)}", f"blobs/{digest_of(LAYER)}"])
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_no_redirect_takes_the_login_along(make: Make, where: str, code: int) -> None:
    """From the tag, a description and a layer, to a host that then asks for a login itself."""
    lab = make(login=True)
    honest = lab.answers[where]
    lab.other.server.RequestHandlerClass.do_GET = _noting(lab.other, challenge(f"http://{lab.other.host}/token"))  # type: ignore[attr-defined]

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if handler.headers.get("Authorization"):
            says(code, Location=f"http://{lab.other.host}/elsewhere")(handler)
        else:
            says(401, WWW_Authenticate='Basic realm="x"')(handler)

    lab.answers[where] = answer
    with pytest.raises(ImageError):
        lab.import_it()
    assert honest is not answer
    assert lab.other.seen, "the redirect was followed"
    assert [told for _, told in lab.other.seen] == [None] * len(lab.other.seen)


def _noting(server: Server, answer: Answer) -> Callable[[BaseHTTPRequestHandler], None]:
    def do_get(handler: BaseHTTPRequestHandler) -> None:
        server.seen.append((handler.path, handler.headers.get("Authorization")))
        answer(handler)

    return do_get


@pytest.mark.parametrize(
    "realm",
    [
        "http://127.0.0.9:{port}/token",
        "https://127.0.0.9:{port}/token",
        "//127.0.0.9:{port}/token",
        "file:///etc/passwd",
    ],
)
def test_a_token_server_of_another_host_gets_no_login(make: Make, realm: str) -> None:
    lab = make(login=True)
    lab.always = challenge(realm.format(port=lab.other.server.server_address[1]))
    with pytest.raises(ImageError):
        lab.import_it()
    assert all(told is None for _, told in lab.other.seen)


def test_without_a_login_the_registry_makes_no_request_to_plain_http(make: Make) -> None:
    """A registry by https could have had what a server inside of this network answers, as its token."""
    client = registry_client.Client(image_reference.parse("registry.example.org/a/b:latest"))
    lab = make()
    assert client._authorized(f'Bearer realm="http://{lab.other.host}/latest/meta-data"') == ""
    assert lab.other.seen == []


def lies_of_tokens() -> dict[str, Answer]:
    return {
        "endless": endless(),
        "a gzip bomb": bomb,
        "nested": says(200, b"[" * 200_000),
        "a list": says(200, b"[]"),
        "a line break": says(200, b'{"token": "a\\r\\nHost: evil"}'),
        "not Latin-1": says(200, b'{"token": "\\u20ac"}'),
        "a table": says(200, b'{"token": {"a": 1}}'),
        "a megabyte": says(200, json.dumps({"token": "x" * (1 << 20)}).encode()),
        "cut": cut(b'{"token": "x"}' * 100),
        "a redirect": says(307, Location="http://127.0.0.9:1/"),
        "no HTTP": lambda handler: handler.wfile.write(b"SSH-2.0-x\r\n") and None,
    }


@pytest.mark.parametrize("lie", lies_of_tokens())
def test_a_lie_of_the_token_server_is_one_error(make: Make, lie: str) -> None:
    lab = make()
    token = lies_of_tokens()[lie]
    asked = list[str]()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        (token if handler.path.startswith("/token") else challenge(f"http://{lab.server.host}/token"))(handler)

    lab.always = answer
    packed_bomb()
    tracemalloc.start()
    try:
        with pytest.raises(ImageError):
            lab.import_it()
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert len(asked) < 20
