"""The next values of a search, by Optuna's TPE over all that is known of the other points.

The sampler is made anew for each question, from the points' own folders. So nothing has to live on between two questions, and
what a kill -9 or a full disk leaves is a point without values.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kit.spec.sweep import Distribution, Search, Value
from kit.sweeps.search_trials import SearchTrial

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


_DIRECTIONS: Mapping[str, Literal["minimize", "maximize"]] = {"min": "minimize", "max": "maximize"}


def following(search: Search, goals: Sequence[str], trials: Sequence[SearchTrial], index: int) -> dict[str, Value]:
    """Values for point `index`. goals: 'min' or 'max' of each objective, in the order of `SearchTrial.reached`.

    TPE: Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011; over all keys together, and with the points
    that run counted as bad ones, so that two which ask at once are not given the same.
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
        # By their places: a value may be a list, and 1 and true are not the same.
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
    # As draws at random have them: six digits can be read and typed again.
    return int(found) if how.integer else float(f"{found:.6g}")


def _frozen(
    one: SearchTrial, search: Search, known: Mapping[str, BaseDistribution], objectives: int
) -> FrozenTrial | None:
    """A point as Optuna has it; None for one that says nothing: it waits, it failed, or its values are of another search."""
    import optuna

    if one.state in {"waiting", "failed"} or (one.state == "pruned" and objectives > 1):
        return None
    params = {}
    for key, how in search.keys.items():
        place = _place(how, known[key], one.values.get(key))
        if place is None:
            return None
        params[key] = place
    state = {
        "running": optuna.trial.TrialState.RUNNING,
        "complete": optuna.trial.TrialState.COMPLETE,
        "pruned": optuna.trial.TrialState.PRUNED,
    }[one.state]
    return optuna.trial.create_trial(
        state=state,
        values=list(one.reached) if one.state == "complete" else None,
        params=params,
        distributions=dict(known),
        intermediate_values=dict(one.steps) if one.state == "pruned" else None,
    )


def _place(how: Distribution, known: optuna.distributions.BaseDistribution, value: Value | None) -> Any:
    """The value as the distribution has it; None where it is not in it."""
    if how.choice is not None:
        same = [place for place, one in enumerate(how.choice) if one == value and type(one) is type(value)]
        return same[0] if same else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    low, high = getattr(known, "low"), getattr(known, "high")  # noqa: B009 - of two of its kinds
    # Six digits may lie a little outside.
    inside = min(max(value, low), high)
    return inside if abs(inside - value) <= 1e-5 * max(1e-300, abs(value)) else None
