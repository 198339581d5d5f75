"""kit_recorder: the line of a collective, from an entry of torch's flight recorder. tests/training has the recorder itself."""

from __future__ import annotations

import kit_recorder

ENTRY = {
    "process_group": ["0", "default_pg"],
    "collective_seq_id": 12,
    "profiling_name": "gloo:all_reduce",
    "input_sizes": [[4, 8]],
    "input_dtypes": ["Float"],
    "retired": True,
}


def test_a_line_has_group_number_name_type_and_sizes() -> None:
    assert kit_recorder._line("0", ENTRY) == "kit: collective 0 #12 all_reduce of Float [[4,8]]"


def test_a_collective_that_has_not_ended_waits() -> None:
    line = kit_recorder._line("1", {**ENTRY, "retired": False, "input_dtypes": [], "input_sizes": [[2] * 100]})
    assert line.endswith(" waits")
    assert " of - [[2,2," in line
    assert len(line) < 200
