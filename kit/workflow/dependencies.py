"""`--after RUN[:ok|any|notok|corr]` as sbatch's dependency, for runs, chains, sweeps and Slurm's own job numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kit.errors import RunError, UsageError
from kit.hosts import status
from kit.record import find_runs
from kit.slurm import client

if TYPE_CHECKING:
    from kit.hosts.host import Queue
    from kit.hosts.status import Status
    from kit.slurm.client import JobId
    from kit.submission.prepare_run import Prepared
    from kit.sweeps.arrays import Array
    from kit.sweeps.record import SweepRecord

# sbatch(1), --dependency.
_TYPES = {"ok": "afterok", "any": "afterany", "notok": "afternotok", "corr": "aftercorr"}


@dataclass(frozen=True)
class After:
    """One `--after`: what to wait for, and how it has to end. corr: each task waits for the task of the same number."""

    name: str
    kind: str

    @property
    def type(self) -> str:
        """sbatch's name of this kind of dependency."""
        return _TYPES[self.kind]


def parse(text: str) -> After:
    """`RUN`, which means `RUN:ok`, or `RUN:KIND`."""
    name, colon, kind = text.rpartition(":")
    if not colon:
        name, kind = text, "ok"
    if not name or kind not in _TYPES:
        raise UsageError(
            f"--after {text}: not written as RUN[:{'|'.join(_TYPES)}]", hint="such as --after digits-2026:ok"
        )
    return After(name, kind)


def with_dependency(prepared: Prepared, texts: Sequence[str], folders: list[Path], *, queue: Queue) -> Prepared:
    """The same job, submitted to wait for others."""
    afters = [parse(text) for text in texts]
    if any(after.kind == "corr" for after in afters):
        raise UsageError("--after RUN:corr pairs the points of two sweeps", hint="use it with 'kit sweep'")
    terms = [one for after in afters for one in _terms(after, folders, queue=queue, env=prepared.env)]
    return with_options(prepared, terms)


def with_options(prepared: Prepared, terms: Sequence[str]) -> Prepared:
    """The same job with these terms in its dependency."""
    *sbatch, script = prepared.plan.argv
    argv = (*sbatch, *_joined(terms), script)
    return replace(prepared, plan=replace(prepared.plan, argv=argv))


def options(afters: Sequence[After], folders: list[Path], *, queue: Queue, env: Mapping[str, str]) -> list[str]:
    """sbatch's options; none if there is nothing left to wait for. RunError if the awaited end can no longer happen."""
    return _joined([one for after in afters for one in _terms(after, folders, queue=queue, env=env)])


def _joined(terms: Sequence[str]) -> list[str]:
    if not terms:
        return []
    if len(terms) > 1 and any("?" in term for term in terms):
        raise UsageError("--after CHAIN cannot be used with a second --after", hint="--after CHAIN:any can")
    # Without this a job whose condition has become impossible would stay in the queue for ever.
    return ["--kill-on-invalid-dep=yes", f"--dependency={','.join(terms)}"]


def pairs(after: After, arrays: Sequence[Array], folders: list[Path]) -> dict[int, list[str]]:
    """Array number -> sbatch's options, which make each task wait for the task of the same number in another sweep."""
    from kit.sweeps import find
    from kit.sweeps.record import read_sweep

    sent = read_sweep(find.find_one(after.name, folders)).submitted
    if [len(a.members) for a in arrays] != [len(a.members) for a in sent]:
        sizes, counts = (", ".join(str(len(a.members)) for a in these) for these in (sent, arrays))
        raise UsageError(
            f"--after {after.name}:corr: the arrays of that sweep have {sizes} tasks, but the arrays of this sweep have {counts}",
            hint="each task waits for the task of the same number, so both need equal arrays; :ok waits for the whole sweep",
        )
    return {
        # Not killed when it can no longer hold: Slurm would kill the whole array for the first pair that has failed.
        array.number: [f"--dependency=aftercorr:{other.job_id}"]
        for array, other in zip(arrays, sent, strict=True)
    }


def _terms(after: After, folders: list[Path], *, queue: Queue, env: Mapping[str, str]) -> list[str]:
    try:
        run_dir = find_runs.find_one(after.name, folders)
    except RunError as no_run:
        if after.name.isdigit():
            # Slurm counts from 1, and answers for 0 as for all jobs.
            if int(after.name) == 0 or not client.knows(after.name, env=env):
                raise RunError(
                    f"--after {after.name}: Slurm knows no job {after.name}, and no run has had this number",
                    hint="leave --after out where that job ended long ago; 'kit runs' and squeue list the others",
                ) from None
            return [f"{after.type}:{after.name}"]
        from kit.sweeps import find
        from kit.sweeps.record import read_sweep

        try:
            folder = find.find_one(after.name, folders)
        except RunError:
            raise no_run from None
        record = read_sweep(folder)
        return _of_sweep(after, record, find.states(folder, record, queue=queue))
    (one,) = status.read_statuses([run_dir], queue=queue)
    return _of_run(after, one)


def _of_run(after: After, one: Status) -> list[str]:
    if not one.active:
        _require_possible(after, one)
        return []
    assert one.manifest.slurm_id is not None
    return [term(after, (one.manifest.slurm_id, *one.manifest.links))]


def term(after: After, jobs: Sequence[JobId]) -> str:
    """The part of sbatch's --dependency for one run. jobs: its job, or the links of its chain."""
    if after.kind == "any":
        return f"afterany:{jobs[-1]}"
    if after.kind == "notok":
        return f"afternotok:{':'.join(map(str, jobs))}"
    # Any one link that ends with 0 ends the chain: `?` is sbatch's or.
    return "?".join(f"afterok:{job}" for job in jobs)


def _of_sweep(after: After, record: SweepRecord, states: dict[int, Status | None]) -> list[str]:
    """The jobs of a sweep: an array as a whole, or its single tasks if some of its points were submitted again."""
    last = {index: array.number for array in record.submitted for index in array.members}
    jobs: list[str] = []
    for array in record.submitted:
        mine = [states[index] for index in array.members if last[index] == array.number]
        on = [one for one in mine if one is not None and one.active]
        for one in mine:
            if one is not None and not one.active:
                _require_possible(after, one)
        whole = len(on) == len(array.members)
        jobs += [str(array.job_id)] if whole else [str(one.manifest.slurm_id) for one in on]
    return [f"{after.type}:{':'.join(jobs)}"] if jobs else []


def _require_possible(after: After, one: Status) -> None:
    """RunError when a run that has ended did not end as it should."""
    good = one.state == "COMPLETED" and not one.exit_code
    if (after.kind == "ok" and not good) or (after.kind == "notok" and good):
        raise RunError(
            f"--after {after.name}:{after.kind}: run {one.run_dir.name} has ended already: {one.state}",
            hint=f"--after {after.name}:any accepts any end" if after.kind == "ok" else "it cannot fail any more",
        )
