"""Models of what commands about jobs and runs print with --json. Commands that print a dataclass need none here."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kit.archive.archive_format import ArchiveMember
from kit.health.failing_nodes import FailedRun
from kit.health.progress import RankProgress
from kit.health.rank_logs import LoggedStep
from kit.migrate.report import Kind, Outcome
from kit.schema.cluster import Price
from kit.schema.schema_base import Model


class RenderedJob(Model):
    """What a submit would write and run. Either `files` or `written` is there."""

    run: str = Field(default="", description="The id that the run would have; missing with --plain.")
    run_dir: str = Field(default="", description="Missing with --plain.")
    argv: list[str] = Field(description="The command that would submit it.")
    files: dict[str, str] = Field(default={}, description="Name in the run folder -> text.")
    written: list[str] = Field(default=[], description="With --output: the paths that were written.")


class SweepPoint(Model):
    """A point of a sweep that is submitted."""

    index: int
    name: str
    values: dict[str, Any] = Field(description="Key -> value.")
    run_dir: str


class SweepArray(Model):
    """A Slurm array of points."""

    number: int
    job_id: int | None = Field(description="null: not submitted.")
    points: list[int]
    script: str


class LeftOutPoint(Model):
    """A point that is the same job as another one."""

    values: dict[str, Any]
    same_as: int


class SubmittedSweep(Model):
    """A sweep with the points and the arrays of this call."""

    sweep: str
    folder: str
    points: list[SweepPoint]
    arrays: list[SweepArray]
    duplicates: list[LeftOutPoint]
    refused: int = Field(description="Points that sweep.when left out.")


class SweepResults(Model):
    """The results of a sweep, the best point first."""

    sweep: str
    metric: str | None
    goal: str | None
    best: int | None
    better_but_not_done: list[int] = Field(description="Points with a better value that have not ended well.")
    without_result: dict[str, int] = Field(description="State -> number of points without a result.")
    points: list[dict[str, Any]] = Field(description="point, name, state, run_dir, each key of the sweep, each metric.")
    sources: dict[str, int] = Field(default={}, description="Where unreported numbers are from -> number of points.")
    codes: dict[str, list[int]] = Field(
        default={}, description="If the points ran several states of the code: hash of each snapshot -> its points."
    )
    objectives: dict[str, str] = Field(default={}, description="Of a search with several goals.")
    front: list[int] = Field(default=[], description="Points that no other one beats in all objectives.")


class StartForecast(Model):
    """When a size of the job would start on a cluster. Times: ISO 8601, UTC; null: not known."""

    cluster: str
    nodes: int
    limit_s: float | None = Field(description="Time limit in seconds; null: none.")
    pieces: int = Field(description="Jobs in a chain.")
    qos: str | None
    partition: str | None
    refused: str | None = Field(description="Why Slurm would refuse this size.")
    by: str = Field(description="Where `start` is from: plan or slurm.")
    start: str | None = Field(description="The latest start if every job runs to its limit.")
    last_start: str | None
    likely_start: str | None
    ends_by: str | None
    likely_end: str | None
    slurms_start: str | None = Field(description="Slurm's own estimate.")
    free_now_s: float | None = Field(description="Seconds for which the nodes are free now; null: without end.")
    command: str | None = Field(description="Submits this size.")


class BlamedRanks(Model):
    """A stall: which ranks the others wait for."""

    rule: str
    culprits: list[int]
    limit_s: float


class RankTable(Model):
    """What each rank of a run does."""

    run: str
    state: str
    ranks: list[RankProgress] = Field(description="Empty if the program reports nothing.")
    from_logs: list[LoggedStep] = Field(description="What logs tell; empty if the program reports.")
    stall: BlamedRanks | None


class RankStacks(Model):
    """Python and native stacks of a run's ranks."""

    run: str
    stacks: dict[str, str] = Field(description="File, such as `rank-0.txt` -> its text.")


class TimeLedger(Model):
    """How a run or a sweep spent its time. Shares are from 0 to 1; `_s` is seconds, `_rank_s` seconds of ranks."""

    run: str
    live: bool
    detail: str
    wall_s: float
    ranks: int
    total_rank_s: float
    accounts_rank_s: dict[str, float]
    by_attempt: dict[str, dict[str, float]]
    by_node: dict[str, dict[str, float]]
    ettr: float
    scheduling_goodput: float
    runtime_goodput: float
    goodput: float
    mfu: float | None
    gpu_hours: float
    price: Price | None
    cost: float | None
    notes: list[str]


class RotatedRun(Model):
    """One of the repetitions."""

    run_dir: str
    nodes: list[str]


class SuspectRank(Model):
    """A rank whose number differs."""

    rank: int
    step: int
    number: str
    run_id: str
    node: str


class RotationResult(Model):
    """Whether a node computes other numbers than the others: `kit rerun --rotate`."""

    run: str
    from_step: int | None
    runs: list[RotatedRun]
    compared: int
    parted: bool
    node: str | None
    suspects: list[SuspectRank]
    conclusion: str


class ExportedRun(Model):
    """An archive of a run."""

    file: str
    bytes: int
    left_out: list[str]
    form: int
    kit: str
    run_id: str
    cluster: str
    exported_at: str
    members: dict[str, ArchiveMember]


class OldRunFacts(Model):
    """A run, a sweep or a chain that is old enough to be removed."""

    folder: str
    job_name: str
    states: list[str]
    age_days: float
    bytes: int
    kept: str | None = Field(description="Why it stays.")
    named_by: str | None = Field(description="The run that needs it.")


class PrunedRuns(Model):
    """What was removed, and all that was found."""

    removed: list[OldRunFacts]
    found: list[OldRunFacts]


class PrunedSnapshots(Model):
    """Snapshots that no run needs."""

    dry_run: bool
    removed: dict[str, list[str]] = Field(description="Store -> hashes.")


class MigratedPlace(Model):
    """Where one part of a line went."""

    kind: Kind
    what: str


class MigratedLines(Model):
    """Some lines of a script. lines: the first and the last, from 1. span: in bytes. file: empty for the script itself."""

    lines: tuple[int, int]
    span: tuple[int, int]
    text: str
    places: list[MigratedPlace]
    file: str


class MigrationReport(Model):
    """What became of an sbatch script."""

    script: str
    outcome: Outcome
    entries: list[MigratedLines]
    job: dict[str, Any] = Field(description="The job file's keys.")
    cluster: dict[str, Any] = Field(description="What the script says about its cluster, as keys of a cluster file.")
    refused: list[str]
    open: list[str] = Field(description="What differs and belongs to no one line.")
    by_the_kit: list[str]
    differences: list[str]
    next: list[str]


class NodeFacts(Model):
    """A node that is avoided, or whose runs failed."""

    node: str
    since: str | None = Field(description="Since when new jobs avoid it; null: suspected only.")
    reason: str
    recorded_by: str = Field(default="", description="Who recorded it; missing if it is suspected only.")
    runs: list[FailedRun]


class TrustedFile(Model):
    """An ssh configuration file of the project, and its lines that can run programs."""

    cluster: str
    file: str
    lines: list[str]
    trusted: bool


class EmbeddedNode(Model):
    """A node of an embedded cluster."""

    name: str
    state: str
    address: str
    cpus: int
    gpus: list[str]
    enter: list[str] | None = Field(description="argv that runs a command on it.")


class EmbeddedClusterStatus(Model):
    """An embedded cluster."""

    name: str
    state: str
    slurm_conf: str
    subnet: str | None
    has_pyxis: bool
    pyxis: str | None
    dead: list[str] = Field(description="Daemons that should run and do not.")
    nodes: list[EmbeddedNode]
