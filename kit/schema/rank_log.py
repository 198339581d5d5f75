"""The name of a file with a rank's output: its own log, or one that torchrun wrote at a start of the rank."""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = re.compile(r"rank-(\d{1,18})(?:\.(\d{1,9})\.(stderr|stdout))?\.log")


class RankLog(NamedTuple):
    """The parts of the name. start, stream: 0 and empty for the rank's own log."""

    rank: int
    start: int
    stream: str


def rank_log(name: str) -> RankLog | None:
    """The parts of a file's name; None if it is no rank's."""
    found = _NAME.fullmatch(name)
    return RankLog(int(found[1]), int(found[2] or 0), found[3] or "") if found else None
