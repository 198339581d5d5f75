"""Prints the tests that `make test` skipped for want of a part of the system: one a line, with parameters, as pytest reads them.

    python -m tests.lacking pyxis enroot

`.ci/run` runs `make test` with Pyxis and Enroot hidden, and then these tests with both. The parts are those of tests/rows.py.
Exit code: 0; 1, no such part; 69, `make test` has not run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.outcomes import FOLDER, SKIPS
from tests.rows import PARTS, part_of


def lacking(skips: Mapping[str, str], parts: Iterable[str]) -> list[str]:
    """The tests, of a test -> the reason of its skip. A module that was skipped whole counts as one."""
    wanted = set(parts)
    return sorted(test for test, reason in skips.items() if part_of(reason) in wanted)


def main(parts: list[str], folder: Path = FOLDER) -> int:
    """The exit code."""
    if unknown := set(parts) - PARTS.keys():
        print(f"lacking: no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 1
    path = (folder / "tests").with_suffix(SKIPS)
    if not path.is_file():
        print("lacking: no test has run yet: make test", file=sys.stderr)
        return 69
    for test in lacking(json.loads(path.read_text(encoding="utf-8")), parts):
        print(test)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
