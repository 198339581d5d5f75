"""A real registry (Debian's docker-registry) behind a proxy that counts, delays, cuts and spoils what it passes on."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests

from kit.images.sources import oci
from tests.cluster.image_lab import wait_until

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(kw_only=True)
class Faults:
    """What the proxy does to blobs. cuts: after how many bytes each of the next answers ends. spoil: change a byte of each.

    limited: how many of the next requests, of any kind, are refused for a second.
    """

    cuts: list[int] = field(default_factory=list)
    spoil: bool = False
    limited: int = 0
    ranges: bool = True
    delay_s: float = 0.0
    asked: list[tuple[str, str]] = field(default_factory=list)  # digest, Range
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, content: bytes) -> list[str]:
        """The ranges that were asked for of a blob; empty text for all of it."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        return [part for asked, part in self.asked if asked == digest]


class _Proxy(http.server.BaseHTTPRequestHandler):
    upstream, faults = "", Faults()

    def do_GET(self) -> None:
        with self.faults.lock:
            self.faults.limited, refused = max(self.faults.limited - 1, 0), self.faults.limited > 0
        if refused:
            self.send_response(429)
            self.send_header("Retry-After", "1")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        headers = {key: self.headers[key] for key in ("Accept", "Range") if key in self.headers}
        if not self.faults.ranges:
            headers.pop("Range", None)
        answer = requests.get(f"http://{self.upstream}{self.path}", headers=headers, timeout=30)
        body = answer.content
        blob = "/blobs/" in self.path
        cut = len(body)
        if blob:
            with self.faults.lock:
                self.faults.asked.append((self.path.rpartition("/")[2], self.headers.get("Range", "")))
                self.faults.at_once += 1
                self.faults.most_at_once = max(self.faults.most_at_once, self.faults.at_once)
                if len(body) > 2000 and self.faults.cuts:
                    cut = self.faults.cuts.pop(0)
            time.sleep(self.faults.delay_s)
            if self.faults.spoil and len(body) > 2000:
                body = body[:1000] + bytes([body[1000] ^ 1]) + body[1001:]
            with self.faults.lock:
                self.faults.at_once -= 1
        self.send_response(answer.status_code)
        for key in ("Content-Type", "Docker-Content-Digest", "Content-Range"):
            if key in answer.headers:
                self.send_header(key, answer.headers[key])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's own name
        pass


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """A registry of its own; host and port."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    folder.mkdir()
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
        f"http: {{addr: '{place}'}}\n"
    )
    with subprocess.Popen(
        [program, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_until(lambda: _listens(place))
            yield place
        finally:
            process.terminate()


def _listens(place: str) -> bool:
    host, _, port = place.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@contextlib.contextmanager
def proxy(upstream: str) -> Iterator[tuple[str, Faults]]:
    """The proxy before a registry: its host and port, and its faults."""
    faults = Faults()
    handler = type("Handler", (_Proxy,), {"upstream": upstream, "faults": faults})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", faults
    finally:
        server.shutdown()
        server.server_close()


def push(place: str, name: str, layers: Sequence[bytes], *, tag: str = "1") -> str:
    """Put an image of these layers (tars, compressed or not) into a registry; its digest."""
    raw = json.dumps(
        {"architecture": oci.here(), "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}
    )
    blobs = [_blob(place, name, raw.encode(), "config.v1+json")]
    blobs += [_blob(place, name, layer, "layer.v1.tar+gzip") for layer in layers]
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": blobs[0], "layers": blobs[1:]}
    url = f"http://{place}/v2/{name}/manifests/{tag}"
    answer = requests.put(url, data=json.dumps(manifest), headers={"Content-Type": _MANIFEST}, timeout=30)
    answer.raise_for_status()
    return answer.headers["Docker-Content-Digest"]


def _blob(place: str, name: str, content: bytes, kind: str) -> dict[str, object]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    begun = requests.post(f"http://{place}/v2/{name}/blobs/uploads/", timeout=30)
    begun.raise_for_status()
    done = requests.put(begun.headers["Location"], params={"digest": digest}, data=content, timeout=30)
    done.raise_for_status()
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": len(content)}
