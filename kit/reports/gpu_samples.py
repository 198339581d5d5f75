"""Reads the monitor's `nvidia-smi dmon` files: nvidia-smi(1), "Device Monitoring", with -o DT (date and time first)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from kit.files import untrusted_files
from kit.files.json_lines import is_usable_number
from kit.schema.run_paths import RunPaths

_FILE = re.compile(r"slurm-[0-9]+\.(?P<node>.+)\.gutil")
# dmon's column -> its title and unit. Other columns are ignored.
COLUMNS = {"sm": "use, %", "fb": "memory, MB", "pwr": "power, W", "pclk": "clock, MHz", "gtemp": "temperature, C"}
_MOST_BYTES = 32 << 20
Samples = dict[str, list[tuple[float, float]]]


def read_samples(run_dir: Path) -> dict[str, Samples]:
    """Node -> column -> (seconds since the epoch by the node's clock, mean over its GPUs), in order."""
    by_node: dict[str, Samples] = {}
    for path in sorted(RunPaths(run_dir).monitor.glob("slurm-*.gutil")):
        named = _FILE.fullmatch(path.name)
        try:
            text = untrusted_files.tail(path, _MOST_BYTES).decode(errors="replace") if named else ""
        except OSError:
            continue
        samples = parse(text.splitlines())
        if named and samples:
            for column, points in samples.items():
                by_node.setdefault(named["node"], {}).setdefault(column, []).extend(points)
    return by_node


def parse(lines: Iterable[str]) -> Samples:
    """Column -> (time, mean over GPUs). The repeated header lines name the columns; '-' means no value."""
    names: list[str] = []
    values: defaultdict[str, defaultdict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        words = line.split()
        if line.startswith("#"):
            # The first of two header lines has names, the second units.
            if "Date" in words[0]:
                names = [word.lstrip("#") for word in words]
            continue
        if len(words) != len(names) or names[:2] != ["Date", "Time"]:
            continue
        try:
            at = datetime.strptime(" ".join(words[:2]), "%Y%m%d %H:%M:%S").astimezone().timestamp()
        except ValueError:
            continue
        for name, word in zip(names, words, strict=True):
            if name in COLUMNS and (value := _number(word)) is not None:
                values[name][at].append(value)
    return {
        name: [(at, sum(found) / len(found)) for at, found in sorted(of.items())]
        for name, of in values.items()
    }  # fmt: skip


def _number(word: str) -> float | None:
    return float(word) if is_usable_number(word) else None
