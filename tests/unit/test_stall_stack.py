"""The stack of a rank's main thread, in the words of py-spy and of faulthandler."""

from __future__ import annotations

import pytest

from kit.health.stall_evidence import RankEvidence

NAMED = """Thread 7 (idle): "loader"
    get (/app/loader.py:3)
Thread 483 (active): "MainThread"
    step (/app/train.py:13)
    <module> (/app/train.py:20)"""
BY_NUMBER = """Thread 7 (idle)
    get (/app/loader.py:3)
Thread 483 (active)
    step (/app/train.py:13)"""
# In a container, threads have other numbers than outside, and py-spy did not read the names.
UNNAMED = """Thread 5 (active)
    step (/app/train.py:13)
Thread 9 (idle)
    get (/app/loader.py:3)"""


@pytest.mark.parametrize("threads", [NAMED, BY_NUMBER, UNNAMED])
def test_the_main_thread_is_found_by_name_by_number_or_as_the_first(threads: str) -> None:
    text = f"== rank\nrank 1\n== stacks\nProcess 483: python3 /app/train.py\nPython v3.11.2\n\n{threads}\n"
    stack = RankEvidence(file="state/stall-1/rank-1.txt", lines=tuple(text.splitlines())).stack
    assert (stack[0].file, stack[0].line) == ("/app/train.py", 13)
