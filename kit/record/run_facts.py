"""Facts of a run folder, even if files are missing or damaged: one record, small enough for thousands of runs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import RunError
from kit.files import json_lines, untrusted_files
from kit.files.json_lines import is_usable_number
from kit.schema.run_paths import RunPaths
from kit.slurm.client import JobId

if TYPE_CHECKING:
    from kit.record.manifest import Manifest

UNREADABLE = "UNREADABLE"

# An event has about 200 bytes; there is one for each start, signal and end.
_EVENTS_BYTES = 8 << 20
# Joined as text: making a path of each takes too long for 10,000 runs.
_EVENTS, _MANIFEST = RunPaths(Path()).events, RunPaths(Path()).manifest
# Keys of an event that are read here as numbers.
_NUMBERS: Mapping[str, tuple[str, ...]] = {"start": ("job_id", "restart"), "end": ("exit_code",)}
_DIGEST = rb"sha256[:/]([0-9a-f]{64})"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One run. problem: the reason why its manifest cannot be read; then all fields that only the manifest gives are empty.

    image_name: None for a run without a container. slurm_id, links: its jobs. submitted_at: seconds since the epoch. started: the
    jobs whose batch script has begun, in order. workspace: the origin of its /workspace. tree: its snapshot's hash. rerun_of: the
    run that it repeats. partner: the run on the other cluster of a training over two clusters. nodes: those of the last start.
    restarts: of the ranks, in all its jobs. last_event, exit_code: of the batch script. asked_to_end: its last start got TERM.
    imported: it ran elsewhere, and has no job here.
    """

    run_id: str
    problem: str = ""
    job_name: str = ""
    cluster: str = ""
    image_digest: str = ""
    image_name: str | None = None
    launcher: str = ""
    runtime: str = ""
    git: str | None = None
    workspace: str = ""
    tree: str | None = None
    rerun_of: str | None = None
    partner: str | None = None
    world_sizes: Mapping[str, int] = field(default_factory=dict)
    submitted_at: float = 0.0
    interactive: bool = False
    imported: bool = False
    slurm_id: JobId | None = None
    links: tuple[int, ...] = ()
    started: tuple[int, ...] = ()
    nodes: str = ""
    restarts: int = 0
    last_event: str = ""
    exit_code: int | None = None
    asked_to_end: bool = False

    @property
    def job_id(self) -> JobId | None:
        """The job in the manifest, else the first that has begun."""
        return self.slurm_id if self.slurm_id is not None else next(iter(self.started), None)


def read_facts(run_dir: Path) -> Facts:
    """Read the facts. Never raises, whatever the folder contains: if the manifest cannot be read, `problem` says why."""
    from kit.record import manifest

    recorded = events(run_dir)
    try:
        record = manifest.read_manifest(f"{run_dir}/{_MANIFEST}")
    except RunError as error:
        return Facts(
            run_id=run_dir.name,
            problem=error.message,
            image_digest=_digest_in(run_dir),
            submitted_at=_age(run_dir),
            **_of_events(recorded),
        )
    return Facts(
        run_id=record.run_id,
        job_name=record.job_name,
        cluster=record.cluster,
        image_digest=record.image_digest,
        image_name=record.image_name if record.runtime != "bare" else None,
        launcher=f"{record.launcher} ({record.shape})",
        runtime=record.runtime,
        git=f"{record.git.commit}{' (dirty)' if record.git.dirty else ''}" if record.git else None,
        workspace=str(record.workspace or ""),
        tree=record.workspace.tree if record.workspace else None,
        rerun_of=record.rerun_of,
        partner=record.partner,
        world_sizes=record.world_sizes,
        submitted_at=record.submitted_at.timestamp(),
        interactive=record.interactive,
        **_of_jobs(record, recorded),
    )


def arguments(run_dir: Path) -> str | None:
    """The words of the command line that changed the program's arguments, as they were typed; None without them.

    The manifest is read as JSON: the cached facts do not have them, and its model takes longer than the rest of `kit status`.
    """
    try:
        layers = json.loads(untrusted_files.read_bytes(run_dir / _MANIFEST)).get("set_by", ())
        return next((str(one["name"]) for one in layers if one["kind"] == "words"), None)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def with_events(one: Facts, run_dir: Path) -> Facts:
    """The facts of a run with an unchanged manifest, and with the events that its folder has now."""
    return replace(one, **_of_events(events(run_dir)) | ({"started": ()} if one.imported else {}))


def is_closed(run_dir: Path) -> bool:
    """Whether the batch script has done all that follows its end: the steps are gone, and the logs are merged."""
    ends = [event for event in events(run_dir) if event["event"] == "end"]
    try:
        closed = float(untrusted_files.read_bytes(RunPaths(run_dir).closed, most=64))
        return closed >= float(str(ends[-1].get("epoch", 0))) if ends else False
    except (OSError, ValueError):
        return False


def events(run_dir: Path) -> list[dict[str, object]]:
    """Events that the batch script recorded, oldest first. Lines that are not events, such as incomplete ones, are skipped."""
    try:
        text = untrusted_files.tail(f"{run_dir}/{_EVENTS}", _EVENTS_BYTES)
    except OSError:
        return []
    return [event for event in json_lines.parse_records(text) if _is_event(event)]


def _is_event(event: dict[str, object]) -> bool:
    """Whether `event` has a name, and numbers where this module reads numbers. The batch script writes some of them as text."""
    name = event.get("event")
    return (
        isinstance(name, str)
        and all(_number(event.get(key, 0)) is not None for key in _NUMBERS.get(name, ()))
        and all(is_usable_number(event.get(key, 0)) for key in ("epoch", "attempt"))
    )


def _of_jobs(record: Manifest, recorded: list[dict[str, object]]) -> dict[str, Any]:
    """The run's jobs; none for an imported run, since these numbers belong to other jobs here."""
    if record.imported is not None:
        return {**_of_events(recorded), "started": (), "imported": True}
    return {**_of_events(recorded), "slurm_id": record.slurm_id, "links": record.links}


def _of_events(recorded: list[dict[str, object]]) -> dict[str, Any]:
    starts = [e for e in recorded if e["event"] == "start"]
    last = recorded[-1] if recorded else {}
    began = max((place for place, e in enumerate(recorded) if e["event"] == "start"), default=0)
    return {
        "started": tuple(number for e in starts if (number := _number(e.get("job_id"))) is not None),
        "nodes": str(starts[-1].get("nodes", "")) if starts else "",
        "restarts": _restarts(recorded),
        "last_event": str(last.get("event", "")),
        "exit_code": _number(last.get("exit_code")) if last.get("event") == "end" else None,
        "asked_to_end": any(e["event"] == "signal" and e.get("name") == "TERM" for e in recorded[began:]),
    }


def _restarts(recorded: list[dict[str, object]]) -> int:
    """How often the ranks started again in one of the run's jobs: after Slurm has queued it again, and inside its allocation."""
    queued: Counter[str] = Counter()
    attempts: Counter[str] = Counter()
    for event in recorded:
        job = str(event.get("job_id"))
        if event["event"] == "start":
            queued[job] = max(queued[job], _number(event.get("restart")) or 0)
        elif event["event"] == "attempt":
            attempts[job] += 1
    # A start whose preflight failed has no attempt; a job that was queued again has at least that many starts.
    return sum(max(queued[job], attempts[job] - 1) for job in {*queued, *attempts})


def _number(value: object) -> int | None:
    text = str(value)
    return int(text) if len(text) < 19 and text.isdecimal() else None


def _digest_in(run_dir: Path) -> str:
    """The image of a run without a readable manifest, from its remaining files, so that the image is not pruned."""
    paths = RunPaths(run_dir)
    for path in (paths.manifest, paths.batch):
        try:
            found = re.search(_DIGEST, untrusted_files.read_bytes(path))
        except OSError:
            continue
        if found:
            return f"sha256:{found[1].decode()}"
    return ""


def _age(run_dir: Path) -> float:
    try:
        return run_dir.stat().st_mtime
    except OSError:
        return 0.0
