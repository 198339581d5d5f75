"""The chats that launchers/sft trains on. The first rank tokenizes them once into <run>/data, and all ranks map that folder.

Each chat is one row. The rows of a step depend only on the seed and the step. Every epoch is a shuffle of all rows, the same for
any number of ranks and for every start of a run.
"""

import argparse
import hashlib
import json
import shutil
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from . import chats, metrics, policy, prepared_set, ranks
from .faults import Refused
from .permutation import Permutation

_MADE = "chats.json"
_COLUMNS = ("tokens", "mask", "bounds")


class ChatDataset:
    """The rows of a folder that `made` returned. vocabulary: every token id is below it. told: the chats' name in a checkpoint."""

    def __init__(self, folder: Path, made: dict[str, Any]) -> None:
        self.counts: dict[str, int] = made["counts"]
        self.vocabulary, self.told = int(made["vocabulary"]), str(made["told"])
        self._columns = {
            part: [np.load(folder / f"{part}-{name}.npy", mmap_mode="r") for name in _COLUMNS]
            for part in prepared_set.PARTS
        }

    def row(self, part: str, number: int) -> chats.TokenRow:
        """A chat's tokens and mask."""
        tokens, mask, bounds = self._columns[part]
        first, last = bounds[number : number + 2]
        return chats.TokenRow(tokens=tokens[first:last].tolist(), mask=mask[first:last].tolist())

    def drawn(self, step: int, count: int, seed: int) -> list[chats.TokenRow]:
        """The rows of a step. Steps are counted from 0."""
        return [self.row("train", number) for number in self._order(step * count, count, seed)]

    def held_out(self, most: int) -> list[chats.TokenRow]:
        """The first held-out rows, `most` at most."""
        return [self.row("validation", number) for number in range(min(most, self.counts["validation"]))]

    def _order(self, first: int, count: int, seed: int) -> Iterator[int]:
        """The rows at `count` places of the order of all epochs, from `first` on."""
        size, last = self.counts["train"], first + count
        while first < last:
            epoch, place = divmod(first, size)
            end = min(size, place + last - first)
            yield from Permutation(size, seed=seed, epoch=epoch).each(range(place, end))
            first += end - place


def opened(args: argparse.Namespace, world: ranks.Ranks, log: metrics.MetricsFile) -> ChatDataset:
    """Open the chats of --data. Called by all ranks. Ends the program where --data cannot be used."""
    folder, told = ranks.by_first(lambda: made(args, args.run_dir / "data"), world)
    if not (folder / _MADE).is_file():
        raise SystemExit(f"{folder}: not on this node. --run-dir must be on a disk that all nodes have.")
    log.say(f"data: {said(told['counts'])}")
    return ChatDataset(folder, told)


def said(counts: dict[str, int]) -> str:
    """A line with the counts of the chats."""
    left = ", ".join(f"{counts[name]:,} {name}" for name in ("bad", "long") if counts[name])
    return f"{counts['train']:,} chats to train on, {counts['validation']:,} held out" + (
        f"; {left}, left out" if left else ""
    )


def made(args: argparse.Namespace, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The folder of the rows below `folder`, made where it is missing, and its description. Refused where chats cannot be used."""
    if not 0 < args.validation < 1:
        raise Refused(f"--validation {args.validation}: a share of the chats, above 0 and below 1")
    layout = chats.ChatLayout(chats.tokenizer(args.tokenizer, args.model), args.chat_template)
    options = [args.validation, args.seq_len, args.turns, args.skip_bad]
    told = hashlib.sha256(json.dumps([layout.digest, *options, _digest(args.data)]).encode()).hexdigest()
    target = folder / f"chats-{told[:16]}"
    if not (target / _MADE).is_file():
        _make(args, layout, target, told)
    found: dict[str, Any] = json.loads((target / _MADE).read_text(encoding="utf-8"))
    return target, found


def _make(args: argparse.Namespace, layout: chats.ChatLayout, target: Path, told: str) -> None:
    limit = int(args.validation * 2**64)
    rows = {part: (array("i"), array("B"), array("q", [0])) for part in prepared_set.PARTS}
    counts = dict.fromkeys((*prepared_set.PARTS, "bad", "long"), 0)
    for where, content, row in chats.each(args.data, layout, args.turns):
        if isinstance(row, chats.BadChat):
            if not args.skip_bad:
                raise Refused(
                    f"{where}: {row}", hint="correct it, or --skip-bad, which leaves such chats out and counts them"
                )
            counts["bad"] += 1
        elif len(row.tokens) > args.seq_len:
            counts["long"] += 1
        else:
            # Chosen by the chat's content, so that copies of a chat are on the same side.
            number = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
            part = prepared_set.PARTS[number < limit]
            tokens, mask, bounds = rows[part]
            tokens.extend(row.tokens)
            mask.extend(row.mask)
            bounds.append(len(tokens))
            counts[part] += 1
    for part, hint in (("train", "a larger --seq-len"), ("validation", "more chats, or --validation 0.2")):
        if not counts[part]:
            raise Refused(f"--data {args.data}: {said(counts)}: none for {part}", hint=hint)
    new = target.with_name(f".{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for part, columns in rows.items():
        for name, column in zip(_COLUMNS, columns, strict=True):
            np.save(new / f"{part}-{name}.npy", np.frombuffer(column, column.typecode))
    content = {"counts": counts, "vocabulary": layout.tokenizer.size, "told": f"sha256:{told}"}
    (new / _MADE).write_text(json.dumps(content), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)


def _digest(source: Path) -> list[str]:
    """SHA-256 of the files of --data."""
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    found = []
    for path in files:
        if not path.is_file():
            raise Refused(
                f"--data {path}: no such file or folder",
                hint="a path as the program sees it: mount it into the container",
            )
        with path.open("rb") as file:
            found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return found


@torch.no_grad()
def test_loss(forward: nn.Module, rows: list[chats.TokenRow], micro_batch: int, world: ranks.Ranks) -> float:
    """The mean loss over the tokens that the mask counts, the same on every layout. Called by all ranks.

    All ranks make the same number of forward passes, because a sharded model gathers its weights from all of them. A rank without
    rows repeats the first row and counts none of its tokens.
    """
    forward.eval()
    summed = counted = 0.0
    for first in range(0, len(rows), micro_batch * world.ddp_world_size):
        mine = rows[first + world.ddp_rank * micro_batch :][:micro_batch]
        batch = policy.rows(mine or [chats.TokenRow(tokens=rows[0].tokens, mask=[0] * len(rows[0].mask))], world.device)
        losses = -policy.logprobs(forward(batch.tokens).float(), batch)
        summed += float((losses.double() * batch.mask).sum())
        counted += float(batch.mask.sum())
    forward.train()
    for part in forward.modules():  # as loop.test_loss does
        if isinstance(part, FSDPModule):
            part.reshard()
    summed, counted = ranks.total(summed, counted, world=world)
    return summed / counted
