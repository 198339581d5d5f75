"""The next values of a search, from the results of the other points.

For one objective, it uses Gaussian processes, the best known method for few points. For several objectives, or for more keys or
points than these can handle, it uses Optuna's TPE. The sampler is created for each request, from the points' own folders. So no
process runs between two requests, and after a kill -9 or on a full disk, there is at most a point without values.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kit.schema.sweep import Distribution, Search, Value
from kit.sweeps.search import expected_improvement, search_space
from kit.sweeps.search.search_trials import SearchTrial

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


_DIRECTIONS: Mapping[str, Literal["minimize", "maximize"]] = {"min": "minimize", "max": "maximize"}


# The time of a request grows with the cube of the number of points: a second for 300 points with six keys.
_MOST_POINTS = 300
# With fewer results than this, there is nothing to model.
_FEWEST_POINTS = 3


def following(search: Search, goals: Sequence[str], trials: Sequence[SearchTrial], index: int) -> dict[str, Value]:
    """Values for point `index`. goals: 'min' or 'max' of each objective, in the order of `SearchTrial.reached`."""
    if len(goals) == 1 and len(search.keys) <= search_space.MOST_KEYS:
        reached = costs(search, goals[0], trials)
        if len(reached) <= _MOST_POINTS:
            return _by_processes(search, trials, reached, index)
    return _by_tpe(search, goals, trials, index)


def _by_processes(
    search: Search, trials: Sequence[SearchTrial], reached: Mapping[int, float], index: int
) -> dict[str, Value]:
    """Values from Gaussian processes. The first points fill the space evenly; later ones have the largest expected improvement."""
    space = search_space.make_space(search.keys)
    known = max(_FEWEST_POINTS, search.startup // 2)
    if index < search.startup or sum(map(math.isfinite, reached.values())) < known:
        return space.values(space.spread(index, search.seed))
    rng = np.random.default_rng([search.seed, index])
    tried = np.array([space.places(one.values) for one in trials if one.index in reached])
    under_way = np.array([space.places(one.values) for one in trials if one.state == "running" and _known(search, one)])
    return expected_improvement.following(space, tried, list(reached.values()), under_way, rng)


def costs(search: Search, goal: str, trials: Sequence[SearchTrial]) -> dict[int, float]:
    """Point -> its cost: less is better; infinite if it diverged. Points without a result are left out.

    A point that was stopped early has the cost of its last report, but not less than the median of the points that ended.
    """
    sign = -1.0 if goal == "max" else 1.0
    said = [trial for trial in trials if trial.state in {"complete", "pruned"} and _known(search, trial)]
    ended = [sign * trial.reached[0] for trial in said if trial.state == "complete"]
    middle = statistics.median(ended) if ended else -math.inf
    by_point = {}
    for trial in said:
        if trial.state == "complete":
            cost = sign * trial.reached[0]
        else:
            last = sign * trial.steps[max(trial.steps)] if trial.steps else math.inf
            cost = max(last, middle) if math.isfinite(last) else math.inf
        by_point[trial.index] = cost
    return by_point


def _known(search: Search, trial: SearchTrial) -> bool:
    """Whether its values are of this search."""
    known = {key: _distribution(how) for key, how in search.keys.items()}
    return all(_place(how, known[key], trial.values.get(key)) is not None for key, how in search.keys.items())


def _by_tpe(search: Search, goals: Sequence[str], trials: Sequence[SearchTrial], index: int) -> dict[str, Value]:
    """Values from Optuna's TPE, over all keys together. Running points count as bad ones, so two that ask at once differ.

    Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=(search.seed * 1_000_003 + index) % 2**32,
            n_startup_trials=search.startup,
            multivariate=True,
            constant_liar=True,
        )
    directions = [_DIRECTIONS[goal] for goal in goals]
    study = optuna.create_study(sampler=sampler, directions=directions)
    known = {key: _distribution(how) for key, how in search.keys.items()}
    study.add_trials([made for one in trials if (made := _frozen(one, search, known, len(goals))) is not None])
    found = study.ask(known).params
    return {key: _value(how, found[key]) for key, how in search.keys.items()}


def _distribution(how: Distribution) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if how.choice is not None:
        # Use indices: a value may be a list, and 1 and true differ.
        return CategoricalDistribution(range(len(how.choice)))
    low, high = how.uniform or how.log_uniform or (0.0, 1.0)
    log = how.log_uniform is not None
    if how.integer:
        return IntDistribution(max(round(low), 1) if log else round(low), round(high), log=log)
    return FloatDistribution(low, high, log=log)


def _value(how: Distribution, found: Any) -> Value:
    if how.choice is not None:
        chosen: Value = how.choice[found]
        return chosen
    # As for random draws: a person can read and type six digits.
    return int(found) if how.integer else float(f"{found:.6g}")


def _frozen(
    trial: SearchTrial, search: Search, known: Mapping[str, BaseDistribution], objectives: int
) -> FrozenTrial | None:
    """A point in Optuna's form; None if it says nothing: it waits, has failed, or has values of another search."""
    import optuna

    if trial.state in {"waiting", "failed"} or (trial.state == "pruned" and objectives > 1):
        return None
    params = {}
    for key, how in search.keys.items():
        place = _place(how, known[key], trial.values.get(key))
        if place is None:
            return None
        params[key] = place
    state = {
        "running": optuna.trial.TrialState.RUNNING,
        "complete": optuna.trial.TrialState.COMPLETE,
        "pruned": optuna.trial.TrialState.PRUNED,
    }[trial.state]
    return optuna.trial.create_trial(
        state=state,
        values=list(trial.reached) if trial.state == "complete" else None,
        params=params,
        distributions=dict(known),
        intermediate_values=dict(trial.steps) if trial.state == "pruned" else None,
    )


def _place(how: Distribution, known: optuna.distributions.BaseDistribution, value: Value | None) -> Any:
    """The value in the distribution's form; None if it is not in the distribution."""
    if how.choice is not None:
        same = [place for place, one in enumerate(how.choice) if one == value and type(one) is type(value)]
        return same[0] if same else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, high = getattr(known, "low"), getattr(known, "high")  # noqa: B009 - of two of its kinds
    # After rounding to six digits, a value may be slightly outside.
    inside = min(max(value, low), high)
    return inside if abs(inside - value) <= 1e-5 * max(1e-300, abs(value)) else None
