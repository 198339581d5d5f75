"""Makes one Slurm array of the points of one shape: they share the header, and the array's script runs the batch script of its
point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.render import render
from kit.sweeps.shared_plans import OWN_NAME, RUN_DIR, Kind


@dataclass(frozen=True, kw_only=True)
class Array:
    """One submission. members: the points' numbers in the sweep; task n runs the nth member.

    folder: of the script and the links.
    """

    number: int
    members: tuple[int, ...]
    folder: Path
    text: str

    @property
    def script(self) -> Path:
        """The script for sbatch."""
        return self.folder / "batch.sh"


def group(
    kinds: Mapping[int, Kind],
    *,
    name: str,
    folder: Path,
    first: int,
    max_array: int,
    parallel: int | None,
    max_nodes: int | None = None,
    search: Sequence[str] = (),
) -> tuple[Array, ...]:
    """Group the points into as few arrays as there are different headers. An array with more than `max_array` tasks is split.

    kinds: by the point's number. folder: for the arrays' own folders. first: the first array's number. parallel, max_nodes: points
    and nodes of one array that may be in use at the same time. search: argv of kit.sweeps.search.on_node for a search.
    """
    shapes: dict[tuple[str, ...], list[int]] = {}
    for index, kind in kinds.items():
        shapes.setdefault(kind.header, []).append(index)
    arrays: list[Array] = []
    for shape, members in shapes.items():
        most = max_nodes // kinds[members[0]].held if max_nodes else None
        at_once = min((n for n in (parallel, most) if n is not None), default=None)
        for start in range(0, len(members), max_array):
            part = members[start : start + max_array]
            number = first + len(arrays)
            own = folder / str(number)
            text = _script(shape, name=name, folder=own, count=len(part), parallel=at_once, search=search)
            arrays.append(Array(number=number, members=tuple(part), folder=own, text=text))
    return tuple(arrays)


def _script(
    shape: Sequence[str], *, name: str, folder: Path, count: int, parallel: int | None, search: Sequence[str]
) -> str:
    throttle = f"%{parallel}" if parallel is not None and parallel < count else ""
    options = [
        f"{OWN_NAME}{name}",
        f"--array=0-{count - 1}{throttle}",
        *(option.replace(RUN_DIR, f"{folder}/%a") for option in shape),
    ]
    return render("bin/array.sh", {"sbatch": options, "array_dir": folder, "search_argv": list(search)})
