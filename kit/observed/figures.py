"""The figures that one source has of a run: a value for each metric and step, in the order in which they were written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from kit.files.json_lines import Record
from kit.observed.metric_names import chosen

# More points of a run say no more in a table or a chart.
_MOST_POINTS = 20_000
_MOST_NAMES = 200
_LIMIT = 1 << 53


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures of one file. source: for a reader, such as `rank-0.log: "iter N"`. time: seconds since the epoch, of its last
    change. points: step and values.
    """

    source: str
    path: Path
    time: float
    points: list[tuple[int, dict[str, float]]]

    def records(self, source: str) -> Iterator[Record]:
        """The points in the form of metrics.jsonl. source: the key for the source of each."""
        names = chosen(name for _, values in self.points for name in values)
        for step, values in self.points:
            yield {"step": step, **{names[name]: value for name, value in values.items()}, source: self.source}

    @property
    def last_step(self) -> int:
        """The step of the last point, which is not the furthest if the run began again from an earlier checkpoint."""
        return self.points[-1][0]

    @property
    def when(self) -> str:
        """The time in the form of metrics.jsonl."""
        return datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds")


class Points:
    """Collects points within fixed memory: when there are too many, each two neighbours become one, at the later step."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, dict[str, float]]] = []
        self._names: set[str] = set()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point. Values of one step that come one after another become one point."""
        if not 0 <= step < _LIMIT:
            return
        known = {name: value for name, value in values.items() if self._is_known(name)}
        if self._kept and self._kept[-1][0] == step:
            self._kept[-1][1].update(known)
            return
        self._kept.append((step, known))
        if len(self._kept) > _MOST_POINTS:
            pairs = zip(self._kept[::2], self._kept[1::2], strict=False)
            odd = self._kept[-1:] if len(self._kept) % 2 else []
            self._kept = [(late[0], {**early[1], **late[1]}) for early, late in pairs] + odd

    def take(self) -> list[tuple[int, dict[str, float]]]:
        """All points."""
        return self._kept

    def _is_known(self, name: str) -> bool:
        if name not in self._names and len(self._names) < _MOST_NAMES:
            self._names.add(name)
        return name in self._names
