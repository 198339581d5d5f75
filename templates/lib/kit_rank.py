"""What this rank is doing, for `kit top` and `kit why`.

    from kit_rank import progress
    progress.step(12)                  # twelve steps are done
    with progress.phase("evaluate"):   # start, data, compute, communicate, save, evaluate, compile
        ...

A report is one write of 96 bytes into a file of this rank in /dev/shm: some ten microseconds. Nothing goes to a disk or to another
node. The monitor's step on this node reads the files of all its ranks. Where there is no monitor, as outside a run, nothing is
written.
Any Python from 3.8; nothing to install.
"""

import os
import time
from contextlib import contextmanager

__all__ = ["progress"]

# Slow by nature, and so with limits of their own: start, compile, save, evaluate.
PHASES = ("start", "data", "compute", "communicate", "save", "evaluate", "compile")
_BYTES = 96
# The monitor's step may start after the ranks: its folder is looked for again, this often.
_AGAIN_S = 1.0


class Progress:
    """One rank's step and phase. folder: made by the monitor's step; none outside a run."""

    def __init__(self, folder=None, name=None):
        self._folder = folder if folder is not None else _folder()
        self._name = name if name is not None else _name()
        self._step, self._phase = 0, "start"
        self._took, self._every = 0.0, 0
        self._stepped = None
        self._handle = None
        self._looked = float("-inf")
        self._tell()

    def step(self, done):
        """`done` steps are done, and the next one begins."""
        now = time.monotonic()
        if self._stepped is not None and done > self._step:
            self._every = int(done) - self._step
            self._took = (now - self._stepped) / self._every
        self._stepped = now
        self._step, self._phase = int(done), "compute"
        self._tell()

    @contextmanager
    def phase(self, name):
        """What is done inside is `name`; then it is again what it was."""
        if name not in PHASES:
            raise ValueError(f"{name!r} is no phase; there are {' '.join(PHASES)}")
        before, self._phase = self._phase, name
        self._tell()
        began = time.monotonic()
        try:
            yield
        finally:
            self._phase = before
            # What is slow by nature is no part of a step's time.
            if self._stepped is not None and name in {"save", "evaluate", "compile"}:
                self._stepped += time.monotonic() - began
            self._tell()

    def _tell(self):
        handle = self._handle if self._handle is not None else self._open()
        if handle is None:
            return
        line = f"{self._step} {self._phase} {time.time():.3f} {self._took:.6f} {self._every}"
        try:
            os.pwrite(handle, line.ljust(_BYTES - 1)[: _BYTES - 1].encode() + b"\n", 0)
        except OSError:
            # A report is never worth a rank.
            self._handle = self._folder = None

    def _open(self):
        now = time.monotonic()
        if self._folder is None or now - self._looked < _AGAIN_S:
            return None
        self._looked = now
        try:
            if os.lstat(self._folder).st_uid != os.geteuid():
                return None
            path = f"{self._folder}/{self._name}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._handle = os.open(path, flags, 0o600)
        except OSError:
            return None
        return self._handle


def _folder():
    job = os.environ.get("SLURM_JOB_ID")
    return f"/dev/shm/kit-{os.geteuid()}-{job}" if job and os.environ.get("KIT_RUN_DIR") else None


def _name():
    return f"{os.environ.get('KIT_ROLE', '')}@{os.environ.get('RANK', '0')}"


progress = Progress()
