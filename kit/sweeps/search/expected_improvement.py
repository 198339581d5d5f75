"""Chooses the next point of a search: the one for which Gaussian processes expect the largest improvement.

Jones et al., "Efficient Global Optimization of Expensive Black-Box Functions", Journal of Global Optimization 1998.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kit.schema.sweep import Value
from kit.sweeps.search import gaussian_process
from kit.sweeps.search.gaussian_process import Floats
from kit.sweeps.search.search_space import Space

# Points that are looked at: anywhere, near the best ones, and in each turn near the most promising ones, by ever less.
_ANYWHERE, _NEAR_BEST, _NEAR = 1000, ((150, 0.02), (150, 0.1)), (0.1, 0.05, 0.02, 0.007)
_BEST, _PROMISING, _EACH = 5, 10, 15
_erf = np.vectorize(math.erf, otypes=[np.float64])


def following(
    space: Space, tried: Floats, costs: Sequence[float], under_way: Floats, rng: np.random.Generator
) -> dict[str, Value]:
    """Values for the next point.

    tried, under_way: places of points. costs: of each tried point; less is better, infinite if it diverged. At least one is finite.
    """
    metric = _flattened(np.array(costs))
    seen = space.coordinates(tried)
    waiting = space.coordinates(under_way) if len(under_way) else np.empty((0, seen.shape[1]))
    processes = gaussian_process.processes(seen, metric, space.slices, rng)
    processes = [one.believing(waiting, metric) for one in processes]
    taken = {tuple(row) for row in np.vstack([seen, waiting]).tolist()}

    def promise(places: Floats) -> Floats:
        at = space.coordinates(places)
        every = np.array([_log_improvement(*one.predict(at), float(metric.min())) for one in processes])
        most = every.max(0)
        found: Floats = most + np.log(np.exp(every - most).mean(0))
        # Where all values are of a list, a place may be tried twice, but only when there is no other.
        return np.where([tuple(row) in taken for row in at.tolist()], -1e9, found)

    best = tried[np.argsort(metric)[:_BEST]]
    near = [space.near(best[rng.integers(len(best), size=count)], by, rng) for count, by in _NEAR_BEST]
    places = np.vstack([rng.uniform(size=(_ANYWHERE, len(space.sides))), *near])
    promised = promise(places)
    for by in _NEAR:
        order = np.argsort(-promised)[:_PROMISING]
        places, promised = places[order], promised[order]
        more = space.near(np.repeat(places, _EACH, axis=0), by, rng)
        places, promised = np.vstack([places, more]), np.concatenate([promised, promise(more)])
    return space.values(places[int(np.argmax(promised))])


def _flattened(costs: Floats) -> Floats:
    """The logarithm of each point's distance to the best point, with mean 0 and deviation 1.

    So a small difference near the best point counts as much as a large one among bad points. Distances are divided by their median:
    the metric's unit and zero do not matter. A point that diverged counts as the worst of the others.
    """
    finite = costs[np.isfinite(costs)]
    costs = np.where(np.isfinite(costs), costs, finite.max())
    far = costs - costs.min()
    middle = float(np.median(far)) or float(far.max()) or 1.0
    flat = np.log(0.1 + far / middle)
    found: Floats = (flat - flat.mean()) / (float(flat.std()) or 1.0)
    return found


def _log_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """The logarithm of the expected improvement. Far from the best point the improvement itself would round to 0 everywhere."""
    far = (best - mean) / deviation
    density = np.exp(-0.5 * far**2) / math.sqrt(2 * math.pi)
    plain = np.log(np.maximum(far * 0.5 * (1 + _erf(far / math.sqrt(2))) + density, 1e-300))
    # For far below 0: density / far ** 2.
    tail = -0.5 * far**2 - 0.5 * math.log(2 * math.pi) - 2 * np.log(np.maximum(-far, 1.0))
    found: Floats = np.log(deviation) + np.where(far < -5, tail, plain)
    return found
