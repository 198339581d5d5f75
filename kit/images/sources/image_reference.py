"""Names of images in registries and engines, in Enroot's spelling and in the plain OCI spelling."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kit.errors import UsageError

_USER = r"(?:(?P<user>[A-Za-z0-9_.!~*'()%$&+,;=-]+)@)?"
_REGISTRY = r"(?P<registry>[A-Za-z0-9.-]+(?::\d+)?)"
_PATH = r"(?P<path>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
_TAG = r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
_DIGEST = r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
_HASH_FORM = re.compile(f"^{_USER}{_REGISTRY}#{_PATH}{_TAG}{_DIGEST}$")
_PLAIN_FORM = re.compile(f"^{_USER}(?:{_REGISTRY}/)?{_PATH}{_TAG}{_DIGEST}$")
# Enroot's own rule for dockerd:// and podman:// (docs/internals/learnt.md#enroot): no user, no `#`, no digest.
_LOCAL_FORM = re.compile(r"^[A-Za-z0-9/._:-]+$")

_HUB = "docker.io"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """An image in a registry. A digest takes precedence over a tag; without both the tag is `latest`."""

    registry: str
    path: str
    tag: str = ""
    digest: str = ""
    user: str = ""

    @property
    def plain(self) -> str:
        """The spelling of Docker, Podman and skopeo."""
        return f"{self.registry}/{self.path}{self._version}"

    @property
    def enroot(self) -> str:
        """The spelling that every Enroot and Pyxis understands: with `#`, since older ones take `REGISTRY/` for
        a name on the Hub.
        """
        user = f"{self.user}@" if self.user else ""
        registry = "" if self.registry == _HUB else f"{self.registry}#"
        return f"docker://{user}{registry}{self.path}{self._version}"

    @property
    def repository(self) -> str:
        """The name without tag and digest."""
        return f"{self.registry}/{self.path}"

    @property
    def short(self) -> str:
        """A name for the image: the last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def _version(self) -> str:
        return f"@{self.digest}" if self.digest else f":{self.tag or 'latest'}"


def parse(uri: str) -> Reference:
    """Parse `docker://[USER@]REGISTRY#IMAGE[:TAG][@sha256:…]`, the same with `/`, or without a registry (the Docker Hub).

    UsageError for anything else.
    """
    text = uri.removeprefix("docker://")
    match = _HASH_FORM.match(text) or _PLAIN_FORM.match(text)
    if match is None:
        raise _no_name(uri)
    registry, path = match["registry"] or "", match["path"]
    # Docker's rule: the first part is a registry only when it looks like a host.
    if registry and "#" not in text and not ("." in registry or ":" in registry or registry == "localhost"):
        if registry != registry.lower():
            raise _no_name(uri)
        registry, path = "", f"{registry}/{path}"
    if not registry:
        registry, path = _HUB, path if "/" in path else f"library/{path}"
    return Reference(
        registry=registry,
        path=path,
        tag=match["tag"] or "",
        digest=match["digest"] or "",
        user=match["user"] or "",
    )


def _no_name(uri: str) -> UsageError:
    hint = "docker://[USER@]REGISTRY#IMAGE[:TAG][@sha256:...], with IMAGE in lower case"
    return UsageError(f"{uri!r} is not the name of an image", hint=hint)


def local(uri: str) -> str:
    """The name in `dockerd://NAME` or `podman://NAME`; UsageError for a name that Enroot would refuse."""
    name = uri.partition("://")[2]
    if not _LOCAL_FORM.match(name):
        raise UsageError(
            f"{uri!r} is not the name of an image that an engine holds",
            hint="dockerd:// and podman:// take letters, digits and / . _ : - only",
        )
    return name
