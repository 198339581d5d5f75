"""Explains why a build in an engine failed: the step, its last lines, and what to change."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kit.errors import ImageError
from kit.images.sources.engine_hints import registry_hint

_TAIL_LINES = 10
# What apt, curl, wget, pip, git, npm and conda print when a name or an address cannot be reached. Without package lists, apt cannot
# locate any package.
_NO_NETWORK = re.compile(
    r"temporary failure (in name resolution|resolving)|could ?n[o']t resolve|name or service not known|no such host|"
    r"network is unreachable|failed to establish a new connection|bad address|unable to resolve|eai_again|enetunreach|"
    r"nodename nor servname|unable to locate package|no address associated with hostname|connecttimeout|"
    r"could not connect to|failed to connect to|connection refused",
    re.IGNORECASE,
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")
_WITHOUT = (
    "RUN has no network in this build. Packages can come from [base.bootstrap] packages or [python] in image.toml, and files from "
    'COPY; or write [build] network = "default" there, for a folder: kit build-image . --network default. The lock then says '
    "reproducible = false: a run still gets exactly the locked bytes, but another build may give others"
)
_WITH_DEFAULT = (
    'the step had the network of the engine ([build] network = "default"). Does the engine resolve names for containers? With '
    'network = "host", the step uses this machine\'s own network'
)
_WITH_HOST = 'the step had the network of this machine ([build] network = "host"): check that it reaches the address'
_OTHERWISE = "change the Dockerfile at that step"
_NO_PROGRAM = re.compile(r"(?:^|[ :])(?P<name>[\w./+-]+): (?:command )?not found$")
_FOREIGN = "exec format error"


@dataclass(frozen=True, kw_only=True)
class FailedBuild:
    """The failed step. step: its line, as the engine names it; empty before the first step. printed: its output. verdict: the
    engine's last message.
    """

    step: str
    printed: Sequence[str]
    verdict: str


def error(failure: FailedBuild, *, network: str) -> ImageError:
    """The ImageError to raise. network: the network of the RUN lines (see Build.network)."""
    if not failure.step:
        verdict = clean(failure.verdict)
        return ImageError(f"the build failed before the first step\n  {verdict}", hint=registry_hint(verdict))
    printed = [line for line in map(clean, failure.printed) if line.strip()]
    lines = [f"the build failed at {clean(failure.step)}", *(f"  {line}" for line in printed[-_TAIL_LINES:])]
    hint = _hint(failure.step, printed, clean(failure.verdict), network)
    return ImageError("\n".join([*lines, f"  {clean(failure.verdict)}"]), hint=hint)


def clean(line: str) -> str:
    """The line without a terminal's escape sequences. A progress bar draws over its own line: the last drawing stays."""
    return _ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2])


def _hint(step: str, printed: Sequence[str], verdict: str, network: str) -> str:
    word = re.sub(r"^Step \d+/\d+ : ", "", step).partition(" ")[0]
    if word == "FROM":
        return registry_hint(verdict) or _OTHERWISE
    if word == "RUN" and any(_NO_NETWORK.search(line) for line in (*printed, verdict)):
        return {"none": _WITHOUT, "host": _WITH_HOST}.get(network, _WITH_DEFAULT)
    if word == "RUN" and any(_FOREIGN in line.lower() for line in (*printed, verdict)):
        return "the base is for another platform than the engine's machine: build.platform in image.toml, or --platform"
    missing = _NO_PROGRAM.search(printed[-1]) if word == "RUN" and printed else None
    if missing:
        return f"the base has no {missing['name']}: install it in a step before this one, or take a base that has it"
    return _OTHERWISE
