"""Keys that differ between two resolved jobs, each with the layer that set it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kit.schema.comparison import KeyDifference
from kit.schema.set_by import USERS, SetBy

_ABSENT = object()
# For keys that no layer set: a default, a value derived from other keys, or the drawn seed.
OWN = "the kit"


def between(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    set_by_a: Sequence[SetBy] = (),
    set_by_b: Sequence[SetBy] = (),
) -> tuple[KeyDifference, ...]:
    """The keys that differ. Keys set by a user come first, since the others follow from them or from the place.

    set_by: empty for a run that did not record it.
    """
    first, second = dict(_flat(a)), dict(_flat(b))
    differences = []
    for key in sorted({*first, *second}):
        x, y = first.get(key, _ABSENT), second.get(key, _ABSENT)
        if x == y and type(x) is type(y):
            continue
        layers = [_layer(key, set_by) for set_by in (set_by_a, set_by_b)]
        said = [
            str(layer) if layer else OWN if recorded else None
            for layer, recorded in zip(layers, (set_by_a, set_by_b), strict=True)
        ]
        difference = KeyDifference(
            key=key, a=None if x is _ABSENT else x, b=None if y is _ABSENT else y, set_by_a=said[0], set_by_b=said[1]
        )
        differences.append((not any(layer and layer.kind in USERS for layer in layers), key, difference))
    return tuple(difference for _, _, difference in sorted(differences, key=lambda item: item[:2]))


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key -> value, at any depth; a list is one value."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _layer(key: str, set_by: Sequence[SetBy]) -> SetBy | None:
    return next((one for one in set_by if key in one.keys), None)
