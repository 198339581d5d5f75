"""`kit bisect`: rounds of runs between a good run and a bad one, until one change is left. A restarted bisection continues.

The runs of a round are separate jobs, not tasks of one array. An array has one script, and so one workspace, one image and one list
of nodes; but these differ here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from kit.bisection import record as records
from kit.bisection import search
from kit.bisection.changes import KINDS, Change, Kind
from kit.bisection.judge import Criterion, Ended, judge
from kit.bisection.record import BisectionRecord, Trial
from kit.bisection.state_run import Pair
from kit.errors import ConfigError, EngineError, ImageError, JobRefusedError, RunError, SlurmError, UsageError
from kit.hosts import status, whole_folder
from kit.hosts.clusters import find_host
from kit.hosts.status import Status
from kit.record import manifest
from kit.record.unmade_points import POINTS
from kit.schema.run_paths import RunPaths
from kit.schema.schema_base import Model
from kit.slurm import client, short_forms
from kit.submission import catch_up, submit

# A killed `kit bisect` may have called sbatch just before; Slurm gets the job within this time.
_SENDING_S = 10.0
Say = Callable[[str], None]
# Returns the answer of `kit why` for a run that has ended.
Explain = Callable[[Path], Ended]


class Result(Model):
    """The result of a bisection. changes: those that may have made it bad: one, or several if states between them are untestable.

    good, bad: the runs before and after these changes.
    """

    conclusion: str
    changes: tuple[Change, ...]
    good: Trial
    bad: Trial
    rounds: int
    runs: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """One bisection. folder: of its record. explain: returns `kit why`'s answer for an ended run. width: states in one round."""

    folder: Path
    pair: Pair
    explain: Explain
    width: int = 1

    def run(self, say: Say) -> Result:
        """Run all remaining rounds.

        say is called for each run. SlurmError if Slurm cannot be asked; the same command then continues.
        """
        with self._exclusive():
            known = self._record()
            while waiting := [one.state for one in known.points if one.verdict is None] or self._next(known):
                known = self._round(known, waiting, say)
        return result(known)

    def _record(self) -> BisectionRecord:
        known = records.read_bisection(self.folder)
        if known is None:
            raise RunError(f"{self.folder}: no bisection was started in this folder")
        return known

    def _next(self, known: BisectionRecord) -> list[int]:
        """The next states to try. Also empty if a repeated end has another verdict than the original run."""
        verdicts, last = known.verdicts, len(known.changes)
        if verdicts.get(0, "good") != "good" or verdicts.get(last, "bad") != "bad":
            return []
        return search.next_states(verdicts, last, self.width)

    def _round(self, known: BisectionRecord, states: Sequence[int], say: Say) -> BisectionRecord:
        """Submit the states that are not submitted yet, and wait for all of them."""
        begun = {one.state for one in known.points}
        number = known.rounds + 1
        for state in states:
            if state not in begun:
                known = known.with_point(Trial(state=state, round=number, run_dir="", verdict=None))
        # Record the whole round before submitting, so that after a kill it is the same round.
        known.write(self.folder)
        for state in states:
            known = self._submitted(known, known.find_trial(state), say)
        for state in states:
            point = known.find_trial(state)
            if point.verdict is None:
                known = self._judged(known, point, say)
        return known

    def _submitted(self, known: BisectionRecord, point: Trial, say: Say) -> BisectionRecord:
        """Make sure that Slurm has the state's job. A state that cannot be submitted is untestable."""
        if point.run_dir and self._is_submitted(Path(point.run_dir)):
            return known
        state = point.state
        try:
            prepared = self.pair.prepare_state(
                known.changes[:state], known.changes, run_id=self._run_id(known, state), folder=self.folder
            )
            point = point.model_copy(update={"run_dir": str(prepared.plan.run_dir)})
            # Record the run folder before submitting, so that the run is found again after a kill.
            known = known.with_point(point)
            known.write(self.folder)
            sent = submit.submit(prepared)
        except (ConfigError, ImageError, RunError, JobRefusedError) as error:
            # A missing engine also says nothing about the state.
            if state in {0, len(known.changes)} or isinstance(error, EngineError):
                raise
            said = f"it cannot be submitted: {error.message.splitlines()[0]}"
            point = point.model_copy(update={"run_dir": "", "verdict": "untestable", "said": said})
            known = known.with_point(point)
            known.write(self.folder)
            say(f"round {point.round}: state {state} of {len(known.changes)}: {said}")
            return known
        say(f"round {point.round}: state {state} of {len(known.changes)}: job {sent.job_id}, run {sent.run_id}")
        return known

    def _run_id(self, known: BisectionRecord, state: int) -> str:
        return f"{self.pair.good.manifest.job_name}-{self.folder.name}-{state}"

    def _is_submitted(self, run_dir: Path) -> bool:
        """Whether Slurm has had its job. A run folder that was written but not submitted is removed, to be submitted again."""
        path = RunPaths(run_dir).manifest
        if not path.exists():
            return False
        run_manifest = manifest.read_manifest(path)
        (now,) = status.read_statuses([run_dir], queue=catch_up.queue())
        if run_manifest.job_id is not None or now.job_id is not None:
            return True
        if not find_host(run_manifest.cluster).is_up():
            raise SlurmError(
                f"cluster {run_manifest.cluster!r} is not up", hint="bring it up, and give the same command again"
            )
        while True:
            young = time.time() - path.stat().st_mtime < _SENDING_S
            scripts = client.scripts(env=find_host(run_manifest.cluster).env())
            job_id = scripts.get(str(RunPaths(run_dir).batch))
            if job_id is not None:
                run_manifest.model_copy(update={"job_id": job_id}).write(path)
                return True
            if not young:
                whole_folder.remove(run_dir)
                return False
            time.sleep(1)

    def _judged(self, known: BisectionRecord, point: Trial, say: Say) -> BisectionRecord:
        run_dir = Path(point.run_dir)
        status.wait(run_dir, queue=catch_up.queue(), on_poll=_require_up)
        verdict, said = judge(known.by, self.explain(run_dir))
        known = known.with_point(point.model_copy(update={"verdict": verdict, "said": said}))
        known.write(self.folder)
        say(f"round {point.round}: state {point.state} of {len(known.changes)}: {verdict}: {said}")
        return known

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Allow one process at a time on this machine. The system releases the lock of a killed process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / "lock")
        try:
            with contextlib.suppress(NotImplementedError):  # a file system without locks
                lock.acquire(timeout=0)
        except Timeout:
            raise RunError(
                f"{self.folder.name}: another kit bisect works on it", hint="wait for it, or end it"
            ) from None
        try:
            yield
        finally:
            lock.release()


def begin(
    pair: Pair, by: Criterion, ends: tuple[Ended, Ended], *, over: Sequence[Kind], explain: Explain, width: int
) -> Bisection:
    """The bisection of two runs that have ended: a new one, or an earlier one with the same arguments.

    UsageError if the criterion does not distinguish the two runs, or if there is no difference that can be tried.
    """
    good, bad = (end.status.run_dir for end in ends)
    kinds = [kind for kind in KINDS if kind in over]
    words = json.dumps([str(good), str(bad), by.model_dump(mode="json"), kinds])
    name = f"bisect-{hashlib.sha256(words.encode()).hexdigest()[:8]}"
    folder = _runs_dir(good) / records.FOLDER / name
    bisection = Bisection(folder=folder, pair=pair, explain=explain, width=width)
    if records.read_bisection(folder) is None:
        for end, wanted in zip(ends, ("good", "bad"), strict=True):
            found = judge(by, end)
            if found.verdict != wanted:
                run = end.status.run_dir.name
                raise UsageError(
                    f"run {run} was named as the {wanted} one, but it is {found.verdict}: {found.said}",
                    hint=f"kit why {run}",
                )
        changes, left_out = pair.changes(kinds)
        if not changes:
            raise UsageError(
                f"nothing differs between {good.name} and {bad.name} that can be tried"
                + "".join(f"\n  {difference}" for difference in left_out),
                hint=f"kit diff {good.name} {bad.name}",
            )
        BisectionRecord(good=str(good), bad=str(bad), by=by, changes=tuple(changes), left_out=tuple(left_out)).write(
            folder
        )
    return bisection


def result(known: BisectionRecord) -> Result:
    """The concluding sentence, and the runs before and after the change that made it bad."""
    verdicts, last = known.verdicts, len(known.changes)
    low, high = search.interval(verdicts, last)
    if verdicts[0] != "good" or verdicts[last] != "bad":
        low, high = 0, last
    good, bad = known.find_trial(low), known.find_trial(high)
    changes = known.changes[low:high]
    if verdicts[0] != "good":
        conclusion = f"the good run is {verdicts[0]} when it is run again ({good.said}): no change made the difference"
    elif verdicts[last] != "bad":
        conclusion = f"the bad run is {verdicts[last]} when it is run again ({bad.said}): no change made it bad"
    elif len(changes) == 1:
        conclusion = f"{changes[0].text} made it bad: with it {bad.said}, without it {good.said}"
    else:
        named = f"{changes[0].text} to {changes[-1].text}"
        conclusion = f"one of {len(changes)} changes made it bad, and no state between them could be tried: {named}"
    runs = sum(bool(one.run_dir) and one.verdict is not None for one in known.points)
    return Result(
        conclusion=conclusion,
        changes=changes,
        good=good,
        bad=bad,
        rounds=known.rounds,
        runs=runs,
        left_out=known.left_out,
    )


def nodes_of(one: Status) -> tuple[str, ...]:
    """The nodes of a run's last start."""
    return short_forms.expand_nodes(one.nodes)


def _require_up(one: Status) -> None:
    if not find_host(one.facts.cluster).is_up():
        raise SlurmError(
            f"cluster {one.facts.cluster!r} is not up", hint="bring it up, and give the same command again"
        )


def _runs_dir(run_dir: Path) -> Path:
    return run_dir.parent.parent.parent if run_dir.parent.name == POINTS else run_dir.parent
