"""Makes synthetic jobs in the shape of a published workload model, scaled in time.

Sizes, run times and arrivals: the parameters for all jobs together of Lublin and Feitelson, "The workload on parallel
supercomputers: modeling the characteristics of rigid jobs", J. Parallel Distrib. Comput. 63 (2003) 1105-1122, which were fitted to
the public traces of SDSC Paragon, CTC SP2, KTH SP2 and LANL CM-5 (Parallel Workloads Archive). Limits: users ask for more than they
take, and the share that they take is about uniform (Mu'alem and Feitelson, IEEE Trans. Parallel Distrib. Syst. 12 (2001) 529-543).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

# Lublin and Feitelson 2003. Sizes: shares of serial jobs and of powers of two; the two-stage uniform of log2 of the rest.
_SERIAL, _POWER_OF_2 = 0.244, 0.576
_LEAST, _MIDDLE_BELOW_MOST, _SHARE_BELOW_MIDDLE = 0.8, 2.5, 0.86
# ln of the run time in seconds: two gammas (shape, scale). The share of the first falls with the nodes.
_SHORT, _LONG, _BY_NODES, _SHARE_SHORT = (4.2, 0.94), (312.0, 0.03), -0.0054, 0.78
_LONGEST = 12.0
# ln of the seconds between two arrivals in the busy hours.
_BETWEEN, _LONGEST_BETWEEN = (10.2303, 0.4871), 13.0
# Mu'alem and Feitelson 2001. The share is never 0: no limit is more than 20 times the run time.
_LEAST_SHARE = 0.05
# The longest limit in the traces of CTC and SDSC SP2, in hours.
_MOST_LIMIT_H = 18.0


@dataclass(frozen=True, kw_only=True)
class TraceJob:
    """One job. at: seconds from the first job. nodes. run: seconds. limit: whole minutes, as in Slurm."""

    at: float
    nodes: int
    run: float
    limit: int


def jobs(count: int, *, nodes: int, load: float, scale: float, seed: int) -> list[TraceJob]:
    """Jobs for a machine of `nodes` nodes. load: the node-seconds that they use, divided by those available until the last job
    arrives.

        scale: seconds of the trace for one second here. The same seed gives the same jobs.
    """
    draw = random.Random(seed)
    most = int(_MOST_LIMIT_H * 60 / scale)
    made = [_job(draw, nodes, scale, most) for _ in range(count)]
    between = [math.exp(min(draw.gammavariate(*_BETWEEN), _LONGEST_BETWEEN)) for _ in made]
    span = sum(job.nodes * job.run for job in made) / (load * nodes)
    return [replace(job, at=at * span / sum(between)) for job, at in zip(made, _sums(between), strict=True)]


def _job(draw: random.Random, nodes: int, scale: float, most: int) -> TraceJob:
    size = _size(draw, nodes)
    run = min(_run_time(draw, size) / scale, 60.0 * most)
    share = max(_LEAST_SHARE, draw.random())
    return TraceJob(at=0.0, nodes=size, run=run, limit=min(most, max(1, math.ceil(run / share / 60))))


def _size(draw: random.Random, nodes: int) -> int:
    kind = draw.random()
    if kind <= _SERIAL:
        return 1
    most = math.log2(nodes)
    middle = most - _MIDDLE_BELOW_MOST
    low = draw.random() <= _SHARE_BELOW_MIDDLE
    power = draw.uniform(_LEAST, middle) if low else draw.uniform(middle, most)
    if kind <= _SERIAL + _POWER_OF_2:
        power = round(power)
    return max(1, min(nodes, round(2**power)))


def _run_time(draw: random.Random, nodes: int) -> float:
    share = min(1.0, max(0.0, _BY_NODES * nodes + _SHARE_SHORT))
    while True:
        logarithm = draw.gammavariate(*(_SHORT if draw.random() <= share else _LONG))
        if logarithm <= _LONGEST:
            return math.exp(logarithm)


def _sums(between: list[float]) -> Iterator[float]:
    found = 0.0
    for one in between:
        yield found
        found += one
