"""Every fault on a real job of 8 ranks on 4 nodes, and what `kit why` made of it: one table.

    python -m tests.sick [--faults gil save] [--shapes srun torchrun] [--runtimes pyxis bubblewrap] [--table FILE] [--stripped]

A cell is right when the right rank, its node and the cause are named, within three median steps and ten seconds, and every
rank that can gave its evidence. With --stripped the programs report nothing to the kit, their jobs have [watch], and an alarm may
take the seconds that the watch needs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit import data_folders
from tests.cluster.lab import Lab
from tests.sick.faults import FAULTS, SICK_RANK, STRIPPED, Sick, without_reports
from tests.sick.ward import NODES, Ward, ward

PROGRAM, GROUPS = Path(__file__).with_name("program.py"), Path(__file__).with_name("groups.py")
STEP_S, RANKS = 1.5, 8
# Of a stripped program: seconds without a move. An alarm comes after 30 s at the earliest, a look takes 10 s, and the last stack
# may be 20 s old; of a rank that uses a CPU, a stack is taken every 60 s, and it may stand for twice as long.
_STALL_S, _SEEN_S, _BUSY_S = 20, 30, 60
_LONGEST_S = 150


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One fault in one shape and runtime. found, within: seconds from the fault. wrong: empty is right."""

    fault: Sick
    shape: str
    runtime: str
    found: float
    within: float
    evidence: str
    rule: str
    said: str
    wrong: tuple[str, ...]

    def row(self) -> str:
        """Of the table in docs/guides/health.md."""
        verdict = "; ".join(self.wrong) or "right"
        words = (
            self.fault.title,
            self.shape,
            self.runtime,
            f"{self.found:.1f} s",
            f"{self.within:.1f} s",
            self.evidence,
        )
        return f"| {' | '.join(words)} | {self.rule} | {verdict} |"


HEAD = (
    "| fault | shape | runtime | found after | may take | evidence of ranks | rule | rank, node, cause |\n"
    + "|---" * 8
    + "|"
)


def run(ward: Ward, fault: Sick, shape: str, runtime: str, *, stripped: bool) -> Cell:
    """One cell. The job is ended by scancel: it would hang for ten minutes."""
    lab = ward.lab
    args = json.dumps([str(STEP_S)] if fault.groups else [fault.name, str(SICK_RANK), str(STEP_S)])
    clock = fault.act == "wrong_clock"
    mount = f'{{ source = "{ward.folder}/data", target = "/data", flags = ["ro"] }}'
    job = f'script = "program.py"\nargs = {args}\nmounts = [{mount}]\n'
    # torchft is in this image alone.
    job += 'image = "frameworks-cpu"\n' if fault.groups else f'shape = "{shape}"\n'
    # As in tests/cluster/test_faults.py.
    job += '[retry]\nwarm = ["json"]\n' if os.environ.get("KIT_FAULTS_WARM") and not fault.groups else ""
    job += f'[resources]\nnodes = {NODES}\nranks_per_node = 2\n[container]\nruntime = "{runtime}"\n[preflight]\nfree_disk_gb = 0\n'
    program = (GROUPS if fault.groups else PROGRAM).read_text(encoding="utf-8")
    if stripped:
        program = without_reports(program)
        job += f"[watch]\nstall = {_STALL_S}\n"
    lab.write(job, program, launcher="diloco" if fault.groups else "ddp")
    folder = lab.submit("--set", 'slurm.extra=["--hold"]') if clock else lab.submit()
    with ward.collector_with_a_clock(folder) if clock else contextlib.nullcontext():
        if clock:
            lab.slurm("scontrol", "release", str(lab.job(folder)["JobId"]))
        mend = getattr(ward, fault.act)(folder) if fault.act else lambda: None
        try:
            node = ward.name(fault.node)
            return _judged(lab, folder, fault, node, shape=shape, runtime=runtime, stripped=stripped)
        finally:
            if fault.found == "why":
                (folder / "finish").touch()
            mend()
            lab.slurm("scancel", str(lab.job(folder)["JobId"]), check=False)
            lab.wait_end(folder)


def _judged(lab: Lab, folder: Path, fault: Sick, node: str, *, shape: str, runtime: str, stripped: bool) -> Cell:
    lab.wait(lambda: (folder / "fault-began").exists() or _ended(folder), folder)
    at = float((folder / "fault-began").read_text())
    usual = _usual(folder)
    found, said = {"alarm": _alarm, "end": _end, "why": _why}[fault.found](lab, folder, fault, at)
    evidence, missing = _evidence(folder, fault, recorder=not stripped)
    wrong = []
    if said["rule"] not in fault.rule.split():
        wrong.append(f"rule {said['rule']}")
    if not re.search(fault.says.replace("NODE", re.escape(node)), said["line"]):
        wrong.append(f"says: {said['line']}")
    # A step of a slow rank is a step: the median is of what all ranks take while it is ill.
    within = 3 * (10 * usual if fault.name == "slow" else 2.5 * usual if fault.name == "disk" else usual) + 10
    if stripped:
        within += _STALL_S + _SEEN_S + (_STALL_S + _BUSY_S if fault.name == "loop" else 0)
    if found > within:
        wrong.append("late")
    wrong += missing
    return Cell(
        fault=fault, shape=shape, runtime=runtime, found=found, within=within, evidence=evidence,
        rule=said["rule"], said=said["line"], wrong=tuple(wrong),
    )  # fmt: skip


def _ended(folder: Path) -> bool:
    path = folder / "state/events.jsonl"
    return path.exists() and '"end"' in path.read_text(encoding="utf-8")


def _usual(folder: Path) -> float:
    """The median step of all ranks before the fault, by their reports."""
    reports = [
        report.split(" ")
        for path in folder.glob("monitor/*.progress")
        for line in path.read_text(encoding="utf-8").splitlines()
        for report in line.split("\t")[1:]
    ]
    took = [float(words[4]) for words in reports if len(words) > 9 and words[5] != "0"]
    return statistics.median(took) if took else STEP_S


def _alarm(lab: Lab, folder: Path, _fault: Sick, at: float) -> tuple[float, dict[str, Any]]:
    """By the alarm of the batch script; `kit why` is asked when the evidence is there."""
    lab.wait((folder / "state/stall-1/complete").exists, folder, seconds=_LONGEST_S)
    event = next(e for e in _events(folder) if e["event"] == "stall")
    return float(event["epoch"]) - at, _said(lab, folder)


def _end(lab: Lab, folder: Path, _fault: Sick, at: float) -> tuple[float, dict[str, Any]]:
    """A rank that failed: as soon as it is on record."""
    lab.wait(lambda: list(folder.glob("state/failures-*/*/rank-*")), folder, seconds=_LONGEST_S)
    first = min(float(path.read_text().split()[0]) for path in folder.glob("state/failures-*/*/rank-*"))
    lab.wait_end(folder)
    return first - at, _said(lab, folder)


def _why(lab: Lab, folder: Path, fault: Sick, at: float) -> tuple[float, dict[str, Any]]:
    """The job continues: `kit why` is asked again and again."""
    until = time.monotonic() + _LONGEST_S
    while (said := _said(lab, folder))["rule"] != fault.rule and time.monotonic() < until:
        time.sleep(0.5)
    return time.time() - at, said


def _said(lab: Lab, folder: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(lab.kit("why", folder.name, "--json").stdout)
    return answer


def _events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "state/events.jsonl").read_text(encoding="utf-8").splitlines()]


def _evidence(folder: Path, fault: Sick, *, recorder: bool) -> tuple[str, list[str]]:
    """How many ranks gave theirs, with Python stacks, and with the recorder; what is missing. recorder: whether it is asked for."""
    if fault.found != "alarm":
        return "–", []
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("state/stall-1/**/rank-*.txt")]
    stacks = sum("MainThread" in text or "Current thread" in text for text in texts)
    recorded = sum("kit: collective" in text for text in texts)
    nodes = len(list(folder.glob("state/stall-1/node-*.txt")))
    want = RANKS - fault.silent
    missing = []
    # A lighthouse is one more, where it is still there.
    if len(texts) < want or nodes != NODES - (fault.silent > 0):
        missing.append(f"evidence of {len(texts)} ranks and {nodes} nodes")
    if stacks < want:
        missing.append(f"stacks of {stacks} ranks")
    if recorder and recorded < want - fault.mute:
        missing.append(f"flight recorder of {recorded} ranks")
    return f"{len(texts)}, stacks {stacks}, recorder {recorded}", missing


def cells(faults: list[str], shapes: list[str], runtimes: list[str], *, rotate: bool) -> Iterator[tuple[str, str, str]]:
    """All of them; with rotate each fault in one shape and runtime, each of those in its turn."""
    for number, name in enumerate(faults):
        own = ["replicas"] if FAULTS[name].groups else shapes
        places = [(shape, runtime) for shape in own for runtime in runtimes]
        for shape, runtime in [places[number % len(places)]] if rotate else places:
            yield name, shape, runtime


def main() -> int:
    """0 when every cell is right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", nargs="+", choices=FAULTS)
    parser.add_argument(
        "--stripped", action="store_true", help="the programs report nothing; only faults that stop a rank"
    )
    parser.add_argument("--shapes", nargs="+", choices=["srun", "torchrun"], default=["srun", "torchrun"])
    parser.add_argument("--runtimes", nargs="+", choices=["pyxis", "bubblewrap"], default=["pyxis", "bubblewrap"])
    parser.add_argument("--rotate", action="store_true", help="each fault in one shape and runtime only")
    parser.add_argument("--table", type=Path, help="append the rows to this file")
    asked = parser.parse_args()
    faults = STRIPPED if asked.stripped else FAULTS
    print(HEAD, flush=True)
    seen = []
    with tempfile.TemporaryDirectory(prefix="kit-sick-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        with ward(data_folders.user_data() / "images", folder) as made:
            names = [name for name in asked.faults or faults if name in faults]
            for each, shape, runtime in cells(names, asked.shapes, asked.runtimes, rotate=asked.rotate):
                fault = faults[each]
                try:
                    one = run(made, fault, shape, runtime, stripped=asked.stripped)
                except AssertionError as error:
                    print(f"{fault.name} {shape} {runtime}: {str(error)[-3000:]}", file=sys.stderr, flush=True)
                    seen.append(False)
                    continue
                print(one.row(), flush=True)
                print(f"  {one.said}", file=sys.stderr, flush=True)
                seen.append(not one.wrong)
                if asked.table:
                    with asked.table.open("a", encoding="utf-8") as table:
                        table.write(f"{one.row()}\n")
    print(f"{sum(seen)} of {len(seen)} right")
    return 0 if all(seen) else 1


if __name__ == "__main__":
    sys.exit(main())
