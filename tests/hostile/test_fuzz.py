"""Input that nobody means well with: one clear error or an answer, never a traceback, a hang over 5 s, or 300 MB.

`make test` tries a few cases of each kind; `make hostile` 10,000 in all, and prints what they cost. What was found once has a test
of its own beside the code that it was found in.
"""

from __future__ import annotations

import io
import json
import os
import re
import resource
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import config
from kit.errors import KitError
from kit.hosts import status
from kit.images.sources import oci
from kit.record import logs, run_facts
from kit.record.logs import Wanted
from kit.schema.run_paths import RunPaths
from kit.sweeps.points.expressions import ExpressionError, checked, evaluate

_KINDS = 6
CASES = int(os.environ.get("KIT_HOSTILE_CASES", "120"))
_MOST_S, _MOST_KB = 5.0, 300 << 10

hostile = settings(
    max_examples=max(1, CASES // _KINDS),
    deadline=timedelta(seconds=_MOST_S),
    database=None,
    derandomize=CASES < 1000,
    suppress_health_check=[*HealthCheck],
)

# Values of any shape, as JSON and TOML have them.
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)


@contextmanager
def _clear_error() -> Iterator[None]:
    """Allows a KitError that says something and has no control characters. Any other exception fails the test."""
    try:
        yield
    except KitError as error:
        assert error.message.strip()
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", error.message)


@pytest.fixture(scope="module", autouse=True)
def cost() -> Iterator[None]:
    """What all cases of this file cost; more memory than is allowed fails the last of them."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"\n{CASES} cases in {time.monotonic() - began:.0f} s, {grown >> 10} MB more than before")
    assert grown < _MOST_KB


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kit-hostile-") as name:
        yield Path(name)


# -- job files ---------------------------------------------------------------------------------------------------------------------

_KEYS = [
    "name",
    "launcher",
    "image",
    "args",
    "script",
    "env",
    "resources",
    "nodes",
    "sweep",
    "grid",
    "roles",
    "mounts",
    "retry",
    "seed",
    "slurm",
    "chain",
    "stages",
    "extends",
    "container",
    "preflight",
    "diloco",
    "rl",
    "deepspeed",
    "megatron",
    "a.b",
    "x y",
    "\\u0000",
]
_PIECES = [
    '"ddp"',
    '"local"',
    "1",
    "-1",
    "1e400",
    "nan",
    "true",
    "[]",
    "{}",
    '""',
    '"../.."',
    '"${HOME}"',
    '"= 1/0"',
    "[1, [2]]",
    "inf",
    '"\\u001b]0;x\\u0007"',
    "9" * 40,
    "1979-05-27",
    '"docker://a@sha256:0"',
    '["--lr", 1]',
    '{ a = 1, "b.c" = [] }',
    "'" * 7,
]
_line = st.one_of(
    st.builds("{} = {}".format, st.sampled_from(_KEYS), st.sampled_from(_PIECES)),
    st.builds("[{}]".format, st.sampled_from(_KEYS)),
    st.builds("[{}.{}]".format, st.sampled_from(_KEYS), st.sampled_from(_KEYS)),
    st.text(max_size=12),
)


@hostile
@given(lines=st.lists(_line, max_size=12), whole=st.booleans())
def test_job_files(lines: list[str], whole: bool) -> None:
    """Any error but a KitError fails the test."""
    with folder() as place:
        (place / ".git").mkdir()
        head = 'name = "x"\nlauncher = "ddp"\n' if whole else ""
        (place / "job.toml").write_text(head + "\n".join(lines), encoding="utf-8", errors="surrogatepass")
        with _clear_error():
            job = config.read_job(place / "job.toml", cluster="local").resolve().job
            assert (job.name, job.launcher) == ("x", "ddp") or not whole


# -- expressions of sweeps ---------------------------------------------------------------------------------------------------------

_TOKENS = [
    "1",
    "0",
    "2.5",
    "1e308",
    "'x'",
    "a",
    "args.lr",
    "sqrt",
    "lookup",
    "str",
    "int",
    "max",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "+",
    "-",
    "*",
    "**",
    "/",
    "//",
    "%",
    "<<",
    "~",
    "not",
    "and",
    "if",
    "else",
    "for",
    "in",
    "lambda",
    ".",
    "==",
    "f'{a}'",
    "__class__",
    "9**9",
    "'x'*99",
    "\0",
    "é",
]


@hostile
@given(tokens=st.lists(st.sampled_from(_TOKENS), max_size=25), times=st.integers(1, 200))
def test_expressions(tokens: list[str], times: int) -> None:
    with suppress(ExpressionError):
        checked(evaluate("".join(tokens) * times, names=lambda name: {} if name == "args" else 3, lookup=lambda *_: 1))


# -- run folders -------------------------------------------------------------------------------------------------------------------


@hostile
@given(
    manifest=st.binary(max_size=200) | values.map(lambda v: json.dumps(v).encode()),
    events=st.lists(st.binary(max_size=60) | values.map(lambda v: json.dumps(v).encode()), max_size=6),
    known=st.dictionaries(st.sampled_from(["event", "job_id", "exit_code", "restart", "nodes"]), values),
)
def test_run_folders(manifest: bytes, events: list[bytes], known: dict[str, Any]) -> None:
    with folder() as place:
        paths = RunPaths(place)
        paths.state.mkdir()
        paths.manifest.write_bytes(manifest)
        lines = [
            *events,
            json.dumps({"event": "start", **known}).encode(),
            json.dumps({"event": "end", **known}).encode(),
        ]
        paths.events.write_bytes(b"\n".join(lines))
        (one,) = status.read_statuses([place], queue=lambda _: {})
        assert one.state == run_facts.UNREADABLE
        assert "\n" not in one.reason


@hostile
@given(
    content=st.binary(max_size=300),
    sgr=st.lists(st.sampled_from([b"\x1b[31m", b"\r", b"\n", b"\x9b2J", b"\xe2\x80\xae"]), max_size=6),
)
def test_logs(content: bytes, sgr: list[bytes]) -> None:
    with folder() as place:
        (place / "logs").mkdir()
        (place / "logs" / "rank-0.log").write_bytes(content.join(sgr) + content)
        found = logs.follow(place, Wanted(tail=len(sgr), grep=re.compile(b".")), ended=lambda: True, once=True)
        shown = b"".join(logs.shown(*one) for one in found)
        assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", shown)
        assert all(line.startswith(b"rank-0 | ") for line in shown.split(b"\n")[:-1])


# -- archives and OCI configurations -----------------------------------------------------------------------------------------------


def _archive(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return made.getvalue()


_SAVED = [{"Config": "c.json", "RepoTags": ["a:1"], "Layers": ["l.tar"]}]
_ARCHIVE = _archive(
    {
        "manifest.json": json.dumps(_SAVED).encode(),
        "c.json": json.dumps({"architecture": oci.here(), "os": "linux", "config": {"Env": ["A=b"]}}).encode(),
        "l.tar": _archive({"etc/passwd": b"root"}),
    }
)


@hostile
@given(
    cut=st.integers(0, len(_ARCHIVE)),
    flips=st.lists(st.tuples(st.integers(0, len(_ARCHIVE) - 1), st.integers(0, 255)), max_size=30),
    head=st.sampled_from([b"", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh9", b"\xfd7zXZ\0"]),
)
def test_archives(cut: int, flips: list[tuple[int, int]], head: bytes) -> None:
    """Any error but a KitError fails the test."""
    content = bytearray(_ARCHIVE)
    for at, value in flips:
        content[at] = value
    with folder() as place:
        (place / "work").mkdir()
        (place / "image.tar").write_bytes(head + content[:cut])
        with _clear_error():
            oci.read_image(place / "image.tar", place / "work")
        assert {one.name for one in place.iterdir()} == {"image.tar", "work"}


@hostile
@given(
    index=values,
    manifest=values,
    config_=values,
    names=st.lists(st.sampled_from(["manifests", "config", "layers", "digest"])),
)
def test_oci_layouts(index: object, manifest: object, config_: object, names: list[str]) -> None:
    """Any error but a KitError fails the test."""
    with folder() as place:
        wrapped: Any = index
        for name in names:
            wrapped = {name: [wrapped] if name in {"manifests", "layers"} else wrapped, "digest": "sha256:" + "0" * 64}
        (place / "layout" / "blobs" / "sha256").mkdir(parents=True)
        (place / "layout" / "index.json").write_text(json.dumps(wrapped))
        (place / "layout" / "blobs" / "sha256" / ("0" * 64)).write_text(json.dumps(manifest))
        with _clear_error():
            oci.read_image(place / "layout", place)
        assert [one.name for one in place.iterdir()] == ["layout"], "reading writes nothing"
        if isinstance(config_, dict):
            with suppress(KitError, ValueError, TypeError):
                oci.config(config_)
        shutil.rmtree(place / "layout")
