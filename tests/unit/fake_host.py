"""A host in memory: what it was asked for is recorded, and its Slurm has the jobs that a test gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kit.errors import ToolError
from kit.hosts.avoided_nodes import Avoided
from kit.hosts.host import EndedRun, Inputs, JobToEnd, NewArrays, NewRun, UserFacts
from kit.record.manifest import Manifest
from kit.slurm.client import JobId, QueuedJob


@dataclass
class FakeHost:
    """In the place of a host. root: for its notes. jobs: those of its Slurm. answers: whether it can be reached."""

    name: str
    root: Path
    jobs: dict[JobId, QueuedJob] = field(default_factory=dict)
    answers: bool = True
    shares_files: bool = False
    look_s: float = 0.0
    ended: list[JobToEnd] = field(default_factory=list)
    settled: int = 0
    asked: int = 0

    def env(self, inherit: Sequence[str] = ()) -> dict[str, str]:
        return {}

    def is_up(self) -> bool:
        return True

    def refresh(self) -> None:
        if not self.answers:
            raise ToolError("no connection")
        self.asked += 1

    def refresh_if_old(self) -> bool:
        self.refresh()
        return True

    def settle(self) -> None:
        self.settled += 1

    def queue(self) -> Mapping[JobId, QueuedJob] | None:
        return self.jobs if self.answers else None

    def cancel(self, jobs: Sequence[JobToEnd]) -> None:
        self.ended += jobs

    def halves(self) -> Path:
        return self.root / "unwanted"

    def user_facts(self) -> UserFacts:
        runs = self.root / "runs"
        return UserFacts(user="ada", uid=None, home="/home/ada", data="/data", store="/store", runs=runs, avoid=())

    def path_here(self, run_dir: Path) -> Path:
        return run_dir

    def require_inputs(self, inputs: Inputs) -> None: ...

    def submit(self, run: NewRun) -> Manifest:
        raise NotImplementedError

    def submit_again(self, run: EndedRun) -> Manifest:
        raise NotImplementedError

    def submit_arrays(self, sweep: NewArrays) -> Mapping[int, int]:
        raise NotImplementedError

    def require_images_of(self, run_dir: Path, record: Manifest) -> None: ...

    def open_shell(self, run: NewRun, argv: Sequence[str], code: Path | None) -> int:
        raise NotImplementedError

    def on_terminal(self, argv: Sequence[str]) -> int:
        raise NotImplementedError

    def piped(self, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def piped_env(self) -> Mapping[str, str] | None:
        return None

    def gather_texts(
        self, run_dir: Path, step: Callable[[Path, Path], list[str]], *, timeout_s: float
    ) -> dict[str, bytes]:
        raise NotImplementedError

    def fetch(self, run_dir: Path, *, accounting_too: bool = True) -> None: ...

    def fetch_whole(self, run_dir: Path) -> None: ...

    def fetch_sweep(self, folder: Path) -> None: ...

    def path_there(self, run_dir: Path) -> Path:
        return run_dir

    def avoided(self) -> list[Avoided]:
        return []

    def avoid(self, node: str, reason: str) -> None: ...

    def forget(self, node: str) -> None: ...
