"""Submits a sweep on a cluster over ssh: sends its folder, then each array, which is submitted exactly once even if the connection
breaks.

Every point's record has its place in an array from the start; the cluster adds the job's number to all of them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kit.errors import JobRefusedError, SlurmError
from kit.hosts import clusters, remote_send
from kit.hosts.remote_send import Errand
from kit.hosts.ssh import SshHost
from kit.slurm import client
from kit.sweeps import submit as sending
from kit.sweeps.record import SentArray, SweepPaths, SweepRecord

if TYPE_CHECKING:
    from kit.sweeps.arrays import Array
    from kit.sweeps.points.expand import Point
    from kit.sweeps.prepare import PreparedSweep

# The job number of an array that is not submitted yet.
_NONE = 0


def submit(
    prepared: PreparedSweep, cluster: SshHost, arrays: Sequence[Array], *, after: sending.After, now: datetime
) -> SweepRecord:
    """Submit a new sweep. JobRefusedError when sbatch refuses one of its arrays; then nothing of it is left."""
    _prepare(prepared, cluster, arrays, after)
    unsent = _sent(arrays, after, dict.fromkeys((a.number for a in arrays), _NONE))
    record = sending.unsent_record(prepared, now=now).model_copy(update={"arrays": unsent})
    _place(prepared, cluster, record, arrays, prepared.points, kind="place", now=now)
    try:
        numbers = _send(prepared, cluster, arrays, after)
    except JobRefusedError:
        remote_send.remove(cluster, prepared.folder.name)
        raise
    return record.model_copy(update={"arrays": _sent(arrays, after, numbers)})


def resubmit(
    prepared: PreparedSweep,
    cluster: SshHost,
    record: SweepRecord,
    arrays: Sequence[Array],
    wanted: Sequence[Point],
    *,
    now: datetime,
) -> SweepRecord:
    """Submit these points in the sweep's folder, again or for the first time. Their earlier output stays."""
    _prepare(prepared, cluster, arrays, {})
    known = {p.index for p in record.points}
    new = sorted((p for p in wanted if p.index not in known), key=lambda p: p.index)
    points = (*record.points, *map(sending.recorded, new))
    unsent = _sent(arrays, {}, dict.fromkeys((a.number for a in arrays), _NONE))
    written = record.model_copy(update={"points": points, "arrays": (*record.arrays, *unsent)})
    _place(prepared, cluster, written, arrays, wanted, kind="over", now=now)
    numbers = _send(prepared, cluster, arrays, {})
    return written.model_copy(update={"arrays": (*record.arrays, *_sent(arrays, {}, numbers))})


def _prepare(prepared: PreparedSweep, cluster: SshHost, arrays: Sequence[Array], after: sending.After) -> None:
    """Send everything that the sweep needs, and ask Slurm whether it would accept it."""
    if prepared.sweep.search:
        clusters.refuse(cluster.name, "a sweep with a search, whose batch jobs run the kit,")
    sending.ask(arrays, prepared.first.env, after)


def _place(
    prepared: PreparedSweep,
    cluster: SshHost,
    record: SweepRecord,
    arrays: Sequence[Array],
    points: Sequence[Point],
    *,
    kind: remote_send.Placing,
    now: datetime,
) -> None:
    facts: dict[int, Mapping[str, object]] = {
        index: {"array_task": task, "argv": _errand(prepared, array, {}).argv}
        for array in arrays
        for task, index in enumerate(array.members)
    }
    with tempfile.TemporaryDirectory(prefix="kit-sweep-") as place:
        root = Path(place)
        sending.write_runs(prepared, points, root, now=now, facts=facts)
        sending.write_arrays(arrays, prepared.folder, root)
        record.write(SweepPaths(root))
        content = remote_send.packed(root)
    remote_send.until_known(cluster, Errand(folder=prepared.folder.name, kind=kind), content)
    cluster.forget_queue()


def _send(prepared: PreparedSweep, cluster: SshHost, arrays: Sequence[Array], after: sending.After) -> dict[int, int]:
    """Submit each array and return its job. When one is refused, those before it are cancelled."""
    numbers: dict[int, int] = {}
    env = prepared.first.env
    try:
        for array in arrays:
            errand = _errand(prepared, array, after)
            numbers[array.number] = remote_send.until_known(cluster, errand, None, env=dict(env))
    except JobRefusedError:
        for job_id in numbers.values():
            with contextlib.suppress(SlurmError):
                client.cancel(job_id, env=env)
        raise
    return numbers


def _errand(prepared: PreparedSweep, array: Array, after: sending.After) -> Errand:
    options = after.get(array.number, ())
    return remote_send.array_errand(str(prepared.folder.parent), prepared.folder.name, array.number, options)


def _sent(arrays: Sequence[Array], after: sending.After, numbers: Mapping[int, int]) -> tuple[SentArray, ...]:
    return tuple(
        SentArray(
            number=array.number,
            job_id=numbers[array.number],
            members=array.members,
            argv=("sbatch", "--parsable", *after.get(array.number, ()), str(array.script)),
        )
        for array in arrays
    )
