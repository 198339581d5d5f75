"""Keeps the last answer of `kit render`, with everything that it was made from. The same command then answers without planning.

An answer is used only if every input is unchanged: words, environment, folder, user, and what kit/runs/traced_inputs.py records.
The id of the run and its random seed are new in each answer. So an answer is kept only if a second one, with another id and seed,
has the same text in all other places.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from kit import __version__, untrusted_files
from kit.runs import cache_files

# What a shell changes between two equal commands, and no job can depend on.
_OF_THE_SHELL = ("_",)
_RUN_ID, _SEED = "\0run\0", "\0seed\0"


class Drawn(NamedTuple):
    """What is random in an answer."""

    name: str
    run_id: str
    seed: int


class _Copying:
    """A stream that also keeps what is written to it."""

    def __init__(self, stream: Any) -> None:
        self._stream, self.kept = stream, io.StringIO()

    def write(self, text: str) -> int:
        """Write to both."""
        self.kept.write(text)
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def answer(words: list[Any], make: Callable[[], Drawn | None]) -> None:
    """Print the kept answer, or make and keep one. make: prints it, and returns what is random; None if it cannot be kept."""
    key = _key(words)
    if not _printed(key):
        _make(key, make)


def _printed(key: list[Any]) -> bool:
    from kit.runs import traced_inputs

    try:
        kept = json.loads(untrusted_files.read_bytes(_place(key)))
        if kept["key"] != key or not traced_inputs.unchanged(kept["inputs"]):
            return False
        name, out, err = str(kept["name"]), str(kept["out"]), str(kept["err"])
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return False
    from kit.runs.run_ids import new_run_id, new_seed

    run_id, seed = new_run_id(name), new_seed()
    sys.stderr.write(_filled(err, run_id, seed))
    sys.stdout.write(_filled(out, run_id, seed))
    return True


def _make(key: list[Any], make: Callable[[], Drawn | None]) -> None:
    from kit.runs import traced_inputs

    with traced_inputs.recorded() as trace:
        with _copied() as (out, err):
            drawn = make()
        if drawn is None or not trace.is_whole:
            return
        with redirect_stdout(io.StringIO()) as second_out, redirect_stderr(io.StringIO()) as second_err:
            second = make()
    texts = [_emptied(stream.kept.getvalue(), drawn) for stream in (out, err)]
    if second is None or [_filled(text, second.run_id, second.seed) for text in texts] != [
        second_out.getvalue(),
        second_err.getvalue(),
    ]:
        return
    if (inputs := trace.inputs()) is not None:
        kept = {"key": key, "name": drawn.name, "inputs": inputs, "out": texts[0], "err": texts[1]}
        cache_files.write(_place(key), json.dumps(kept, separators=(",", ":")))


@contextmanager
def _copied() -> Iterator[tuple[_Copying, _Copying]]:
    out, err = _Copying(sys.stdout), _Copying(sys.stderr)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        yield out, err
    finally:
        sys.stdout, sys.stderr = before


def _key(words: list[Any]) -> list[Any]:
    """All that an answer depends on besides files."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_THE_SHELL}
    told = json.dumps(environment, sort_keys=True).encode(errors="surrogatepass")
    user = [os.getuid(), os.getgid(), os.getgroups(), list(os.uname())]
    streams = [[stream.isatty(), stream.encoding] for stream in (sys.stdout, sys.stderr)]
    python = [__version__, sys.version, sys.path, sys.flags.optimize]
    return [words, str(Path.cwd()), hashlib.sha256(told).hexdigest(), user, streams, python]


def _place(key: list[Any]) -> Any:
    return cache_files.place("render", json.dumps([__file__, *key[:2]]))


def _emptied(text: str, drawn: Drawn) -> str:
    return text.replace(drawn.run_id, _RUN_ID).replace(str(drawn.seed), _SEED)


def _filled(text: str, run_id: str, seed: int) -> str:
    return text.replace(_RUN_ID, run_id).replace(_SEED, str(seed))
