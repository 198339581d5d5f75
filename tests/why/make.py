"""Makes the run folders of the cases: `python -m tests.why.make --torch PYTHON [CASE…]`, on a cluster of its own.

Each case is a job that ends in its way on a real Slurm. What `kit why` reads of its run folder is kept, with the names of this
machine replaced, and slurm.json: what Slurm said of the job.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kit import data_folders
from kit.slurm import client
from tests.cluster.conftest import lab_on
from tests.cluster.lab import Lab
from tests.why.acts import NODES
from tests.why.case import Case
from tests.why.cases import CASES
from tests.why.sick_acts import SickActs

HERE = Path(__file__).parent
CONF = {
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "PartitionName": "urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP",
}
# What `kit why` reads; the rest of a run folder is scripts.
KEPT = (
    "manifest.json",
    "job.toml",
    "state/events.jsonl",
    "state/cancelled*",
    "state/roles.json",
    "state/failures-*/*/*",
    "state/stall-*/rank-*.txt",
    "state/stall-*/complete",
    "state/preflight/*.failed",
    "logs/**/*.log",
    "monitor/*.progress",
)
_MOST_BYTES = 24_000


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def slurm_says(lab: Lab, run: Path, case: str) -> dict[str, object]:
    """What the kit asks Slurm for: one line of squeue, the expected start, the accounting that this cluster lacks."""
    if case in {"lost"} or not (run / "manifest.json").exists():
        return {}
    number = json.loads((run / "manifest.json").read_text()).get("job_id") if case != "manifest-damaged" else None
    if number is None:
        return {}
    found = client.queue(env={**os.environ, **lab.cluster.env()}, job_ids=[number]).get(number)
    return vars(found) if found else {}


def keep(lab: Lab, run: Path, name: str) -> None:
    """Copy what `kit why` reads into the case's folder, with the names of this machine replaced."""
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    slurm = slurm_says(lab, run, name)
    replaced = _names(lab, run, name)
    for pattern in KEPT:
        for path in sorted(run.glob(pattern)):
            if (
                path.is_symlink()
                or not path.is_file()
                or not (path.stat().st_size or path.name in {"cancelled", "complete"})
            ):
                continue
            to = target / replaced(path.relative_to(run).as_posix())
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(replaced(path.read_text(encoding="utf-8", errors="replace"))[-_MOST_BYTES:], encoding="utf-8")
    # By these a node's clock is told; git keeps none.
    seen = {path.relative_to(run).as_posix(): path.stat().st_mtime for path in sorted(run.glob("monitor/*.progress"))}
    if seen:
        (target / "mtimes.json").write_text(replaced(json.dumps(seen, indent=2)) + "\n", encoding="utf-8")
    (target / "slurm.json").write_text(replaced(json.dumps(slurm, indent=2, default=str)) + "\n", encoding="utf-8")


def _names(lab: Lab, run: Path, name: str) -> Callable[[str], str]:
    pairs = [
        (str(run), f"/project/runs/{name}"),
        (run.name, name),
        (str(lab.project), "/project"),
        (str(lab.project.resolve()), "/project"),
        (str(lab.cluster.folder), "/cluster"),
        (f"{lab.cluster.name}-", "n"),
        (lab.cluster.name, "local"),
        (str(Path.home()), "/home/user"),
    ]
    pairs += [(str(Path(sys.argv[sys.argv.index("--torch") + 1]).parents[1]), "/venv")] if "--torch" in sys.argv else []

    def replaced(text: str) -> str:
        for old, new in pairs:
            text = text.replace(old, new)
        return re.sub(r"/tmp/pytest-[^/\s]+/|/tmp/kit-why-[^/\s]+", "/tmp", text)

    return replaced


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--torch", default=sys.executable, help="a Python that has torch")
    options.add_argument("cases", nargs="*", default=[])
    given = options.parse_args()
    chosen = {name: CASES[name] for name in given.cases or CASES}
    folder = Path(tempfile.mkdtemp(prefix="kit-why-"))
    try:
        with lab_on("why", NODES, data_folders.user_data() / "images", folder, CONF) as lab:
            maker = SickActs(lab, given.torch)
            failed = [name for name, done in _make(maker, chosen) if not done]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    say(f"{len(chosen) - len(failed)} made; failed: {' '.join(failed) or 'none'}")
    raise SystemExit(bool(failed))


def _make(maker: SickActs, chosen: dict[str, Case]) -> list[tuple[str, bool]]:
    """Those that end by themselves all at once, the others one after the other."""
    plain = {name: case for name, case in chosen.items() if not case.act}
    made: list[tuple[str, bool]] = []
    submitted: dict[str, tuple[Lab, Path]] = {}
    for name, case in plain.items():
        try:
            lab = maker.write(name, case)
            submitted[name] = lab, maker.submit(lab, case)
        except Exception as error:  # noqa: BLE001 - reported, and the others continue
            say(f"{name}: {error}")
            made.append((name, False))
    made += [(name, _attempt(name, partial(_finish, lab, run, name))) for name, (lab, run) in submitted.items()]
    for name, case in chosen.items():
        if case.act:
            made.append((name, _attempt(name, partial(_act, maker, name, case))))
            maker.clear()
    return made


def _finish(lab: Lab, run: Path, name: str) -> None:
    lab.wait_end(run)
    keep(lab, run, name)


def _act(maker: SickActs, name: str, case: Case) -> None:
    lab = maker.write(name, case)
    run = getattr(maker, case.act)(lab, case)
    if not case.live and name not in {"submitted-never", "manifest-damaged"}:
        lab.wait_end(run)
    keep(lab, run, name)


def _attempt(name: str, work: Callable[[], object]) -> bool:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - reported, and the others continue
        say(f"{name}: {type(error).__name__}: {error}")
        return False
    say(f"{name}: made")
    return True


if __name__ == "__main__":
    main()
