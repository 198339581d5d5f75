"""Client for one repository, by the OCI distribution specification: manifests and blobs by digest, and any part of a blob.

It uses Docker's own credentials (`docker login`, with its helpers), read by Docker's library; the kit neither prints nor stores
them. They go to the registry that they are for, and to the token server of its own domain that it names: no redirect takes them on,
and a challenge of another server is not answered.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from kit.errors import ImageError
from kit.images.sources.engine_hints import registry_hint
from kit.images.sources.image_reference import Reference

if TYPE_CHECKING:
    import requests

_HUB = {"docker.io": "registry-1.docker.io"}
_MANIFESTS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.list.v2",
        "docker.distribution.manifest.v2",
    )
)
_TIMEOUT_S = (10, 60)  # to connect; without receiving a byte
_LONGEST_JSON, _LONGEST_ERROR = 32 << 20, 1 << 16
_LONGEST_S = 300.0  # for an answer that is read whole
_MOST_REDIRECTS = 5
# Seconds. A registry whose limit lasts longer is not waited for: Docker Hub's counts pulls of six hours.
LONGEST_WAIT_S = 300.0
_CHUNK = 1 << 16  # if the connection ends, the incomplete chunk is lost
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
# The token of RFC 6750, and no longer than a server takes in a header.
_TOKEN = re.compile(r"[\x21-\x7e]{1,32768}")
_LONGEST_MESSAGE = 500  # characters


class CannotAskError(ImageError):
    """This client cannot use the registry: it has no connection, or its credentials do not suffice. Another tool may succeed."""


class BrokenOffError(Exception):
    """The connection ended before the blob did. wait_s: seconds that the registry asks to wait; 0 if it does not ask."""

    def __init__(self, message: str, *, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Client:
    """A repository. Several threads may call its methods. ImageError gives the registry's message and a hint.

    A registry that limits requests (429 or 503 with Retry-After, RFC 9110) is asked again after the time that it names, up to five
    minutes for one answer; `say` reports that. For a blob, the caller waits (BrokenOffError).
    """

    def __init__(self, reference: Reference, *, say: Callable[[str], None] = lambda _: None) -> None:
        self._reference, self._say = reference, say
        self._session = _session()
        self._session.trust_env = True  # proxies and certificates of the environment
        self._session.auth = _NoNetrc()
        self._bases = _bases(reference.registry)
        self._authorization = ""
        self._asking = threading.Lock()

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def resolve(self) -> str:
        """The digest to which the tag points now."""
        if self._reference.digest:
            return self._reference.digest
        import hashlib

        with self._get(f"manifests/{self._reference.tag or 'latest'}") as answer:
            content = _read_limited(answer)
            stated = answer.headers.get("Docker-Content-Digest", "")
        return stated or f"sha256:{hashlib.sha256(content).hexdigest()}"

    def description(self, digest: str, *, manifest: bool) -> bytes:
        """A manifest, an index or a configuration. The caller must check its digest."""
        try:
            with self._get(f"{'manifests' if manifest else 'blobs'}/{digest}") as answer:
                return _read_limited(answer)
        except BrokenOffError as error:
            raise CannotAskError(f"{self._reference.plain}: {digest} cannot be fetched: {error}") from None

    def blob(self, digest: str, start: int) -> Iterator[tuple[int, bytes]]:
        """The blob's chunks with their offsets, from `start` if the registry supports it, else from 0.

        BrokenOffError when the connection ends early.
        """
        import requests
        from urllib3.exceptions import HTTPError

        headers = {"Range": f"bytes={start}-"} if start else {}
        with self._get(f"blobs/{digest}", headers, unless=(429, *range(500, 600), *([416] if start else []))) as answer:
            if answer.status_code == 416:
                yield from self.blob(digest, 0)
                return
            if not answer.ok:
                raise BrokenOffError(_status_of(answer), wait_s=_asked_wait_s(answer))
            place = start if answer.status_code == 206 else 0
            try:
                for chunk in _as_sent(answer):
                    yield place, chunk
                    place += len(chunk)
            except (requests.RequestException, HTTPError, OSError) as error:
                raise BrokenOffError(str(error)) from None

    @contextlib.contextmanager
    def _get(
        self, path: str, headers: dict[str, str] | None = None, *, unless: tuple[int, ...] = ()
    ) -> Iterator[requests.Response]:
        answer = self._ask(path, headers or {})
        waited = 0.0
        try:
            while answer.status_code not in unless and 0 < (wait_s := _asked_wait_s(answer)) <= LONGEST_WAIT_S - waited:
                self._say(f"{self._reference.plain}: the registry limits requests; asking again in {wait_s:.0f} s")
                answer.close()
                time.sleep(wait_s)
                waited += wait_s
                answer = self._ask(path, headers or {})
            if not answer.ok and answer.status_code not in unless:
                raise self._refused(answer)
            yield answer
        finally:
            answer.close()

    def _ask(self, path: str, headers: dict[str, str]) -> requests.Response:
        answer = self._send(path, headers)
        if answer.status_code == 401 and _is_same_server(answer.url, self._bases[0]):
            with self._asking:
                challenge = answer.headers.get("WWW-Authenticate", "")
                answer.close()
                self._authorization = self._authorized(challenge)
            answer = self._send(path, headers)
        return answer

    def _send(self, path: str, headers: dict[str, str]) -> requests.Response:
        import requests
        from urllib3.exceptions import HTTPError

        known = {"Accept": _MANIFESTS if "manifests/" in path else "*/*", "Accept-Encoding": "identity", **headers}
        known |= {"Authorization": self._authorization} if self._authorization else {}
        failure: Exception = OSError("no address")
        for base in self._bases:
            url = f"{base}/v2/{self._reference.path}/{path}"
            try:
                answer = self._followed(url, known)
            except (requests.RequestException, HTTPError, OSError, UnicodeError) as error:
                failure = error  # a redirect may lead to what is no name of a host
                continue
            self._bases = (base,)
            return answer
        if len(self._bases) == 1 and "blobs/" in path:
            raise BrokenOffError(str(failure))
        raise CannotAskError(
            f"{self._reference.plain}: {failure}", hint=registry_hint(f"connection refused: {failure}")
        )

    def _followed(self, url: str, headers: dict[str, str]) -> requests.Response:
        """The answer at the end of the redirects. The authorization stays with the first server, and https stays https."""
        known = headers
        for _ in range(_MOST_REDIRECTS):
            answer = self._session.get(url, headers=known, timeout=_TIMEOUT_S, stream=True, allow_redirects=False)
            if not answer.is_redirect:
                return answer
            target = _joined(url, answer.headers["Location"])
            answer.close()
            allowed = ("https",) if url.startswith("https:") else ("https", "http")
            if _server(target)[0] not in allowed:
                raise ImageError(
                    f"{self._reference.plain}: the registry redirects to {_shown(target)}, which is not https",
                    hint="ask whoever runs the registry",
                )
            if not _is_same_server(target, url):
                known = {name: value for name, value in known.items() if name != "Authorization"}
            url = target
        raise ImageError(f"{self._reference.plain}: more than {_MOST_REDIRECTS} redirects, the last to {_shown(url)}")

    def _authorized(self, challenge: str) -> str:
        """The Authorization header to send after a refusal (RFC 6750; Docker's token specification).

        Empty if there is none to try.
        """
        import requests
        from urllib3.exceptions import HTTPError

        scheme, _, rest = challenge.partition(" ")
        words = dict(_CHALLENGE.findall(rest))
        login = self._login()
        if scheme.lower() == "basic" and login:
            return f"Basic {_base64(':'.join(login))}"
        if scheme.lower() != "bearer" or "realm" not in words:
            return ""
        realm = words["realm"]
        if login:
            self._check_realm(realm)
        elif not self._may_be_asked(realm):
            return ""
        asked = {key: words[key] for key in ("service", "scope") if key in words}
        headers = {"Authorization": f"Basic {_base64(':'.join(login))}"} if login else {}
        try:
            with self._session.get(
                realm, params=asked, headers=headers, timeout=_TIMEOUT_S, stream=True, allow_redirects=False
            ) as answer:
                found = json.loads(_read_limited(answer)) if answer.status_code == 200 else {}
        except (requests.RequestException, HTTPError, ValueError, RecursionError, OSError):
            return ""
        if not isinstance(found, dict):
            return ""
        token = found.get("token") or found.get("access_token")
        return f"Bearer {token}" if isinstance(token, str) and _TOKEN.fullmatch(token) else ""

    def _may_be_asked(self, realm: str) -> bool:
        """Whether a server may be asked for a token without a login.

        The registry gets its answer: by plain http, a server inside of this network could be meant.
        """
        scheme = _server(realm)[0]
        return scheme == "https" or (scheme == "http" and self._bases[0].startswith("http:"))

    def _check_realm(self, realm: str) -> None:
        """ImageError if the server that the registry names for tokens may not get the login: it is not its own, or not https."""
        base = self._bases[0]
        (scheme, host, _), (_, own, _) = _server(realm), _server(base)
        domain = own.partition(".")[2]
        is_own = host == own or (
            "." in domain and not own[-1].isdigit() and (host == domain or host.endswith(f".{domain}"))
        )
        if is_own and (scheme == "https" or (scheme == "http" and base.startswith("http:"))):
            return
        problem = f"{self._reference.plain}: the registry asks for your login at {_shown(realm)}"
        problem += ", which is not its own server by https"
        raise ImageError(problem, hint=f"docker logout {self._reference.registry}, if the image is public")

    def _login(self) -> tuple[str, str] | None:
        from docker.auth import load_config
        from docker.errors import DockerException

        try:
            found = load_config().resolve_authconfig(self._reference.registry)
        except DockerException:
            return None
        name, password = (found or {}).get("Username") or (found or {}).get("username"), (found or {}).get("password")
        return (name, password or found.get("Password") or "") if found and name else None

    def _refused(self, answer: requests.Response) -> ImageError:
        said = _status_of(answer)
        with contextlib.suppress(ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            error = json.loads(_beginning(answer))["errors"][0]
            told = f"{error.get('code', '')} {error.get('message', '')}".rstrip()
            said += f": {told[:_LONGEST_MESSAGE]}{'…' if len(told) > _LONGEST_MESSAGE else ''}"
        message = f"{self._reference.plain}: the registry says {said}"
        # After a redirect, a 401 or 403 may come from another server, to which another tool would send the login of this one.
        elsewhere = not _is_same_server(answer.url, self._bases[0])
        refused = answer.status_code in (401, 403) and not elsewhere
        kind = CannotAskError if refused or answer.status_code >= 500 else ImageError
        return kind(message, hint=registry_hint(message))


def _session() -> requests.Session:
    """A session that follows no redirect on its own: before it could be asked not to, it would read the whole body of one."""
    import requests

    class RegistrySession(requests.Session):
        def get_redirect_target(self, resp: requests.Response) -> str | None:
            return None

    return RegistrySession()


class _NoNetrc:
    """Prevents `requests` from using credentials of ~/.netrc."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


def _bases(registry: str) -> tuple[str, ...]:
    """Possible base URLs of the registry. Plain http is allowed only on this machine, as in the engine."""
    host = _HUB.get(registry, registry)
    name = host.rpartition(":")[0] or host
    local = name == "localhost" or name.startswith("127.")
    return (f"https://{host}", f"http://{host}") if local else (f"https://{host}",)


def _server(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of a URL; empty for one that is not valid."""
    try:
        found = urlsplit(url)
        port = found.port or {"https": 443, "http": 80}.get(found.scheme)
        return found.scheme, found.hostname or "", port
    except ValueError:
        return "", "", None


def _is_same_server(one: str, other: str) -> bool:
    """Whether two URLs have the same scheme, host and port."""
    return _server(one) == _server(other)


def _status_of(answer: requests.Response) -> str:
    wait_s = _asked_wait_s(answer)
    return f"{answer.status_code} {answer.reason}" + (f", wait {wait_s:.0f} s" if wait_s else "")


def _asked_wait_s(answer: requests.Response) -> float:
    """The seconds of Retry-After in a refusal for now: at least 1, and 0 without one."""
    value = answer.headers.get("Retry-After", "").strip()
    if answer.status_code not in (429, 503) or not value:
        return 0.0
    if value.isascii() and value.isdigit():
        return max(float(value[:9]), 1.0)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 1.0)
    except (ValueError, OverflowError):
        return 0.0


def _joined(url: str, location: str) -> str:
    """The target of a redirect; empty for one that is not valid."""
    try:
        return urljoin(url, location)
    except ValueError:
        return ""


def _shown(url: str) -> str:
    """Scheme, host and port of a URL: the rest may have a password or a token."""
    scheme, host, port = _server(url)
    return f"{scheme}://{host}{'' if port in {80, 443, None} else f':{port}'}"


def _read_limited(answer: requests.Response) -> bytes:
    """The whole body of a description. ImageError if it is too long, in bytes or in time, or cut, or encoded."""
    import requests
    from urllib3.exceptions import HTTPError

    body = bytearray()
    with _ended_after(answer, _LONGEST_S) as late:
        try:
            for chunk in _as_sent(answer):
                body += chunk
                if len(body) > _LONGEST_JSON:
                    break
        except (requests.RequestException, HTTPError, OSError) as error:
            if not late.is_set():
                raise ImageError(f"{_shown(answer.url)}: the connection ended before the answer did: {error}") from None
    if len(body) > _LONGEST_JSON or late.is_set():
        raise ImageError(
            f"{_shown(answer.url)}: the answer is larger than any description of an image, or does not end"
        )
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise ImageError(f"{_shown(answer.url)}: the answer is compressed, and this was not asked for")
    return bytes(body)


def _as_sent(answer: requests.Response) -> Iterator[bytes]:
    """The body's bytes as they were sent, which is what a digest is of: a packed body stays packed."""
    yield from answer.raw.stream(_CHUNK, decode_content=False)


@contextlib.contextmanager
def _ended_after(answer: requests.Response, seconds: float) -> Iterator[threading.Event]:
    """Close the connection after `seconds`, also in the middle of a read. The event says that this was done.

    A server that sends single bytes keeps a read of 64 KiB waiting for days.
    """
    late = threading.Event()

    def end() -> None:
        late.set()
        _shut(answer)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _shut(answer: requests.Response) -> None:
    """End the connection below an answer, so that a read of it in another thread returns."""
    # urllib3 has an interface for it since 2.3; before, the socket is an attribute of the connection.
    raw: Any = answer.raw
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if hasattr(raw, "shutdown"):
            raw.shutdown()
        else:
            raw._connection.sock.shutdown(socket.SHUT_RDWR)


def _beginning(answer: requests.Response) -> bytes:
    """The body of an error, as far as a message may reach. The connection ends with it."""
    import requests
    from urllib3.exceptions import HTTPError

    body = bytearray()
    with contextlib.suppress(requests.RequestException, HTTPError, OSError), _ended_after(answer, _TIMEOUT_S[1]):
        for chunk in _as_sent(answer):
            body += chunk
            if len(body) > _LONGEST_ERROR:
                break
    return bytes(body)


def _base64(text: str) -> str:
    import base64

    return base64.b64encode(text.encode()).decode()
