"""Reads the figures in one line of a program's log: the step, the epoch, and named numbers.

A line is read as words and numbers, from left to right, in time that grows with its length only. Known are a bar of tqdm or rich,
a JSON object, a Python dict, and text such as `step 10`, `iter 10: loss 2.5`, `Epoch [1/3], Step [5/100], Loss: 2.1`,
`iteration 10/ 100 | lm loss: 2.5E+00 |`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field

from kit.observed.metric_names import standard

MOST_CHARACTERS = 4096
_MOST_VALUES = 64
_LIMIT = 1 << 53

_STEP_NAMES = (
    "global_step", "step", "_step", "iteration", "iter", "it", "itr", "update", "trainer/global_step", "train/global_step",
    "optimizer_step", "global_steps",
)  # fmt: skip
_COUNTERS = frozenset({*_STEP_NAMES, "epoch", "batch"})
# `train step 5` is a step; `tokens per step: 5` and `saved at step 5` are not.
_BEFORE_STEP = frozenset({"train", "training", "global", "optimizer", "optim", "trainer", "current"})
# Metrics that programs write without a colon: `loss 2.5`, `train loss 2.5`.
_KNOWN = frozenset(
    (
        "loss", "lr", "acc", "accuracy", "acc@1", "acc@5", "ppl", "perplexity", "bpb", "mfu", "reward", "norm", "gnorm", "error",
        "residual", "auc", "f1", "score", "tok/s", "tok/sec", "tokens/s", "tokens/sec", "tps", "it/s",
    )
)  # fmt: skip
# The place of a logging call, and Lightning's number of a logger's folder.
_NOT_METRICS = (".py", ".cpp", "v_num")
_FILLERS = frozenset({"is", "of", "the", "average", "avg", "mean"})
_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:[eE][-+]?\d{1,4})?"
# Words first: most of a line are words. `nan` and `inf` are words, too.
_TOKEN = re.compile(
    rf"(?P<word>\(?[A-Za-z_][\w/@.%()-]*)|(?P<number>(?<![\w.]){_NUMBER})(?P<unit>[A-Za-z%][\w/%().]*)?|(?P<mark>\S)"
)
_NOT_FINITE = frozenset({"nan", "inf", "-nan", "-inf"})
_DIGIT = re.compile("[0-9]")
_BAR = re.compile(
    r"(?P<step>\d{1,15})/(?P<total>\d{1,15}) \[(?P<took>[\d:]{4,12})<[^,\]]{1,16}, *(?P<rate>[\d.]{1,12}|\?) ?"
    r"(?P<unit>[^\s,/\]]{0,16}/s|s/[^\s,\]]{1,16})(?:, (?P<more>[^\]]*))?\]"
)
_ENDLESS_BAR = re.compile(
    r"(?:^|: )(?P<step>\d{1,15})it \[(?P<took>[\d:]{4,12}), *(?P<rate>[\d.]{1,12}|\?) ?(?P<unit>it/s|s/it)"
    r"(?:, (?P<more>[^\]]*))?\]"
)
_RICH_BAR = re.compile(
    r"(?P<step>\d{1,15})/(?P<total>\d{1,15}) (?P<took>\d{1,3}:\d\d:\d\d) . \S{1,9} +(?P<rate>[\d.]{1,12})(?P<unit>it/s)(?P<more>.*)"
)
_NOT_TRAINING = re.compile(
    r"load|fetch|\bmap\b|token|valid|\bval|eval|test|sanity|generate|generating|generation|predict|filter|save|saving|shard|import|"
    r"extract|prepar|captur|read|writ|compil|cache|caching",
    re.IGNORECASE,
)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PAIR = re.compile(rf"['\"]([\w/ .@-]{{1,64}})['\"]: ['\"]?({_NUMBER}|nan|inf)['\"]?(?=[,}}])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Line:
    """The figures of one line.

    label: what the step was read from, such as `iter N`; empty if the line has no step. step, total: of the run, or of the epoch.
    bar: seconds that a progress bar has been up; None for other lines. values: by the name in the log. explicit: the line is a
    record of metrics, so that it counts without a step of its own.
    """

    label: str = ""
    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    bar: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    explicit: bool = False


def read_line(text: str) -> Line | None:
    """The figures of a line, without its end; None if it has none."""
    text = _COLOUR.sub("", text[:MOST_CHARACTERS]).strip() if "\x1b" in text else text[:MOST_CHARACTERS].strip()
    if not _DIGIT.search(text):
        return None
    if ("/s" in text or "s/" in text or "?" in text) and (found := _of_bar(text)):
        return found if found.label else None
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end and (record := _of_record(text[start : end + 1])):
        return record
    return _Words().line(text)


def _of_bar(text: str) -> Line | None:
    """A progress bar; without a label if it is of something else than training."""
    bar = _BAR.search(text) or _ENDLESS_BAR.search(text) if "[" in text else None
    if bar is None and "it/s" in text:
        bar = _RICH_BAR.search(text)
    if bar is None:
        return None
    before = text[: bar.start()].partition("%|")[0].rstrip(" 0123456789")
    if _NOT_TRAINING.search(before):
        return Line()
    named = _Words().line(before + text[len(before) : bar.start()].partition("%|")[0].rpartition(":")[0])
    epoch = named.epoch if named else None
    if epoch is not None and bar.re is _RICH_BAR:
        # Lightning counts from 0 here.
        epoch += 1
    values = _Words().line(bar["more"] or "")
    rate = number(bar["rate"])
    speed = {}
    if rate and "/s" in bar["unit"]:
        speed = {"steps_per_second": rate}
    elif rate:
        speed = {"steps_per_second": 1 / rate}
    took = sum(int(part or 0) * 60**place for place, part in enumerate(reversed(bar["took"].split(":")[-4:])))
    return Line(
        label="progress bar, by epoch" if epoch is not None else "progress bar",
        step=int(bar["step"]),
        total=int(bar["total"]) if "total" in bar.groupdict() else None,
        epoch=epoch,
        bar=float(took),
        values={**(values.values if values else {}), **speed},
    )


def _of_record(text: str) -> Line | None:
    """A JSON object, or the text of a Python dict."""
    try:
        record = json.loads(text)
        pairs = [(str(key), number(value)) for key, value in record.items()][:_MOST_VALUES]
        kind = "JSON"
    except (ValueError, RecursionError, AttributeError):
        pairs = [(key, number(value)) for key, value in _PAIR.findall(text)[:_MOST_VALUES]]
        kind = "dict"
    values = {key: value for key, value in pairs if value is not None}
    named = next((name for name in _STEP_NAMES if name in values and values[name].is_integer()), None)
    epoch = values.get("epoch")
    if not values or (named is None and epoch is None and not any(_is_known(name) for name in values)):
        return None
    step = int(values[named]) if named and 0 <= values[named] < _LIMIT else None
    rest = {name: value for name, value in values.items() if name not in {named, "epoch", "restart", "rank"}}
    return Line(
        label=f'"{named}" of a {kind} line' if named else "", step=step, epoch=epoch, values=rest, explicit=True
    )


class _Words:
    """Reads a line's words and numbers from left to right."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._separated = False
        self._label, self._epoch_label = "", ""
        self._step: int | None = None
        self._total: int | None = None
        self._epoch: float | None = None
        # What a `/` and a number may follow: step, epoch or, in brackets after an epoch, the part of the epoch that is done.
        self._last = ""
        self._part: int | None = None
        self._values: dict[str, float] = {}

    def line(self, text: str) -> Line | None:
        """The figures of a text; None if it has no step, no epoch and no named number."""
        for found in _TOKEN.finditer(text):
            word, number, unit, mark = found.groups()
            if word is not None:
                self._word(word)
            elif number is not None:
                self._number(number, unit or "")
            else:
                self._mark(mark)
        if self._step is None and self._epoch is None and not any(map(_is_known, self._values)):
            return None
        label = self._label or (self._epoch_label if self._values or self._part is None else "")
        step = self._step if self._step is not None or self._epoch is None else int(self._epoch)
        return Line(label=label, step=step, total=self._total, epoch=self._epoch, values=self._values)

    def _word(self, word: str) -> None:
        if word.lower() in _NOT_FINITE and self._words and (self._separated or _is_named(self._words[-1])):
            self._number(word, "")
            return
        if self._separated:
            self._words, self._separated = [], False
        self._last = ""
        self._words = [*self._words[-6:], word]

    def _mark(self, mark: str) -> None:
        if mark in ":=" and self._words:
            self._separated = True
        elif mark == "/" and self._last:
            self._last += "/"
        elif mark in "[('\"" and (self._separated or self._is_counter()):
            return
        elif mark in "[]()" and self._last.rstrip("/") in {"epoch", "bracket"}:
            self._last = "bracket"
        elif mark not in ":=":
            self._words, self._separated, self._last = [], False, ""

    def _is_counter(self) -> bool:
        return bool(self._words) and self._words[-1].lower() in _COUNTERS

    def _number(self, text: str, unit: str) -> None:
        value = number(text)
        words, separated, last = self._words, self._separated, self._last
        if (
            not text[-1:].isdigit()
            and not text.endswith(".")
            and not separated
            and not (words and _is_named(words[-1]))
        ):
            # The word in `number of nan iterations`.
            return
        self._words, self._separated, self._last = [], False, ""
        if value is None:
            return
        whole = int(value) if text.isdecimal() and value < _LIMIT else None
        if last.endswith("/") or last == "bracket":
            self._fraction(last, whole)
        elif words and whole is not None and not unit and (name := _counter(words)):
            self._count(name, whole)
        elif words and len(self._values) < _MOST_VALUES and (separated or _is_named(words[-1])):
            kept = words if separated else [word for word in words[-3:] if word.lower() not in _FILLERS]
            percent = unit.startswith("%") and standard(" ".join(kept)) == "mfu"
            if not kept[-1].endswith(_NOT_METRICS):
                self._values.setdefault("_".join(kept), value / 100 if percent else value)

    def _count(self, name: str, value: int) -> None:
        if name == "epoch":
            self._epoch, self._epoch_label, self._last = float(value), '"epoch N"', "epoch"
        elif self._step is None:
            self._step, self._label, self._last = value, f'"{name} N"', "step"

    def _fraction(self, last: str, whole: int | None) -> None:
        if whole is None:
            return
        if last == "step/":
            self._total = whole
        elif last == "bracket" and self._part is None and self._step is None:
            self._part, self._last = whole, "bracket"
        elif last == "bracket/" and self._part is not None:
            self._step, self._total, self._label = self._part, whole, '"epoch E [n/N]"'


def _counter(words: list[str]) -> str:
    """The name of the counter that a number after these words is; empty if it is none."""
    name = words[-1].lower()
    before = [word.lower() for word in words[:-1]]
    return name if name in _COUNTERS and all(word in _BEFORE_STEP for word in before) else ""


def _is_named(word: str) -> bool:
    """Whether a number without a colon may follow this word: `loss 2.5`, `val_loss 2.5`."""
    word = word.lower()
    return word in _KNOWN or word.replace("/", "_").rpartition("_")[2] in _KNOWN


def _is_known(name: str) -> bool:
    return standard(name) in {"loss", "eval_loss", "test_loss", "accuracy", "eval_accuracy"}


def number(value: object) -> float | None:
    """A number, or its text; None for anything else, and for a number that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)[:65]) > 64:
        return None
    try:
        found = float(str(value).replace(",", ""))
    except ValueError:
        return None
    return found if not math.isinf(found) or "inf" in str(value).lower() else None
