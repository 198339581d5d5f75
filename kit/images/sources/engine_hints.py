"""Hints for error messages of a registry, or of a tool that asked it."""

from __future__ import annotations

import re

# What Docker and Podman print of a connection that fails; both print the errors of Go's net package.
_UNREACHABLE = ("no such host", "connection refused", "timeout", "deadline exceeded", "dial tcp")


def is_missing(message: str) -> bool:
    """Whether an error message says that a registry does not have the image."""
    lower = message.lower()
    return bool(re.search(r"\b404\b", lower)) or "not found" in lower or "manifest unknown" in lower


def is_unreachable(message: str) -> bool:
    """Whether an error message says that no registry answered."""
    lower = message.lower()
    return any(sign in lower for sign in _UNREACHABLE)


def registry_hint(message: str) -> str:
    """A hint for an error message of a registry, or of a tool that asked it; empty for an unknown message."""
    lower = message.lower()
    if re.search(r"\b429\b", lower) or "toomanyrequests" in lower or "rate limit" in lower:
        return "the registry limits pulls: log in with 'docker login', or try again later"
    if re.search(r"\b401\b", lower) or "unauthorized" in lower or "denied" in lower:
        return "log in with 'docker login', and check the name: a private image that does not exist is also 'denied'"
    if is_missing(message):
        return "check the image's name and tag"
    if is_unreachable(message):
        return "the registry cannot be reached from here; in image.toml, use [base] bootstrap instead of a reference"
    return ""
