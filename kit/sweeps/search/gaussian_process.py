"""Models a sweep's metric over the unit cube by Gaussian processes. They predict mean and deviation at points that were not tried.

The kernel is Matérn 5/2 with a separate length for each key, plus noise. Lengths, amplitude and noise are not fitted once. They are
drawn from their posterior distribution by slice sampling (Neal, "Slice Sampling", Annals of Statistics 2003; for this use Snoek et
al., "Practical Bayesian Optimization of Machine Learning Algorithms", NeurIPS 2012), because with ten points a single best fit is
mostly wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Of the logarithms of length, amplitude and noise: where they are to be expected, and how far from there. Metrics are standardized.
_LENGTH, _AMPLITUDE, _NOISE = (math.log(0.5), 1.0), (0.0, 0.7), (math.log(0.02), 1.2)
_JITTER = 1e-6
_FIRST, _BURN, _KEPT = 30, 4, 5


@dataclass(frozen=True)
class GaussianProcess:
    """One process: points in the unit cube, their metric, and the drawn lengths, amplitude and noise.

    scale: 1 / length of each coordinate. cholesky: of the points' covariance, lower. weights: its inverse times metric.
    """

    points: Floats
    scale: Floats
    amplitude: float
    noise: float
    cholesky: Floats
    weights: Floats

    def predict(self, points: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation, without the noise."""
        across = _covariance(points, self.points, self.scale, self.amplitude)
        solved = np.linalg.solve(self.cholesky, across.T)
        return across @ self.weights, np.sqrt(np.maximum(self.amplitude - (solved**2).sum(0), 1e-12))

    def believing(self, points: Floats, metric: Floats) -> GaussianProcess:
        """The process with the running points added, as if each had reached its predicted mean, so that no point is tried twice.

        metric: of the points that the process already has. Ginsbourger et al., "Kriging Is Well-Suited to Parallelize
        Optimization", 2010.
        """
        if not len(points):
            return self
        mean, _ = self.predict(points)
        return _process(
            np.vstack([self.points, points]), np.concatenate([metric, mean]), self.scale, self.amplitude, self.noise
        )


def processes(points: Floats, metric: Floats, keys: Sequence[slice], rng: np.random.Generator) -> list[GaussianProcess]:
    """Several processes, drawn by their likelihood. metric: standardized. keys: the coordinates of each key, which share a
    length."""

    def density(drawn: Floats) -> float:
        try:
            made = _of(points, metric, keys, drawn)
        except np.linalg.LinAlgError:
            return -math.inf
        fit = -0.5 * float(metric @ made.weights) - float(np.log(np.diag(made.cholesky)).sum())
        return fit - 0.5 * float((((drawn - usual) / spread) ** 2).sum())

    usual, spread = np.array([_LENGTH] * len(keys) + [_AMPLITUDE, _NOISE]).T
    starts = [usual, *(usual + spread * rng.normal(size=(_FIRST, len(usual))))]
    at = max(starts, key=density)
    kept = []
    for turn in range(_BURN + _KEPT):
        at = _slice_sample(density, at, rng)
        if turn >= _BURN:
            kept.append(_of(points, metric, keys, at))
    return kept


def _slice_sample(density: Callable[[Floats], float], at: Floats, rng: np.random.Generator) -> Floats:
    """One more draw: each coordinate in turn, from an interval that is widened and then narrowed around its old value."""
    at = at.copy()
    height = density(at)
    for axis in rng.permutation(len(at)):

        def along(value: float, axis: int = int(axis)) -> float:
            moved = at.copy()
            moved[axis] = value
            return density(moved)

        level = height + math.log(1.0 - rng.uniform())
        low = float(at[axis]) - rng.uniform()
        high = low + 1.0
        for _ in range(3):
            if along(low) < level:
                break
            low -= 1.0
        for _ in range(3):
            if along(high) < level:
                break
            high += 1.0
        for _ in range(20):
            value = rng.uniform(low, high)
            reached = along(value)
            if reached >= level:
                at[axis], height = value, reached
                break
            low, high = (value, high) if value < at[axis] else (low, value)
    return at


def _of(points: Floats, metric: Floats, keys: Sequence[slice], drawn: Floats) -> GaussianProcess:
    scale = np.empty(points.shape[1])
    for key, length in zip(keys, drawn[:-2], strict=True):
        scale[key] = math.exp(-length)
    return _process(points, metric, scale, math.exp(drawn[-2]), math.exp(drawn[-1]))


def _process(points: Floats, metric: Floats, scale: Floats, amplitude: float, noise: float) -> GaussianProcess:
    covariance = _covariance(points, points, scale, amplitude)
    covariance[np.diag_indices(len(points))] += noise + _JITTER
    cholesky = np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    weights: Floats = np.linalg.solve(cholesky.T, np.linalg.solve(cholesky, metric))
    return GaussianProcess(points, scale, amplitude, noise, cholesky, weights)


def _covariance(these: Floats, those: Floats, scale: Floats, amplitude: float) -> Floats:
    a, b = these * scale, those * scale
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
    far = np.sqrt(5 * np.maximum(squares, 0.0))
    covariance: Floats = amplitude * (1 + far + far**2 / 3) * np.exp(-far)
    return covariance
