"""Learns from a log which lines tell the program's progress, and reads the steps and figures in them.

Nothing is configured: of all lines with a counter, those count that are most frequent. Of a log of any size, at most
`_WHOLE_BYTES` are read: its beginning, its end, and stretches between.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from kit.files import untrusted_files
from kit.observed import log_line
from kit.observed.figures import Figures, Points
from kit.observed.log_line import Line
from kit.schema.rank_log import rank_log
from kit.schema.run_paths import RunPaths

_STRETCH, _STRETCHES = 1 << 18, 8
_WHOLE_BYTES = _STRETCH * _STRETCHES
# For the last step: the beginning says how epochs are counted.
_HEAD_BYTES, _TAIL_BYTES = 32 << 10, 256 << 10
# For a comparison of logs, and for the step of each rank.
_LOOK_BYTES = 64 << 10
_MOST_LOGS = 16
_TASK = re.compile(r"task(?:-(\d{1,9}))?\.log")
_BREAK = re.compile(rb"[\r\n]+")
_BAR = "progress bar"
_BY_EPOCH = frozenset({f"{_BAR}, by epoch", '"epoch E [n/N]"'})
_WEAK = frozenset({'"epoch N"', '"batch N"', _BAR, f"{_BAR}, by epoch"})


def read_log(run_dir: Path, *, whole: bool) -> Figures | None:
    """The figures in the log of the rank that reports most; None if no log has any.

    whole: of the whole run, for curves; else of its end, for the last step.
    """
    log = _chosen(run_dir)
    if log is None:
        return None
    return read_file(log, name=log.relative_to(RunPaths(run_dir).logs).as_posix(), whole=whole)


def read_file(path: Path, *, name: str, whole: bool) -> Figures | None:
    """The figures in one log. name: of the log, for its reader. None if there are none, or the file cannot be read."""
    try:
        with untrusted_files.open_regular(path) as source:
            changed = os.fstat(source.fileno()).st_mtime
            lines = [*_lines(source, _spans(os.fstat(source.fileno()).st_size, whole=whole))]
    except OSError:
        return None
    label, points = _learned(lines)
    return Figures(source=f"{name}: {label}", path=path, time=changed, points=points) if points else None


def _chosen(run_dir: Path) -> Path | None:
    """The log with most figures at its end, of the first and last ranks: some programs report on rank 0, others on the last."""
    logs = RunPaths(run_dir).logs
    try:
        paths = sorted((path for path in logs.glob("**/*.log") if _is_program(path.name)), key=_order)
    except OSError:
        return None
    if len(paths) > _MOST_LOGS:
        paths = [*paths[: _MOST_LOGS // 2], *paths[-_MOST_LOGS // 2 :]]
    if len(paths) == 1:
        return paths[0]
    counts = [(_figures(path), path) for path in paths]
    most = max((count for count, _ in counts), default=0)
    return next((path for count, path in counts if count and count > most / 2), None)


def _is_program(name: str) -> bool:
    """Whether a log has the output of a program: a rank's, or a launcher's that shows its ranks' output."""
    return rank_log(name) is not None or _TASK.fullmatch(name) is not None


def _order(path: Path) -> tuple[bool, str, int, int]:
    """The ranks in the order of their numbers, role by role, the newest start first; then the logs of launchers."""
    if (named := rank_log(path.name)) is not None:
        return False, str(path.parent), named.rank, -named.start
    task = _TASK.fullmatch(path.name)
    return True, str(path.parent), int(task[1] or 0) if task else 0, 0


def _figures(path: Path) -> int:
    try:
        with untrusted_files.open_regular(path) as source:
            size = os.fstat(source.fileno()).st_size
            return sum(len(one.values) + 1 for one in _lines(source, [(max(0, size - _LOOK_BYTES), size)]))
    except OSError:
        return 0


def _spans(size: int, *, whole: bool) -> list[tuple[int, int]]:
    """The stretches of a file that are read, as offsets."""
    if not whole:
        return [(0, size)] if size <= _HEAD_BYTES + _TAIL_BYTES else [(0, _HEAD_BYTES), (size - _TAIL_BYTES, size)]
    if size <= _WHOLE_BYTES:
        return [(0, size)]
    starts = [(size - _STRETCH) * place // (_STRETCHES - 1) for place in range(_STRETCHES)]
    return [(start, start + _STRETCH) for start in starts]


def _lines(source: BinaryIO, spans: Sequence[tuple[int, int]]) -> Iterator[Line]:
    """The lines with figures in these stretches. Lines that a stretch cuts are left out, unless the file ends there."""
    for start, end in spans:
        source.seek(start)
        found = _BREAK.split(source.read(end - start))
        size = os.fstat(source.fileno()).st_size
        for text in found[start > 0 : len(found) - (end < size)]:
            if text and (one := log_line.read_line(text[: log_line.MOST_CHARACTERS].decode(errors="replace"))):
                yield one


def _learned(lines: Sequence[Line]) -> tuple[str, list[tuple[int, dict[str, float]]]]:
    """What the steps are read from, and the points."""
    counts = Counter(line.label for line in lines if line.label)
    if not counts:
        return "", []
    # A counter of steps is better than a bar, and a bar better than epochs; of several the most frequent.
    strong = [label for label in counts if label not in _WEAK]
    bars = [label for label in counts if label.startswith(_BAR)]
    label = max(strong or bars or counts, key=lambda name: counts[name])
    total = _longest_bar(lines) if label == _BAR else None

    def is_main(line: Line) -> bool:
        return line.label == label and (total is None or line.total == total)

    steps = _over_epochs([line for line in lines if is_main(line)], by_epoch=label in _BY_EPOCH)
    furthest = max(steps, default=0)
    main, points, waiting, at = iter(steps), Points(), dict[str, float](), -1
    for line in lines:
        if is_main(line):
            at = next(main)
            points.add(at, {**waiting, **line.values})
            waiting = {}
        elif line.label in strong and line.step is not None and line.step <= furthest and label not in _BY_EPOCH:
            # Another line about the same steps: of the validation, for example.
            points.add(line.step, line.values)
        elif not line.label and line.values and (line.explicit or at >= 0):
            # A line about the step that a bar shows next, or about the step before.
            if line.explicit and label == _BAR:
                waiting |= line.values
            else:
                points.add(max(at, 0), line.values)
    if waiting:
        points.add(max(at, 0), waiting)
    return label, points.take()


def _longest_bar(lines: Sequence[Line]) -> int | None:
    """The total of the bar that has been up longest: those of evaluations within it are shorter."""
    bars = [one for one in lines if one.label == _BAR and one.bar is not None]
    counts = Counter(one.total for one in bars)
    return max(bars, key=lambda one: (one.bar or 0.0, counts[one.total])).total if bars else None


def _over_epochs(lines: Sequence[Line], *, by_epoch: bool) -> list[int]:
    """The step of each line since the beginning of the run. Some programs count them from 0 in each epoch."""
    steps = [line.step or 0 for line in lines]
    epochs = [line.epoch for line in lines]
    pairs = [*zip(steps, epochs, strict=True)]
    again = any(
        step < before and epoch is not None and last is not None and epoch > last
        for (before, last), (step, epoch) in itertools.pairwise(pairs)
    )
    if not by_epoch and not again:
        return steps
    base = min(1, int(next((epoch for epoch in epochs if epoch is not None), 1)))
    length = max((line.total for line in lines if line.total), default=0) or max(steps, default=0)
    return [step + max(0, int(epoch or base) - base) * length for step, epoch in pairs]
