"""Tokenizes text once, in several processes, into a folder of memory-mapped shards that every GPT program reads (lib/text.py).

    PYTHONPATH=launchers python -m lib.prepare books/ web.jsonl.zst --to prepared/ --tokenizer llama/ --processes 16

SET/
  prepared.json                  its sources, the counts of its documents, and its digest
  train-00007.bin, .idx          tokens of the documents to train on, in Megatron's format (lib/shards.py), each with its end
  validation-00007.bin, .idx     tokens of the held-out documents: chosen by their text, so that copies are on the same side
  tokenizer/                     the tokenizer's files

Until the folder is complete, it is called .SET.preparing/. After a kill, the same command continues after the last
shard that was done.
"""

import argparse
import ctypes
import dataclasses
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NoReturn

from . import documents, options, shards, vocabulary
from .faults import Refused, tell
from .prepared_set import COUNTS, FORMAT, PARTS, VERSION, StagedSet, described_at, said
from .progress import ProgressPrinter

REFUSED = 7
_BATCH = 1 << 20  # characters that are tokenized together
_WORTH = 8 << 20  # bytes for which one more process is worth its start


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetOrder:
    """A set to prepare. held_out: the share of documents for validation. end: see vocabulary.opened."""

    sources: tuple[str, ...]
    tokenizer: str = vocabulary.BYTES
    end: str | None = None
    text_key: str = "text"
    held_out: float = 0.05
    skip_bad: bool = False

    def described(self, made: vocabulary.Vocabulary, files: list[tuple[str, int, int]]) -> dict[str, Any]:
        """A description of the inputs of the set. A later start compares it with the description that it finds."""
        given = dataclasses.asdict(self) | {"sources": sorted(self.sources), "tokenizer": made.digest, "end": made.end}
        listed = hashlib.sha256(json.dumps(files).encode()).hexdigest()
        return json.loads(json.dumps(given | {"files": len(files), "files_digest": listed, "version": VERSION}))


# ---- one unit, in its own process ----


class ShardWorker:
    """Makes the shards of units. A unit is done when its .json exists, and is not made again."""

    def __init__(self, order: SetOrder, work: Path) -> None:
        self._order, self._work = order, work
        self._tokenizer = vocabulary.opened(order.tokenizer, order.end)

    def make(self, number: int, unit: documents.Unit) -> dict[str, Any]:
        """Make the shards of unit `number`. Returns its record, which is also on disk."""
        counts = dict.fromkeys(COUNTS, 0)
        names = {part: f"{part}-{number:05d}" for part in PARTS}
        writers = {part: shards.Writer(self._work / name, self._tokenizer.dtype) for part, name in names.items()}
        waiting: dict[str, list[str]] = {part: [] for part in PARTS}
        characters = 0

        def flush() -> None:
            for part, texts in waiting.items():
                if texts:
                    writers[part].add(*self._tokenizer.documents(texts))
                texts.clear()

        with writers["train"], writers["validation"]:
            for text, part in self._documents(unit, counts):
                waiting[part].append(text)
                characters += len(text)
                if characters >= _BATCH:
                    flush()
                    characters = 0
            flush()
        made = {
            part: {"name": names[part], "tokens": one.tokens, "documents": one.documents, "sha256": one.sha256}
            for part, one in writers.items()
        }
        record = {"number": number, "counts": counts, **made}
        with shards.replaced(self._work / f"unit-{number:05d}.json") as file:
            json.dump(record, file)
        return record

    def _documents(self, unit: documents.Unit, counts: dict[str, int]) -> Iterator[tuple[str, str]]:
        """The texts, each with its part. Documents that are left out are counted."""
        limit = int(self._order.held_out * 2**64)
        for piece in unit:
            for found in documents.read(piece, self._order.text_key):
                if isinstance(found, documents.Bad):
                    if not self._order.skip_bad:
                        raise Refused(
                            found.why, hint="correct it, or --skip-bad, which leaves such documents out and counts them"
                        )
                    counts["bad"] += 1
                elif not found:
                    counts["empty"] += 1
                else:
                    text, raw = mended(found)
                    counts["mended"] += text is not found or "\ufffd" in text
                    number = int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "big")
                    yield text, piece.part or PARTS[number < limit]


def mended(text: str) -> tuple[str, bytes]:
    """The text and its UTF-8. Half a surrogate pair, which JSON can hold and UTF-8 cannot, becomes U+FFFD."""
    try:
        return text, text.encode()
    except UnicodeEncodeError:
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return whole, whole.encode()


_worker: ShardWorker


def _start_worker(order: SetOrder, work: Path, parent: int) -> None:
    global _worker  # noqa: PLW0603 - one for each process of the pool
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.getppid() != parent:
        os._exit(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a process for each core is enough
    _worker = ShardWorker(order, work)


def _make_unit(number: int, unit: documents.Unit) -> dict[str, Any]:
    return _worker.make(number, unit)


# ---- the whole set ----


def prepare(
    order: SetOrder,
    target: Path,
    *,
    processes: int,
    progress: ProgressPrinter,
    force: bool = False,
    reuse: bool = False,
) -> dict[str, Any]:
    """Make the folder `target`, and return its prepared.json. reuse: keep a folder that was made from the same."""
    tokenizer = vocabulary.opened(order.tokenizer, order.end)
    ignored: list[str] = []
    whole = documents.cut([Path(source) for source in order.sources], ignored=ignored)
    if ignored:
        progress.warn(f"{len(ignored)} files are of no kind that is read, and are left out: {_shortened(ignored)}")
    described = order.described(tokenizer, whole.files)
    with StagedSet(target, described, force=force, reuse=reuse) as place:
        if place.is_done:
            return described_at(target)
        with progress.counting("tokenizing", whole.size) as advance:
            records = [*_make_units(order, place.work, whole.units, processes, advance)]
        made = _summary(order, tokenizer, whole, sorted(records, key=lambda one: one["number"]), described)
        _check(made, order)
        place.commit(made, tokenizer)
    return made


def _make_units(
    order: SetOrder, work: Path, units: list[documents.Unit], processes: int, advance: Any
) -> Iterator[Any]:
    """The record of each unit as it is done. Units that an earlier start has done come first."""
    left = []
    for number, unit in enumerate(units):
        path = work / f"unit-{number:05d}.json"
        if path.is_file():
            advance(sum(piece.size for piece in unit))
            yield json.loads(path.read_text(encoding="utf-8"))
        else:
            left.append((number, unit))
    processes = min(processes, len(left), 1 + sum(piece.size for _, unit in left for piece in unit) // _WORTH)
    if processes <= 1:
        worker = ShardWorker(order, work)
        for number, unit in left:
            yield worker.make(number, unit)
            advance(sum(piece.size for piece in unit))
        return
    spawn = multiprocessing.get_context("spawn")
    begin = (order, work, os.getpid())
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=_start_worker, initargs=begin) as pool:
        running: dict[Future[Any], int] = {
            pool.submit(_make_unit, number, unit): sum(piece.size for piece in unit) for number, unit in left
        }
        try:
            while running:
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    advance(running.pop(done))
                    yield done.result()
        except BrokenProcessPool:
            raise Refused(
                "a process of the tokenizer was killed (the kernel does this when memory runs out)",
                hint="the same command continues from here; fewer --processes need less memory",
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _summary(
    order: SetOrder,
    tokenizer: vocabulary.Vocabulary,
    whole: documents.Cut,
    records: list[dict[str, Any]],
    described: dict[str, Any],
) -> dict[str, Any]:
    """The content of prepared.json. digest: of the tokenizer, its end token, and the content of all shards in order."""
    parts = {part: [one[part] for one in records if one[part]["documents"]] for part in PARTS}
    summed = hashlib.sha256(json.dumps([tokenizer.digest, tokenizer.end]).encode())
    for part in PARTS:
        for shard in parts[part]:
            summed.update(f"\n{part} {shard['sha256']}".encode())
    of_documents = {part: sum(one["documents"] for one in parts[part]) for part in PARTS}
    counts = {name: sum(one["counts"][name] for one in records) for name in COUNTS}
    return {
        "format": FORMAT,
        "version": VERSION,
        "digest": f"sha256:{summed.hexdigest()}",
        "tokenizer": tokenizer.name,
        "tokenizer_digest": tokenizer.digest,
        "vocabulary": tokenizer.size,
        "end": tokenizer.end,
        "dtype": tokenizer.dtype.name,
        "documents": {"read": sum(of_documents.values()) + counts["empty"] + counts["bad"], **of_documents, **counts},
        "tokens": {part: sum(one["tokens"] for one in parts[part]) for part in PARTS},
        "bytes": whole.size,
        "shards": parts,
        "made_from": described,
    }


def _check(made: dict[str, Any], order: SetOrder) -> None:
    for part, hint in (("train", "--validation 0.05"), ("validation", "more documents, or --validation 0.2")):
        if not made["tokens"][part] and (part == "train" or order.held_out):
            raise Refused(
                f"{made['documents']['read']} documents, and no document with text falls into {part}",
                hint=hint,
            )


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


# ---- the program ----


def order_of(args: argparse.Namespace, sources: list[str]) -> SetOrder:
    """The order that these options give."""
    if not 0 <= args.validation < 1:
        raise Refused(f"--validation {args.validation}: a share of the documents, from 0 to below 1")
    return SetOrder(
        sources=tuple(sources),
        tokenizer=args.tokenizer or vocabulary.BYTES,
        end=args.separator,
        text_key=args.text_key,
        held_out=args.validation,
        skip_bad=args.skip_bad,
    )


def parse() -> argparse.Namespace:
    """Parse the command line."""
    made = argparse.ArgumentParser(
        prog="prepare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("sources", nargs="+", help="files, folders, or datasets of save_to_disk")
    made.add_argument("--to", type=Path, required=True, metavar="SET", help="the folder to make")
    options.add_tokens(made)
    made.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="one for each core")
    made.add_argument("--force", action="store_true", help="replace the folder when the new one is complete")
    made.add_argument("--reuse", action="store_true", help="take the folder as it is if it was made from the same")
    made.add_argument("--json-lines", action="store_true", help="progress, warnings and errors as JSON")
    return made.parse_args()


def main() -> int:
    """Run the program, and return its exit code."""
    args = parse()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_on_signal)
    progress, began = ProgressPrinter(as_json=args.json_lines), time.perf_counter()
    try:
        order = order_of(args, args.sources)
        made = prepare(order, args.to, processes=args.processes, progress=progress, force=args.force, reuse=args.reuse)
    except Refused as error:
        message, hint = error.message, error.hint
    except OSError as error:
        message, hint = f"{error.filename or args.to}: {error.strerror}", ""
    else:
        told = {name: made[name] for name in ("digest", "documents", "tokens", "vocabulary", "bytes")}
        if args.json_lines:
            print(json.dumps({"target": str(args.to), "seconds": time.perf_counter() - began, **told}))
        else:
            print(f"{args.to}  {said(made)}  {made['digest']}")
        return 0
    tell(message, hint, as_json=args.json_lines)
    return REFUSED


def _exit_on_signal(number: int, _frame: object) -> NoReturn:
    os._exit(128 + number)  # its worker processes end with it (_start_worker); the next start continues


if __name__ == "__main__":
    sys.exit(main())
