"""Tells from a metric's name whether a small or a large value is better."""

from __future__ import annotations

import re
from typing import Literal

Goal = Literal["min", "max"]

_SMALL = re.compile(r"loss(es)?|perplexity|ppl|errors?|err|nll|wer|cer|mse|rmse|mae|bpb|bpc|latency|seconds|fid")
_LARGE = re.compile(r"accuracy|acc|f1|rewards?|score|auc|auroc|bleu|rouge|precision|recall|throughput|iou")


def goal_of(metric: str) -> Goal | None:
    """The goal that the name's words say; None if none says it, or if they contradict each other, as in `reward_loss`."""
    words = re.split(r"[^a-z0-9]+", metric.lower())
    small, large = any(map(_SMALL.fullmatch, words)), any(map(_LARGE.fullmatch, words))
    if small == large:
        return None
    return "min" if small else "max"
