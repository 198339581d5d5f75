"""Protocol of a host: the machine where a cluster's Slurm and run folders are. Each operation is written once, against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from kit.slurm.client import JobId, QueuedJob

if TYPE_CHECKING:
    from kit.hosts.avoided_nodes import Avoided
    from kit.record.manifest import Manifest
    from kit.schema.image import ImageLock
    from kit.snapshots.tree_listing import Listing

# Returns the jobs that Slurm has of this user, for a cluster's name; None if it cannot be reached.
Queue = Callable[[str], Mapping[JobId, QueuedJob] | None]


@dataclass(frozen=True, kw_only=True)
class JobToEnd:
    """A job that Slurm or its batch script has to end.

    run_dir: its run folder, as this machine reads it. links: the later links of its chain. how: `waiting`, the job has not
    started; `now`, Slurm ends it; `gently`, its batch script is asked to save and end. begun: whether its batch script has; one
    that has not removes nothing itself.
    """

    run_dir: Path
    job_id: JobId
    how: Literal["waiting", "now", "gently"]
    begun: bool = True
    links: tuple[JobId, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NeededImage:
    """An image of a run. store: of images on the cluster, as the plan names it."""

    lock: ImageLock
    store: Path


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What runs need besides their folders.

    code: the snapshot, and a folder of this machine with its files; None for runs in the job's folder itself. rebuild: the command
    that restores an image of a run that is repeated, by its lock and store.
    """

    images: Sequence[NeededImage]
    code: tuple[Listing, Path] | None = None
    rebuild: Callable[[ImageLock, Path], str] | None = None


@dataclass(frozen=True, kw_only=True)
class NewRun:
    """A run folder to make, and its job.

    run_dir: on the cluster. record: its manifest, without a job. fill: writes all files into a new folder. argv: of sbatch. script:
    the text of the batch script. env: of Slurm's commands. links: how many links of a chain follow the first job
    (chain_links.py).
    """

    run_dir: Path
    record: Manifest
    fill: Callable[[Path], None]
    argv: tuple[str, ...]
    script: str
    env: Mapping[str, str]
    links: int = 0


@dataclass(frozen=True, kw_only=True)
class NewArray:
    """One array of a sweep. number: in the sweep. argv: of sbatch. text: of the batch script.

    note: the file for the note of its submit, on a cluster that is this machine.
    """

    number: int
    argv: tuple[str, ...]
    text: str
    note: Path


@dataclass(frozen=True, kw_only=True)
class NewArrays:
    """Arrays of a sweep to submit, in this order.

    folder: the sweep's, on the cluster. again: it is there already. fill: writes the files of this submission into it, or into a
    folder that is sent there, and returns the run folders. env: of Slurm's commands. note, undo: for a folder of this machine,
    record the jobs by the arrays' numbers, and remove what `fill` wrote there.
    """

    folder: Path
    again: bool
    fill: Callable[[Path], Sequence[Path]]
    arrays: Sequence[NewArray]
    env: Mapping[str, str]
    note: Callable[[Mapping[int, int]], None]
    undo: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class EndedRun:
    """A run whose scripts are submitted again in its own folder.

    run_dir: as this machine reads it. record: its manifest, with the earlier job. secrets: name -> value. env: of Slurm's commands.
    start_relay: starts the relay of a training over two clusters.
    """

    run_dir: Path
    record: Manifest
    secrets: Mapping[str, str]
    env: Mapping[str, str]
    start_relay: Callable[[], None]

    @property
    def earlier(self) -> tuple[int, ...]:
        """All its jobs."""
        own = (self.record.job_id,) if self.record.job_id is not None else ()
        return (*self.record.earlier_job_ids, *own)


@dataclass(frozen=True, kw_only=True)
class UserFacts:
    """The user's own facts on the cluster. uid: None for this machine. runs: the folder of run folders. avoid: nodes."""

    user: str
    uid: str | None
    home: str
    data: str
    store: str
    runs: Path
    avoid: tuple[str, ...]


class Host(Protocol):
    """The host of one cluster: this machine (local.py), or a login node over ssh (ssh.py). `clusters.find_host` finds it.

    name: of the cluster. shares_files: whether the cluster has this machine's files under the same paths. look_s: seconds between
    two looks at a run's record there.
    """

    @property
    def name(self) -> str: ...

    @property
    def shares_files(self) -> bool: ...

    @property
    def look_s(self) -> float: ...

    def env(self, inherit: Sequence[str] = ()) -> dict[str, str]:
        """The environment for Slurm's commands, which kit/slurm runs on this host. inherit: variables that jobs get, too."""
        ...

    def is_up(self) -> bool:
        """Whether Slurm can be asked: an embedded cluster may be down, and a login node may not answer."""
        ...

    def refresh(self) -> object:
        """Bring what is known of the cluster up to date. ToolError if it does not answer."""
        ...

    def refresh_if_old(self) -> bool:
        """The same, if it is old. Returns whether it was."""
        ...

    def settle(self) -> None:
        """Record the jobs of submits that were interrupted after Slurm had accepted them, by what was fetched last."""
        ...

    def queue(self) -> Mapping[JobId, QueuedJob] | None:
        """The user's jobs; none where Slurm is not up, and None if the host does not answer."""
        ...

    def cancel(self, jobs: Sequence[JobToEnd]) -> None:
        """End these jobs, and record that in their run folders. SlurmError if Slurm refuses.

        No job is asked twice: a batch script takes the second request as an order to end at once.
        """
        ...

    def halves(self) -> Path:
        """The folder of notes about halves of trainings that may have to be cancelled: kit/submission/lone_halves.py."""
        ...

    def user_facts(self) -> UserFacts:
        """The facts that a plan needs, as they are now. ToolError if the host does not answer."""
        ...

    def path_here(self, run_dir: Path) -> Path:
        """Where commands of this machine read a folder of the cluster's folder of runs."""
        ...

    def require_inputs(self, inputs: Inputs) -> None:
        """Make sure that the cluster has these images, and the code if its files are not shared.

        LockError if an image is missing or does not match its lock; ImageError or RunError if it cannot be sent.
        """
        ...

    def submit(self, run: NewRun) -> Manifest:
        """Make a run folder and submit its job, once. Returns the manifest with the job.

        Nothing is left of a run that Slurm refuses: JobRefusedError or SlurmError. UnconfirmedError or LineError if it is not known
        whether Slurm has taken the job; then the folder stays, and the job is found by its mark.
        """
        ...

    def submit_again(self, run: EndedRun) -> Manifest:
        """Submit an ended run's own scripts again, once. Errors as in `submit`; the folder stays in any case."""
        ...

    def submit_arrays(self, sweep: NewArrays) -> Mapping[int, int]:
        """Write a sweep's files and submit its arrays, each once. Returns array number -> job.

        If one is refused, those before it are cancelled, and nothing is left of a new sweep. Errors as in `submit`; while it is not
        known whether Slurm has taken an array, the folder and the arrays before it stay, and those after it are not submitted.
        """
        ...

    def require_images_of(self, run_dir: Path, record: Manifest) -> None:
        """Make sure that the cluster still has the images of a run. LockError if one is missing or has changed."""
        ...

    def open_shell(self, run: NewRun, argv: Sequence[str], code: Path | None) -> int:
        """Make a run folder, and run a command with this terminal that starts a shell in it. Returns its exit code.

        code: the snapshot's folder on the cluster. The run's secrets are removed at the end.
        """
        ...

    def on_terminal(self, argv: Sequence[str]) -> int:
        """Run one of Slurm's commands with this terminal; return its exit code."""
        ...

    def piped(self, argv: Sequence[str]) -> list[str]:
        """The argv, for this machine, of one of Slurm's commands with the pipes of its process."""
        ...

    def piped_env(self) -> Mapping[str, str] | None:
        """The environment for such an argv; None for that of this process."""
        ...

    def gather_texts(
        self, run_dir: Path, step: Callable[[Path, Path], list[str]], *, timeout_s: float
    ) -> dict[str, bytes]:
        """Run a step that writes `*.txt` files into a new folder; return them by their paths in it. ToolError if it fails.

        step: its argv, by the run folder and the new folder, both on the cluster.
        """
        ...

    def fetch(self, run_dir: Path, *, accounting_too: bool = True) -> None:
        """Update a run's files on this machine. accounting_too: with what accounting says of its job."""
        ...

    def fetch_whole(self, run_dir: Path) -> None:
        """Update all files that a repetition or an export needs, with programs and snapshot."""
        ...

    def fetch_sweep(self, folder: Path) -> None:
        """Update the files of all points of a sweep."""
        ...

    def path_there(self, run_dir: Path) -> Path:
        """A run folder's path on the cluster."""
        ...

    def avoided(self) -> list[Avoided]:
        """The nodes that new jobs avoid, sorted by name."""
        ...

    def avoid(self, node: str, reason: str) -> None:
        """Make new jobs avoid a node for a day."""
        ...

    def forget(self, node: str) -> None:
        """Let new jobs use a node again. RunError if it is not avoided."""
        ...
