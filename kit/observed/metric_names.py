"""One name for a metric that programs and trackers write in different ways: `val loss`, `eval/loss`, `Loss/valid`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

# The names of kit/schema/metrics.py. What is written first in a group is preferred when a source has several.
_ALIASES = {
    "loss": "loss train_loss training_loss loss_train lm_loss train_lm_loss loss_metrics_global_avg_loss avg_loss mean_loss",
    "eval_loss": "eval_loss val_loss valid_loss validation_loss dev_loss loss_val loss_valid loss_validation loss_eval "
    "validation_metrics_loss lm_loss_validation",
    "test_loss": "test_loss loss_test",
    "lr": "lr learning_rate train_lr train_learning_rate lr_train",
    "gradient_norm": "gradient_norm grad_norm gnorm train_grad_norm",
    "tokens_per_second": "tokens_per_second tokens_per_sec tokens_s tokens_sec tok_s tok_sec",
    "images_per_second": "images_per_second images_per_sec images_s img_s imgs_s",
    "accuracy": "accuracy acc",
    "eval_accuracy": "eval_accuracy val_accuracy val_acc validation_accuracy",
}
_OF = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}
_LONGEST = 80


@lru_cache(maxsize=4096)
def standard(name: str) -> str:
    """The kit's name for a metric; for one that the kit has no name for, the name itself in the kit's spelling."""
    return _OF.get(spelled(name), spelled(name))


def spelled(name: str) -> str:
    """A name in small letters, with `_` for what is neither letter nor digit. Units in brackets are removed."""
    plain = re.sub(r"\([^()]*\)", "", name[:_LONGEST]).lower()
    return re.sub(r"[^0-9a-z@%]+", "_", plain).strip("_")


def chosen(names: Iterable[str]) -> dict[str, str]:
    """Name as written -> the name under which it is shown: the kit's own, if no other of these names has a better claim to it.

    A log with both `loss` and `train_loss` means two things by them.
    """
    names = [*dict.fromkeys(names)]
    best: dict[str, tuple[int, str]] = {}
    for name in names:
        one = standard(name)
        order = _ALIASES[one].split().index(spelled(name)) if one in _ALIASES else 0
        if one not in best or order < best[one][0]:
            best[one] = order, name
    return {name: standard(name) if best[standard(name)][1] == name else name for name in names}
