"""Documents in a user's files: .txt .md .py (one document each), .jsonl (plain, .gz, .zst) and .parquet (one document for each
line or row), and a Hugging Face dataset on disk. pyarrow and zstandard are imported where a file needs them.

The work is cut into units of about the same size, so that several processes can share it, and a killed unit is done again alone.
The cut depends only on the files: any number of processes gets the same units in the same order.
"""

import gzip
import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from .faults import Refused, imported

PLAIN = (".txt", ".md", ".py")
LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
ROWS = (".parquet", ".arrow")
_UNITS, _SMALLEST, _LARGEST = 64, 1 << 20, 512 << 20  # units of a set; bytes of a unit
_LONGEST_LINE = 1 << 30  # bytes: a file without a line break in this many is not a .jsonl
# Splits of a Hugging Face dataset that are for validation.
_HELD_OUT = ("validation", "valid", "val", "dev", "test")


@dataclass(frozen=True)
class Bad:
    """A document that cannot be read. why: the reason, with the document's place where it is known."""

    why: str


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """A part of a file. first, last: bytes of a .jsonl, row groups of a .parquet, batches of an .arrow; 0 and 0: the whole file.

    size: bytes in the file. part: train or validation where the source names one, else empty.
    """

    path: str
    kind: str
    size: int
    first: int = 0
    last: int = 0
    part: str = ""


Unit = list[FilePart]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Files cut into units. files: path, bytes and modification time, by which a change is noticed. size: bytes of all files."""

    files: list[tuple[str, int, int]]
    units: list[Unit]
    size: int


def cut(sources: list[Path], *, ignored: list[str] | None = None) -> Cut:
    """Cut files and folders into units. ignored: a list that gets those files in the folders that cannot be read here."""
    found = [piece for source in sources for piece in _find_pieces(source, ignored if ignored is not None else [])]
    if not found:
        named = ", ".join(map(str, sources))
        raise Refused(f"{named}: no file to read", hint=f"files of {' '.join(PLAIN + LINES + ROWS[:1])} are read")
    total = sum(piece.size for piece in found)
    most = min(max(total // _UNITS, _SMALLEST), _LARGEST)
    units: list[Unit] = []
    room = 0
    for piece in (part for whole in found for part in _split(whole, most)):
        if room < piece.size or not units or units[-1][-1].part != piece.part:
            units.append([])
            room = most
        units[-1].append(piece)
        room -= piece.size
    files = [(piece.path, piece.size, Path(piece.path).stat().st_mtime_ns) for piece in found]
    return Cut(files=files, units=units, size=total)


def read(piece: FilePart, key: str) -> Iterator[str | Bad]:
    """The documents of a piece. key: of the text in a line or row. An unreadable document comes as Bad, in its place."""
    if piece.kind in PLAIN:
        yield Path(piece.path).read_bytes().decode(errors="replace")
    elif piece.kind in LINES:
        yield from _read_lines(piece, key)
    else:
        yield from _read_rows(piece, key)


def as_json(units: list[Unit]) -> Any:
    """The units as plain lists and dicts."""
    return [[asdict(piece) for piece in unit] for unit in units]


# ---- finding the files ----


def _find_pieces(source: Path, ignored: list[str]) -> Iterator[FilePart]:
    if not source.exists():
        raise Refused(
            f"{source}: no such file or folder", hint="a path as the program sees it: mount it into the container"
        )
    if source.is_file():
        if _kind(source) is None:
            raise Refused(f"{source}: not of a kind that is read", hint=f"one of {' '.join(PLAIN + LINES + ROWS[:1])}")
        yield _whole_file(source)
    elif (source / "dataset_dict.json").is_file():
        for name in json.loads((source / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]:
            yield from _dataset(source / name, "validation" if name in _HELD_OUT else "train")
    elif (source / "state.json").is_file() and (source / "dataset_info.json").is_file():
        yield from _dataset(source, "")
    else:
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            if _kind(path) is None:
                ignored.append(str(path))
            else:
                yield _whole_file(path)


def _dataset(folder: Path, part: str) -> Iterator[FilePart]:
    """A dataset that datasets.Dataset.save_to_disk wrote: state.json lists its .arrow files in their order."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        for file in state["_data_files"]:
            yield _whole_file(folder / file["filename"], part)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{folder}: not a dataset that load_from_disk reads: {error}") from None


def _whole_file(path: Path, part: str = "") -> FilePart:
    return FilePart(path=str(path), kind=_kind(path) or "", size=path.stat().st_size, part=part)


def _kind(path: Path) -> str | None:
    return next((suffix for suffix in PLAIN + LINES + ROWS if path.name.endswith(suffix)), None)


def _split(piece: FilePart, most: int) -> Iterator[FilePart]:
    """Cut a piece into parts of about `most` bytes, where the format allows it. A compressed .jsonl stays whole."""
    parts = -(-piece.size // most)
    if parts <= 1 or piece.kind in PLAIN or piece.kind in LINES[1:]:
        yield piece
        return
    count = piece.size if piece.kind == ".jsonl" else _count_batches(piece)
    parts = min(parts, count)
    bounds = [count * number // parts for number in range(parts + 1)]
    for first, last in itertools.pairwise(bounds):
        share = piece.size * (last - first) // count
        yield FilePart(path=piece.path, kind=piece.kind, size=share, first=first, last=last, part=piece.part)


# ---- reading the files ----


def records(source: Path) -> Iterator[tuple[str, Any]]:
    """The objects of a .jsonl file, plain or compressed, or of those in a folder: the place of each, and the object or Bad."""
    pieces = [piece for piece in _find_pieces(source, []) if piece.kind in LINES]
    if not pieces:
        raise Refused(f"{source}: no file to read", hint=f"files of {' '.join(LINES)} are read")
    for piece in pieces:
        for number, (line, _) in enumerate(_raw_lines(piece), 1):
            if line.strip():
                yield f"{piece.path}, line {number}", _parse_object(line)


def _read_lines(piece: FilePart, key: str) -> Iterator[str | Bad]:
    for line, at in _raw_lines(piece):
        if line.strip():
            yield _parse_text(line, key, f"{piece.path}, byte {at}")


def _raw_lines(piece: FilePart) -> Iterator[tuple[bytes, int]]:
    """The lines that begin in [first, last), each with the offset of its first byte."""
    with _open(piece) as file:
        if piece.first:  # skip a line that began earlier: its line break may be the byte before `first`
            file.seek(piece.first - 1)
            file.readline(_LONGEST_LINE)
        place = file.tell() if piece.last else 0
        while not piece.last or place < piece.last:
            try:
                line = file.readline(_LONGEST_LINE)
            except (OSError, EOFError, *_zstd_errors()) as error:
                raise Refused(f"{piece.path}: cannot be read to its end: {error}") from None
            if not line:
                return
            yield line, place
            place += len(line)


def _parse_object(line: bytes) -> dict[str, Any] | Bad:
    try:
        made = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Bad(f"not JSON: {error}")
    return made if isinstance(made, dict) else Bad("it is not an object")


def _parse_text(line: bytes, key: str, where: str) -> str | Bad:
    made = _parse_object(line)
    if isinstance(made, Bad):
        return Bad(f"{where}: {made.why}")
    text = made.get(key)
    return text if isinstance(text, str) else Bad(f"{where}: no text under {key!r} ({', '.join(list(made)[:8])})")


def _open(piece: FilePart) -> IO[bytes]:
    if piece.kind == ".jsonl.gz":
        return gzip.open(piece.path)
    if piece.kind == ".jsonl.zst":
        reader = imported("zstandard", f"{piece.path} (.zst)").ZstdDecompressor()
        return io.BufferedReader(reader.stream_reader(Path(piece.path).open("rb"), read_across_frames=True), 1 << 20)
    return Path(piece.path).open("rb", buffering=1 << 20)


def _zstd_errors() -> tuple[type[Exception], ...]:
    try:
        import zstandard  # noqa: PLC0415 - without the package, its errors cannot be raised
    except ImportError:
        return ()
    return (zstandard.ZstdError,)


def _read_rows(piece: FilePart, key: str) -> Iterator[str | Bad]:
    pyarrow = imported("pyarrow", f"{piece.path} ({piece.kind})")
    try:
        for batch in _record_batches(piece, key):
            for text in batch.column(batch.schema.get_field_index(key)).to_pylist():
                yield text if isinstance(text, str) else Bad(f"{piece.path}: a row without text under {key!r}")
    except pyarrow.ArrowException as error:
        raise Refused(f"{piece.path}: cannot be read to its end: {error}") from None


def _record_batches(piece: FilePart, key: str) -> Iterator[Any]:
    """The record batches of a piece, with the column `key`."""
    if piece.kind == ".parquet":
        file = imported("pyarrow.parquet", piece.path).ParquetFile(piece.path, memory_map=True)
        _require_column(key, file.schema_arrow.names, piece)
        groups = list(range(piece.first, piece.last)) if piece.last else None
        yield from file.iter_batches(batch_size=1024, row_groups=groups, columns=[key], use_threads=False)
        return
    pyarrow = imported("pyarrow", piece.path)
    with pyarrow.memory_map(piece.path) as mapped, pyarrow.ipc.open_stream(mapped) as stream:
        _require_column(key, stream.schema.names, piece)
        for number, batch in enumerate(stream):
            if not piece.last or piece.first <= number < piece.last:
                yield batch


def _count_batches(piece: FilePart) -> int:
    """The number of parts that a file can be read in: row groups, or record batches."""
    pyarrow = imported("pyarrow", f"{piece.path} ({piece.kind})")
    try:
        if piece.kind == ".parquet":
            return max(1, int(imported("pyarrow.parquet", piece.path).read_metadata(piece.path).num_row_groups))
        with pyarrow.memory_map(piece.path) as mapped, pyarrow.ipc.open_stream(mapped) as stream:
            return max(1, sum(1 for _ in stream))
    except (OSError, pyarrow.ArrowException) as error:
        raise Refused(f"{piece.path}: not a file that pyarrow reads: {error}") from None


def _require_column(key: str, names: list[str], piece: FilePart) -> None:
    if key not in names:
        raise Refused(f"{piece.path}: no column {key!r}", hint=f"--text-key, one of: {', '.join(names)}")
