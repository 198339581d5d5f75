"""Hints for error messages of a registry, or of a tool that asked it."""

from __future__ import annotations

import re


def is_missing(message: str) -> bool:
    """Whether an error message says that a registry does not have the image."""
    lower = message.lower()
    return bool(re.search(r"\b404\b", lower)) or "not found" in lower or "manifest unknown" in lower


def registry_hint(message: str) -> str:
    """A hint for an error message of a registry, or of a tool that asked it; empty for an unknown message."""
    lower = message.lower()
    if re.search(r"\b429\b", lower) or "toomanyrequests" in lower or "rate limit" in lower:
        return "the registry limits pulls: log in with 'docker login', or try again later"
    if re.search(r"\b401\b", lower) or "unauthorized" in lower or "denied" in lower:
        return "log in with 'docker login', and check the name: a private image that does not exist is also 'denied'"
    if is_missing(message):
        return "check the image's name and tag"
    if "no such host" in lower or "connection refused" in lower or "timeout" in lower or "dial tcp" in lower:
        return "the registry cannot be reached from here; in image.toml, use [base] bootstrap instead of a reference"
    return ""
