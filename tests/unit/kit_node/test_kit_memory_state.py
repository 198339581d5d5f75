"""kit_memory_state without torch: plain values, and objects whose buffers pickle hands out (as numpy's arrays do)."""

from __future__ import annotations

import pickle
from typing import Any

from kit_memory_state import StateLayout, read_state


class Array:
    """What numpy's arrays do with protocol 5: the bytes come in a buffer of their own."""

    def __init__(self, content: bytearray) -> None:
        self.content = content

    def __reduce_ex__(self, _: object) -> Any:
        return Array, (pickle.PickleBuffer(self.content),)


def kept(state: object) -> Any:
    layout = StateLayout(state)
    memory = bytearray(b"\xff" * layout.size)
    layout.write(memoryview(memory))
    found = read_state(memoryview(memory))
    memory[:] = bytes(layout.size)
    return found


def test_plain_values_come_back_and_nothing_refers_to_the_memory() -> None:
    state = {"step": 3, "rng": (1, [2.5, None], {"x": b"bytes"}), "text": "ä" * 1000}
    assert kept(state) == state


def test_buffers_come_back_in_their_order_even_empty_ones() -> None:
    state = {"a": Array(bytearray(b"first")), "n": 5, "b": [Array(bytearray()), Array(bytearray(b"x" * 1000))]}
    found = kept(state)
    assert found["n"] == 5
    assert [bytes(one.content) for one in (found["a"], *found["b"])] == [b"first", b"", b"x" * 1000]


def test_every_buffer_begins_where_a_tensor_may() -> None:
    """At a multiple of 64 bytes, wherever the text before it ends."""
    for length in (1, 63, 64, 65):
        content = bytes(range(32)) * 2
        layout = StateLayout(["y" * length, Array(bytearray(content))])
        memory = bytearray(layout.size)
        layout.write(memoryview(memory))
        assert memory.index(content) % 64 == 0
