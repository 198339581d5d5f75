"""The text that a GPT program trains on: windows of tokens from memory-mapped files, the same for every layout of ranks.

--data is the output of `kit prepare-data`, Megatron's .bin and .idx, or text: files and folders that lib/documents.py reads. The
first rank tokenizes text into <run>/data, once for all starts of the run. Documents follow each other in one stream, each with its
end token. The stream is cut into windows of --context tokens. Only the tokens after the last full window are left out.
"""

import argparse
import bisect
import hashlib
import itertools
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from . import metrics, prepare, prepared_set, shards, vocabulary
from .faults import Refused
from .progress import ProgressPrinter
from .ranks import Ranks, by_first

HELD_OUT = 20  # one document in 20 of each of Megatron's files is held out, from its end
MOST = 2 << 30  # bytes of text that a training run tokenizes itself, at most


@dataclass(frozen=True, kw_only=True)
class TokenRange:
    """A range of tokens in a .bin: [first, first + count)."""

    path: Path
    dtype: str
    first: int
    count: int


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of `context` tokens (int64), and the same shifted by one, from streams that are read as one."""

    def __init__(self, streams: list[TokenRange], context: int, size: int) -> None:
        self._streams, self._context, self._size = streams, context, size
        self._ends = list(itertools.accumulate(stream.count for stream in streams))
        self._mapped: dict[int, vocabulary.Tokens] = {}

    def __len__(self) -> int:
        return max(0, self.tokens - 1) // self._context

    @property
    def tokens(self) -> int:
        """The tokens of all streams."""
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, parts, missing = index * self._context, [], self._context + 1
        number = bisect.bisect_right(self._ends, first)
        while missing:
            start = first - (self._ends[number - 1] if number else 0)
            parts.append(self._tokens(number)[start : start + missing])
            missing -= len(parts[-1])
            first, number = self._ends[number], number + 1
        window = torch.from_numpy(np.concatenate(parts).astype(np.int64))
        if window.max() >= self._size:
            raise SystemExit(
                f"--data has token {int(window.max())}, and the vocabulary has {self._size}: another --tokenizer?"
            )
        return window[:-1], window[1:]

    def _tokens(self, number: int) -> vocabulary.Tokens:
        """The tokens of one stream, memory-mapped."""
        if number not in self._mapped:
            one = self._streams[number]
            offset = one.first * np.dtype(one.dtype).itemsize
            self._mapped[number] = np.memmap(one.path, one.dtype, "r", offset, (one.count,))
        return self._mapped[number]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_mapped": {}}


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Windows to train on and held-out windows. vocabulary: the size of the model's vocabulary.

    told: a text that identifies the data in a checkpoint. apart: with --attend within, the token that ends a document; else None.
    """

    train: Windows
    test: Windows
    vocabulary: int
    apart: int | None
    told: str


@dataclass(frozen=True, kw_only=True)
class _TextSource:
    """The text as the first rank found or made it."""

    train: list[TokenRange]
    test: list[TokenRange]
    size: int
    end: int | None
    told: str
    said: str


def opened(args: argparse.Namespace, world: Ranks, log: metrics.MetricsFile, folder: Path | None = None) -> Corpus:
    """Open the text of the options. Called by all ranks. Ends the program where --data cannot be used. folder: for new files."""
    found = by_first(lambda: _find_text(args, (folder or args.run_dir) / "data", log.say), world)
    return _corpus(args, found, log.say)


def load(args: argparse.Namespace, folder: Path, say: Callable[[str], None] = print) -> Corpus:
    """Open the text in a process without ranks. Refused where --data cannot be used."""
    return _corpus(args, _find_text(args, folder / "data", say), say)


def _corpus(args: argparse.Namespace, found: _TextSource, say: Callable[[str], None]) -> Corpus:
    for stream in found.train + found.test:
        if not stream.path.is_file():
            raise SystemExit(
                f"{stream.path}: not on this node. --data and --run-dir must be on a disk that all nodes have."
            )
    train, test = (Windows(part, args.context, found.size) for part in (found.train, found.test))
    for name, windows in (("to train on", train), ("held out", test)):
        if not len(windows):
            raise SystemExit(
                f"--data: {windows.tokens} tokens {name} are fewer than a window of --context {args.context} and one more.\n"
                "  try: more text, a smaller --context, or another --validation"
            )
    if args.attend == "within" and found.end is None:
        raise SystemExit(
            "--attend within: no token ends a document in this data.\n  try: --tokenizer, or data with ends"
        )
    over = (train.tokens - 1) % args.context
    say(f"data: {found.said}; the last {over} tokens fill no window" if over else f"data: {found.said}")
    return Corpus(
        train=train,
        test=test,
        vocabulary=vocabulary.rounded(found.size),
        apart=found.end if args.attend == "within" else None,
        told=found.told,
    )


def _find_text(args: argparse.Namespace, own: Path, say: Callable[[str], None]) -> _TextSource:
    source: Path | None = args.data
    if source is not None and (source / prepared_set.FILE).is_file():
        return _prepared_source(source, args)
    if source is not None and (prefixes := _megatron_prefixes(source)):
        return _megatron_source(prefixes, args)
    if args.vocabulary is not None:
        raise Refused("--vocabulary: only for .bin/.idx without a tokenizer", hint="leave it out")
    sources = [source] if source else sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    size = sum(path.stat().st_size for one in sources for path in ([one] if one.is_file() else one.rglob("*")))
    if size > MOST:
        raise Refused(
            f"--data {source}: {size / 1e9:.1f} GB of text", hint=f"kit prepare-data {source} SET, and --data SET"
        )
    order = prepare.order_of(args, [str(path.resolve()) for path in sources])
    prepare.prepare(order, own, processes=1, progress=_RunProgress(say), reuse=True)
    return _prepared_source(own, args)


class _RunProgress(ProgressPrinter):
    """Prints progress as lines of the run, and nothing for work that is quickly done."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(as_json=False)
        self._write = say

    def _say(self, values: dict[str, Any], text: str) -> None:
        if text and "stage" not in values:
            self._write(f"data: {text.strip()}")


def _prepared_source(folder: Path, args: argparse.Namespace) -> _TextSource:
    """The shards of a folder that lib/prepare.py made."""
    made = prepared_set.described_at(folder)
    if args.tokenizer is not None and vocabulary.opened(args.tokenizer, "none").digest != made["tokenizer_digest"]:
        raise Refused(
            f"--tokenizer {args.tokenizer}: {folder} was made with another tokenizer, {made['tokenizer']}",
            hint="leave it out",
        )
    width = np.dtype(made["dtype"]).itemsize
    streams: dict[str, list[TokenRange]] = {}
    for part in prepared_set.PARTS:
        streams[part] = []
        for one in made["shards"][part]:
            path = folder / f"{one['name']}.bin"
            if not path.is_file() or path.stat().st_size != one["tokens"] * width:
                raise Refused(f"{path}: missing or cut off", hint="prepare it again")
            streams[part].append(TokenRange(path=path.absolute(), dtype=made["dtype"], first=0, count=one["tokens"]))
    return _TextSource(
        train=streams["train"],
        test=streams["validation"],
        size=made["vocabulary"],
        end=made["end"],
        told=made["digest"],
        said=f"{prepared_set.said(made)}; {made['tokenizer']}, {made['digest'][:19]}",
    )


def _megatron_prefixes(source: Path) -> list[Path]:
    """The prefixes of Megatron's files: the one of NAME, NAME.bin or NAME.idx, or all in a folder."""
    if source.is_dir():
        return sorted(path.with_suffix("") for path in source.glob("*.idx"))
    plain = source.with_suffix("") if source.suffix in {".bin", ".idx"} else source
    return [plain] if plain.with_name(f"{plain.name}.idx").is_file() else []


def _megatron_source(prefixes: list[Path], args: argparse.Namespace) -> _TextSource:
    """The streams of Megatron's files. The last documents of each pair are held out, as with Megatron's own --split."""
    if args.tokenizer is None and args.vocabulary is None:
        raise Refused(
            f"--data {args.data}: .bin and .idx do not name the vocabulary of their tokens",
            hint="--tokenizer or --vocabulary N",
        )
    end, size = None, args.vocabulary
    if args.tokenizer is not None:
        made = vocabulary.opened(args.tokenizer, args.separator)
        end, size = made.end, made.size
    train, test, summed, documents, held = [], [], hashlib.sha256(), 0, 0
    for prefix in prefixes:
        index = shards.index(prefix)
        last = len(index.bounds) - 1
        kept = last - max(1, round(last / HELD_OUT)) if last > 1 else last
        cut = int(index.lengths[: index.bounds[kept]].sum(dtype=np.int64))
        path = prefix.with_name(f"{prefix.name}.bin").absolute()
        train.append(TokenRange(path=path, dtype=index.dtype.name, first=0, count=cut))
        if index.tokens > cut:
            test.append(TokenRange(path=path, dtype=index.dtype.name, first=cut, count=index.tokens - cut))
        summed.update(prefix.with_name(f"{prefix.name}.idx").read_bytes())
        documents, held = documents + kept, held + last - kept
    told = f"sha256:{summed.hexdigest()} of .idx"
    said = f"{documents + held:,} documents of Megatron's files, {held:,} of them held out"
    return _TextSource(train=train, test=test, size=size, end=end, told=told, said=said)
