"""Measures a job's questions to slurmctld and its time to the first rank, by its number of nodes, on an embedded cluster.

    python -m benchmarks width [--nodes 4 64 256]

Needs Slurm on this machine. The ranks only print who they are. All nodes share this machine's cores, so times are upper bounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks._common import Goal, report
from tests.cluster.conftest import lab_on
from tests.cluster.width import ASKED_AGAIN, SLURMS_OWN, Width, measured


def main(options: Sequence[str]) -> int:
    """Return 1 when the questions to slurmctld grow with the nodes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 64, 256])
    asked = parser.parse_args(options)
    with TemporaryDirectory(prefix="kit-width-") as folder:
        project = Path(folder)
        with lab_on("width", max(asked.nodes), project / "store", project) as lab:
            found = [measured(lab, nodes) for nodes in asked.nodes]
    print(table(found))
    print(
        f"\nA step that takes more than two seconds to end is asked about again: up to {ASKED_AGAIN} more of a kind do not count.\n"
    )
    first, last = found[0].of_the_kit, found[-1].of_the_kit
    grown = sum(max(0, count - first[kind] - ASKED_AGAIN) for kind, count in last.items())
    return report([Goal(name=f"RPCs more at {found[-1].nodes} nodes", value=grown, bound=0)])


def table(found: Sequence[Width]) -> str:
    """The table: a row for each figure, a column for each width."""
    kinds = sorted({kind for one in found for kind in one.rpcs}, key=lambda kind: (kind in SLURMS_OWN, kind))
    rows: list[tuple[str, list[str]]] = []
    for kind in kinds:
        own = " (Slurm's own)" if kind in SLURMS_OWN else ""
        rows.append((f"{kind}{own}", [str(one.rpcs[kind]) for one in found]))
    rows += [
        ("submit to the ranks' step, s", [f"{one.first_rank_s:.1f}" for one in found]),
        ("of it the preflight, s", [f"{one.preflight_s:.1f}" for one in found]),
        ("files in the run folder, without the monitor's", [str(one.files) for one in found]),
        ("of them the ranks' logs", [str(one.rank_logs) for one in found]),
        ("files of the monitor, by node", [str(one.monitor_files) for one in found]),
    ]
    lines = ["| | " + " | ".join(f"{one.nodes} nodes" for one in found) + " |", "|---|" + "---|" * len(found)]
    return "\n".join([*lines, *(f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows)])
