"""Reports what this rank does, for `kit top` and `kit why`.

    from kit_rank import progress
    progress.step(12)                  # twelve steps are done
    with progress.phase("evaluate"):   # start, rendezvous, data, compute, communicate, save, evaluate, compile
        ...

A report is one write of 384 bytes into this rank's file in /dev/shm, and takes some ten microseconds. Its first line tells what the
rank does now, its second how many seconds it has spent in each phase, for `kit time`. Nothing goes to a disk or to another node.
The monitor's step on this node reads the files of all its ranks. Without a monitor, as outside a run, nothing is written. The first
report sets a handler of signal 62, unless the program has one. With it, `kit stacks` and the evidence of a stall get the Python
stacks of all threads, in a second file there, while the program continues. Once torch.distributed is in use, kit_recorder.py adds
this rank's last collectives to the same evidence. Works with any Python from 3.8, and needs no installation.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
import time
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["progress"]

# start, compile, save and evaluate are slow by nature, so they have their own limits.
PHASES = ("start", "rendezvous", "data", "compute", "communicate", "save", "evaluate", "compile")
# The times that `kit time` reads, in this order. `first` is the first step, separate because most programs compile in it. `end` is
# the time after the last step, up to the end of the process.
SPENT = (*PHASES, "first", "end")
_BYTES, _SPENT_BYTES = 128, 256
# The signal that evidence.sh sends: a real-time signal, because programs and their libraries use USR1 and USR2.
_STACKS_SIGNAL = 62
# The longest time between two reports counts for some thousand reports, because an evaluation without its own phase comes back.
_FORGET = 0.9995
# The time of a step is the median of this many steps, so that one step that is slow by chance makes no straggler.
_STEPS = 5
# It is reported only from this many steps on: programs compile, and warm up caches, in more than the first step.
_LEAST_STEPS = 3
# Phases that have their own limit, by the longest time that they took.
_SLOW = frozenset({"save", "evaluate", "compile"})
# The monitor's step may start after the ranks, so a rank looks for its folder again at this interval.
_AGAIN_S = 1.0


class RankReporter:
    """One rank's step and phase. folder: made by the monitor's step; None outside a run."""

    def __init__(self, folder: str | None = None, name: str | None = None) -> None:
        self._folder = folder if folder is not None else _folder()
        self._name = name if name is not None else _name()
        self._handle: int | None = None
        self._looked = float("-inf")
        self._reset(_began())
        self._tell()
        if self._handle is not None:
            atexit.register(self._end)

    def _reset(self, began: float) -> None:
        """Forget all steps. began: the time of this start."""
        self._step, self._phase = 0, "start"
        self._took, self._every = 0.0, 0
        self._waited, self._read, self._longest = 0.0, 0.0, 0.0
        # Seconds since the last step in the phases communicate and data. For each of the last steps: time taken, waited, read.
        self._inside = {"communicate": 0.0, "data": 0.0}
        self._steps: list[list[float]] = []
        self._slowest: dict[str, float] = {}
        self._recorder: bool | None = None
        self._stepped: float | None = None
        now, self._began = time.monotonic(), began
        self._spent, self._since = dict.fromkeys(SPENT, 0.0), now - max(0.0, time.time() - self._began)
        # The start of this node's task, from worker.sh; and the attempt of the whole job, from the batch script. A role of several
        # counts its own starts in KIT_RESTART_COUNT.
        self._worker = os.environ.get("KIT_WORKER_BEGAN") or "0"
        self._attempt = os.environ.get("KIT_ATTEMPT") or os.environ.get("KIT_RESTART_COUNT") or "0"
        # _first: steps done when this process began its loop; None before. _warm: whether a step was made since.
        self._first: int | None = None
        self._warm, self._ended = False, 0.0

    def start_again(self) -> None:
        """Begin again, as the same rank of the next start: kit_keep calls it where this process lives on."""
        if self._handle is not None:
            self._end()
            os.close(self._handle)
        handler, self._handle = self._handle is not None, None
        recorder = self._recorder
        self._reset(time.time())
        self._recorder = recorder
        if handler:
            self._looked = float("-inf")
            self._tell()

    def step(self, done: int) -> None:
        """Report that `done` steps are done, and that the next one begins."""
        now = self._count()
        if self._first is None:
            self._first = int(done)
        elif done > self._first:
            self._warm = True
        if self._stepped is not None and done > self._step:
            every, between = int(done) - self._step, now - self._stepped
            self._steps.append([part / every for part in (between, *self._inside.values())])
            del self._steps[:-_STEPS]
            if len(self._steps) >= _LEAST_STEPS:
                self._every = every
            self._took, self._waited, self._read = (sorted(of)[len(of) // 2] for of in zip(*self._steps))
            self._longest = max(between, self._longest * _FORGET)
        self._stepped, self._inside = now, {"communicate": 0.0, "data": 0.0}
        self._step, self._phase = int(done), "compute"
        if self._recorder is None and "torch.distributed" in sys.modules and self._handle is not None:
            self._recorder = _recorder(f"{self._folder}/recorder.{self._name.replace('@', '.')}")
            if self._recorder is not None:
                _refuse_other_world()
        self._tell()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Report the phase `name` inside the block. After it, the phase is again what it was."""
        if name not in PHASES:
            raise ValueError(f"{name!r} is not a phase; there are {' '.join(PHASES)}")
        began = self._count()
        before, self._phase = self._phase, name
        self._tell()
        try:
            yield
        finally:
            self._count()
            self._phase = before
            spent = time.monotonic() - began
            if name in self._inside:
                self._inside[name] += spent
            elif name in _SLOW:
                self._slowest[name] = max(spent, self._slowest.get(name, 0.0))
                # A slow phase is not part of a step's time.
                if self._stepped is not None:
                    self._stepped += spent
            self._tell()

    def _count(self, instead: str | None = None) -> float:
        """Add the time since the last call to the phase, or to `instead` where the phase is compute. Returns the clock."""
        now = time.monotonic()
        name = self._phase
        if name == "compute":
            name = instead or (name if self._warm else "first")
        self._spent[name] += now - self._since
        self._since = now
        return now

    def _end(self) -> None:
        self._count("end")
        self._ended = time.time()
        self._tell()

    def _tell(self) -> None:
        handle = self._handle if self._handle is not None else self._open()
        if handle is None:
            return
        line = (
            f"{self._step} {self._phase} {time.time():.3f} {self._took:.6f} {self._every}"
            f" {self._longest:.3f} {self._waited:.6f} {self._read:.6f} {self._slowest.get(self._phase, 0.0):.3f}"
        )
        first = -1 if self._first is None else self._first
        more = f"{self._attempt} {self._began:.3f} {self._worker} {self._ended:.3f} {first} " + " ".join(
            [f"{self._spent[name]:.3f}" for name in SPENT]
        )
        try:
            both = line.ljust(_BYTES - 1)[: _BYTES - 1] + "\n" + more.ljust(_SPENT_BYTES - 1)[: _SPENT_BYTES - 1] + "\n"
            os.pwrite(handle, both.encode(), 0)
        except OSError:
            # A failed report must not end a rank.
            self._handle = self._folder = None

    def _open(self) -> int | None:
        now = time.monotonic()
        if self._folder is None or now - self._looked < _AGAIN_S:
            return None
        self._looked = now
        try:
            if os.lstat(self._folder).st_uid != os.geteuid():
                return None
            path = f"{self._folder}/{self._name}"
            _keep(path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._handle = os.open(path, flags, 0o600)
            _show_stacks_on_request(f"{self._folder}/stacks.{self._name.replace('@', '.')}")
        except OSError:
            return None
        return self._handle


def _keep(path: str) -> None:
    """Keep the last report of the process that was this rank before, because the monitor may not have seen it."""
    try:
        with open(path, "rb") as report:  # noqa: PTH123 - pathlib is imported by no line of this file
            began = report.read(_BYTES + _SPENT_BYTES)[_BYTES:].split()[1].decode()
        os.rename(path, f"{path}~{began}")  # noqa: PTH104
    except (OSError, IndexError, UnicodeDecodeError):
        return


def _began() -> float:
    """The start of this process, in seconds since the epoch: proc(5), field 22 of /proc/self/stat, in ticks since boot."""
    try:
        with open("/proc/self/stat", "rb") as stat:  # noqa: PTH123
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return time.time()


def _show_stacks_on_request(path: str) -> None:
    """Set the handler. evidence.sh sends the signal only to a process that has this file open."""
    if signal.getsignal(_STACKS_SIGNAL) is not signal.SIG_DFL:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    faulthandler.register(_STACKS_SIGNAL, file=os.open(path, flags, 0o600), all_threads=True)


def _recorder(path: str) -> bool | None:
    """Start kit_recorder. None while torch.distributed has no group; False where there is no recorder to read."""
    try:
        import kit_recorder  # noqa: PLC0415 - a program without torch.distributed never loads it

        return kit_recorder.answer_at(path)
    except Exception:  # noqa: BLE001 - a failed report must not end a rank
        return False


def _refuse_other_world() -> None:
    """RuntimeError if a launcher inside the rank has made this process one of a smaller world than the run's.

    Each rank's launcher begins a training of its own, and each would end well. rank.sh sets KIT_WORLD_SIZE; such a launcher sets
    WORLD_SIZE and GROUP_WORLD_SIZE. One that joins those of the other ranks has at least as many ranks and nodes as planned.
    """
    import torch.distributed as dist  # noqa: PLC0415

    names = ("KIT_WORLD_SIZE", "KIT_NNODES", "WORLD_SIZE", "GROUP_WORLD_SIZE")
    planned, nodes, world_size, groups = (
        int(text) if (text := os.environ.get(name, "")).isdigit() else 0 for name in names
    )
    if not (planned and nodes and world_size and dist.is_available() and dist.is_initialized()):
        return
    # A program that chooses a world of its own does not change the variable, and Ray gives its workers theirs.
    if dist.get_world_size() != world_size or "ray" in sys.modules:
        return
    if world_size < planned or 0 < groups < nodes:
        raise RuntimeError(
            f"this process trains in a world of {world_size}, and the run has {planned} ranks on {nodes} nodes: "
            "a launcher inside the rank began a training of its own. Start the program without it, or give it rendezvous options"
        )


def _folder() -> str | None:
    # A process that multiprocessing has spawned is not a rank, although it imports the rank's program, under this name.
    if getattr(sys.modules.get("__mp_main__"), "__name__", "") == "__mp_main__":
        return None
    job = os.environ.get("SLURM_JOB_ID")
    return f"/dev/shm/kit-{os.geteuid()}-{job}" if job and os.environ.get("KIT_RUN_DIR") else None


def _name() -> str:
    return f"{os.environ.get('KIT_ROLE', '')}@{os.environ.get('RANK', '0')}"


progress = RankReporter()
