"""The logs of a run, merged: each line begins with the name of its source. Existing lines come first, new ones as they are written.

All data are bytes, in chunks of complete lines, so memory does not grow with a log or a line. A line longer than a chunk is split.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kit.errors import UsageError
from kit.files import safe_text, untrusted_files
from kit.record import log_places, run_facts
from kit.schema.rank_log import rank_log
from kit.schema.run_paths import RunPaths

_POLL_S, _POLL_MOST_S = 0.2, 2.0
# A chunk and its copy with source names fit into a processor's cache.
_CHUNK, _LOOK = 1 << 18, 1 << 16
# More than the size of all copies of a chunk.
_KEPT = 8 << 20
# At the end of a start, the files task-<n>.log are merged into this one. A reader who follows the run has seen its lines already.
_MERGED = "task.log"
_BATCH = "batch.log"

# Ends of a line. Progress bars write `\r`.
_BREAK = re.compile(rb"\r\n|\n|\r")
# A time stamp at the beginning of a line, in the form of the kit, Python's logging and most programs. A time zone may follow.
_STAMP = re.compile(
    rb"(?:^|[\r\n])[^\r\n]{0,40}?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,]\d+)?(Z|[+-]\d\d:?\d\d)?[^\r\n]*"
)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The wanted lines. ranks: empty for all. tail: only the last lines of each source. since: seconds since the epoch.

    A line without a time is older than `since` if a line with an earlier time follows it; otherwise it may be new.
    """

    ranks: Collection[int] = ()
    role: str | None = None
    tail: int | None = None
    since: float | None = None
    grep: re.Pattern[bytes] | None = None


class Tail:
    """One growing file. It may not exist yet, may appear at any time, and may be truncated. Only regular files are read."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        # The offset of the next line, and the file's length at the last read.
        self.path, self._offset, self._size = path, offset, offset

    def chunks(self, *, last: bool = False) -> Iterator[bytes]:
        """Complete lines since the last call, each with `\\n`. With `last`, also a line without an end."""
        try:
            size = self.path.stat().st_size
            if size < self._offset:
                self._offset = self._size = 0
            # Read only if the file has grown, so that an incomplete line is not read again each time.
            if size > self._size or (last and size > self._offset):
                yield from self._read(last=last)
        except OSError:
            return

    def _read(self, *, last: bool) -> Iterator[bytes]:
        with untrusted_files.open_regular(self.path) as source:
            # Each read begins at the start of a line, so no half line must be kept and joined.
            while chunk := os.pread(source.fileno(), _CHUNK, self._offset):
                self._size = self._offset + len(chunk)
                # A `\r` at the very end may be the first half of `\r\n`.
                end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r", 0, -1)) + 1
                if end == 0 and len(chunk) < _CHUNK and not last:
                    return
                self._offset += end or len(chunk)
                yield _lines(chunk[:end]) if end else _lines(chunk.removesuffix(b"\r")) + b"\n"


def _lines(chunk: bytes) -> bytes:
    """The chunk with `\\n` for each kind of line end."""
    return _BREAK.sub(b"\n", chunk) if b"\r" in chunk else chunk


def sources(run_dir: Path, wanted: Wanted) -> list[Path]:
    """The existing log files, role by role: batch, tasks, ranks; or only those of one role or some ranks.

    Ranks are in numeric order.
    """
    paths = RunPaths(run_dir)

    def order(path: Path) -> tuple[str, int, int, int, int, str]:
        folder = path.parent.relative_to(paths.logs).as_posix()
        # `replica-10` comes after `replica-9`.
        kind, _, number = folder.rpartition("-")
        by_folder = (kind, int(number)) if number.isdecimal() else ("" if folder == "." else folder, -1)
        kinds = ("batch", "error", "task")
        if (of_rank := rank_log(path.name)) is not None:
            return (*by_folder, len(kinds), *of_rank)
        match = re.fullmatch(r"(batch|error|task)(?:-(\d{1,18}))?", path.stem)
        place = (kinds.index(match[1]), int(match[2] or 0)) if match else (len(kinds) + 1, 0)
        return (*by_folder, *place, 0, "")

    folder = paths.logs / wanted.role if wanted.role else paths.logs
    # batch.log may be a link to the job's own output file. Links to the newest start of a role would show its lines twice.
    files = [p for p in folder.glob("**/*.log") if not p.name.startswith("latest_")]
    ranks = [(p, named) for p in files if (named := rank_log(p.name))]
    if wanted.ranks:
        return sorted((p for p, named in ranks if named.rank in wanted.ranks), key=order)
    links = {p: _inode(log_places.real(run_dir, p)) for p, named in ranks if named.stream}
    # A file of torchrun's in this folder has a second name there.
    known = {*links.values()}
    return sorted((p for p in files if not known or p in links or _inode(p) not in known), key=order)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def name_of(run_dir: Path, path: Path) -> str:
    """The prefix of a log's lines: `rank-0`, or `trainer/rank-0` if the run has roles."""
    return safe_text.clean(path.relative_to(RunPaths(run_dir).logs).with_suffix("").as_posix())


def require_role(run_dir: Path, role: str | None) -> None:
    """UsageError if the run has no such role; it names the existing ones."""
    logs = RunPaths(run_dir).logs
    own = sorted(p.name for p in logs.iterdir() if p.is_dir()) if logs.is_dir() else []
    known = [name for name in own if name != log_places.TORCHRUN]
    if role is not None and role not in known:
        raise UsageError(
            f"{run_dir.name} has no role {role!r}", hint=f"its roles: {', '.join(known) or 'none, it is a plain job'}"
        )


def require_rank(run_dir: Path, rank: int | None) -> None:
    """UsageError if the run has no rank with this number, since its log would never appear."""
    paths = RunPaths(run_dir)
    # A run has logs even if its manifest cannot be read.
    ranks = max(run_facts.read_facts(run_dir).world_sizes.values(), default=0)
    if rank is not None and 0 < ranks <= rank and not any(paths.logs.glob(f"**/rank-{rank}.log")):
        raise UsageError(f"{run_dir.name} has no rank {rank}", hint=f"its ranks are 0 to {ranks - 1}")


def follow(
    run_dir: Path, wanted: Wanted, *, ended: Callable[[], bool], once: bool = False
) -> Iterator[tuple[str, bytes]]:
    """Yield a source and a chunk of its lines. Without `once`, continue until `ended()`, and include files that appear later."""
    tails: dict[Path, Tail] = {}
    pause, live = _POLL_S, False
    # After this, glibc keeps freed memory up to this size. Otherwise each chunk would need new pages from the kernel.
    bytearray(_KEPT)
    while True:
        last = once or ended()
        live = live or not last
        came = False
        found = sources(run_dir, wanted)
        if live and last:
            # The batch script writes its last line when everything else has ended.
            found.sort(key=lambda path: path.name == _BATCH)
        for path in found:
            if live and path.name == _MERGED:
                continue
            known = path in tails
            if not known:
                there = log_places.real(run_dir, path)
                tails[path] = Tail(there, _start(there, wanted))
            chunks: Iterator[bytes] = (_matching(chunk, wanted.grep) for chunk in tails[path].chunks(last=last))
            if wanted.tail is not None and wanted.grep is not None and not known:
                chunks = _last_lines(chunks, wanted.tail)
            name = name_of(run_dir, path)
            for chunk in filter(None, chunks):
                came = True
                yield name, chunk
        if last:
            return
        # If none of thousands of logs grows, check them less and less often.
        pause = _POLL_S if came else min(pause * 1.3, _POLL_MOST_S)
        time.sleep(pause)


def shown(source: str, chunk: bytes, *, raw: bool = False) -> bytes:
    """A chunk for printing: with the source before each line, and without terminal control characters. raw: unchanged."""
    if raw:
        return chunk
    prefix = f"{source} | ".encode()
    body = safe_text.clean_lines(chunk).replace(b"\n", b"\n" + prefix)
    # Remove the prefix after the last line. `+` would copy everything again.
    return b"".join((prefix, memoryview(body)[: -len(prefix)]))


def _matching(chunk: bytes, pattern: re.Pattern[bytes] | None) -> bytes:
    if pattern is None:
        return chunk
    return b"".join(line for line in chunk.splitlines(keepends=True) if pattern.search(line))


def _last_lines(chunks: Iterator[bytes], count: int) -> Iterator[bytes]:
    kept: deque[bytes] = deque(maxlen=count)
    for chunk in chunks:
        kept.extend(chunk.splitlines(keepends=True)[-count:] if count else ())
    yield b"".join(kept)


def _start(path: Path, wanted: Wanted) -> int:
    """The offset of the first wanted line."""
    start = 0
    try:
        if wanted.since is not None:
            start = _end_of_last_before(path, wanted.since)
        if wanted.tail is not None and wanted.grep is None:
            start = max(start, _last_offset(path, wanted.tail))
    except OSError:
        # A file that cannot be read has no lines.
        return 0
    return start


def _last_offset(path: Path, count: int) -> int:
    """The offset of the last `count` lines. Only the end of the file is read."""
    with untrusted_files.open_regular(path) as source:
        at = end = os.fstat(source.fileno()).st_size
        if count == 0:
            return end
        breaks = 0
        while at > 0:
            size = min(_LOOK, at)
            at -= size
            source.seek(at)
            for one in reversed([*_BREAK.finditer(source.read(size))]):
                # The line end at the very end of the file starts no further line.
                breaks += at + one.end() != end
                if breaks == count:
                    return at + one.end()
    return 0


def _end_of_last_before(path: Path, since: float) -> int:
    """The offset after the last line whose time stamp is older than `since`; the file's end if it was not written since."""
    found = path.stat()
    if found.st_mtime < since:
        return found.st_size
    end = offset = 0
    rest = b""
    with untrusted_files.open_regular(path) as source:
        while chunk := source.read(_CHUNK):
            held = rest + chunk
            for stamp in _STAMP.finditer(held):
                if _seconds(stamp) < since:
                    end = offset - len(rest) + stamp.end()
            offset += len(chunk)
            # A time stamp across this border is found again, completely, in the next chunk.
            rest = held[-4096:]
        source.seek(end)
        past = _BREAK.search(source.read(_CHUNK)) if end else None
    return end + past.end() if past else end


def _seconds(found: re.Match[bytes]) -> float:
    zone = (found[3] or b"").decode().replace("Z", "+00:00")
    try:
        return datetime.fromisoformat(f"{found[1].decode()}T{found[2].decode()}{zone}").timestamp()
    except ValueError:
        return float("inf")
