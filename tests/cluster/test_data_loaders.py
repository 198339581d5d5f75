"""A program whose DataLoader has four workers saves when it is told to: the signal reaches the program, and none of its workers."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.cluster.lab import Lab
from tests.cluster.test_faults import QUICK, cancel, read, usr1

pytestmark = pytest.mark.cluster

# A worker that gets TERM dies of it when it was spawned, and takes its parent down: "DataLoader worker is killed by signal".
PROGRAM = """\
import os, pathlib, signal, sys, time
from torch.utils.data import DataLoader, Dataset

class Samples(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        time.sleep(0.05)
        return index

def main():
    told = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda got, _frame: told.append(got))
    run, rank = pathlib.Path(os.environ["KIT_RUN_DIR"]), os.environ["RANK"]
    for batch in DataLoader(Samples(), batch_size=4, num_workers=4, multiprocessing_context=sys.argv[1]):
        (run / f"up-{rank}").touch()
        if told:
            break
    # A worker that has died is noticed while batches are waited for.
    (run / f"saved-{rank}").write_text(signal.Signals(told[0]).name)
    sys.exit(128 + told[0])

if __name__ == "__main__":
    main()
"""
SIGNALS = {"cancel": (cancel, "SIGTERM", 143), "lead": (usr1, "SIGUSR1", 138)}
SOON = {("fork", "srun", "pyxis", "cancel"), ("spawn", "torchrun", "bubblewrap", "lead")}


def cells() -> list[ParameterSet]:
    """Two are in `make test`, all of them in `make faults`."""
    return [
        pytest.param(cell, id="-".join(cell), marks=() if cell in SOON else pytest.mark.faults)
        for cell in product(("fork", "spawn"), ("srun", "torchrun"), ("bubblewrap", "pyxis"), SIGNALS)
    ]


@pytest.mark.parametrize("cell", cells())
def test_a_program_with_loader_workers_saves(
    lab: Lab, runtime_of: Callable[[str], list[str]], cell: tuple[str, str, str, str]
) -> None:
    method, shape, runtime, how = cell
    act, name, code = SIGNALS[how]
    lab.write(
        f'script = "program.py"\nargs = ["{method}"]\n{QUICK}[resources]\nnodes = 1\ngpus_per_node = 1\n[retry]\nrequeue = 0\n',
        PROGRAM,
    )
    run = lab.submit(*runtime_of(runtime), "--set", f"shape={shape}")
    lab.wait(lambda: len(list(run.glob("up-*"))) == 1 or ended(run), run)
    act(lab, run)
    lab.wait_end(run)
    logs = read(run, "rank-0") + read(run, "batch")
    assert {p.name: p.read_text() for p in run.glob("saved-*")} == {"saved-0": name}, logs
    # Killed by the kit's signal. torch's own workers sometimes abort when their program ends; they do so without Slurm, too.
    assert not re.search(r"DataLoader worker .* is killed by signal: (Terminated|User defined signal)", logs), logs
    assert lab.status(run)["exit_code"] == code, logs
    assert lab.settled(run) == []


def ended(run: Path) -> bool:
    """Whether the batch script has recorded its end."""
    events = run / "state" / "events.jsonl"
    return events.exists() and '"end"' in events.read_text()
