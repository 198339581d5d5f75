"""A training program that goes wrong on request: `faulty.py HOW RANK`, where RANK shows the fault and the others behave.

With `well` all ranks end with 0 when they are told to end.

No framework is imported: the faults are those of processes, nodes and disks. It saves on TERM and USR1, as the launchers'
programs do.
"""

import os
import pathlib
import signal
import sys
import time

how, who = sys.argv[1], sys.argv[2]
run = pathlib.Path(os.environ["KIT_RUN_DIR"])
rank, world = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
start = int(os.environ["KIT_RESTART_COUNT"])
chosen = rank == who


def save(number: int, _frame: object) -> None:
    time.sleep(1.5 if rank == "0" else 0.1)  # rank 0 writes the checkpoint; the others are done at once
    import zipfile  # noqa: F401 - not read before, as most of what torch.save needs: the image must still be served

    (run / f"saved-{rank}-{start}").write_text(signal.Signals(number).name)
    # As programs do that take a signal for a request to save, and no failure.
    sys.exit(0 if how == "well" else 128 + number)


for number in (signal.SIGTERM, signal.SIGUSR1):
    deaf = chosen and how == "deaf"
    signal.signal(number, signal.SIG_IGN if deaf else save)
print(f"rank {rank} is up, start {start}", flush=True)
(run / f"up-{rank}-{start}").write_text(str(time.time()))
while len(list(run.glob(f"up-*-{start}"))) < world:
    time.sleep(0.02)

if start > 0 and how not in {"again", "deaf"}:
    sys.exit(0)
if chosen:
    if how == "exit":
        sys.exit(7)
    if how == "traceback":
        raise RuntimeError("the program's own fault")
    if how in {"kill", "again"}:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "fill":
        while True:
            print("x" * 4096, flush=True)
while not (run / "finish").exists():
    time.sleep(0.1)
