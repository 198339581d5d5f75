"""`python -m benchmarks [NAME [OPTIONS]]`: one benchmark, or all of them."""

from __future__ import annotations

import importlib
import signal
import sys
from pathlib import Path

_BY_NAME = {"forecast", "two_clusters", "when"}


def main() -> int:
    """Run the named benchmark, or every module in this folder. Returns 1 when a benchmark missed a goal."""
    known = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    if len(sys.argv) > 1 and sys.argv[1] not in known:
        print(f"no such benchmark: {sys.argv[1]}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    # A benchmark takes its cluster down at its end. TERM would leave the cluster up.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # These need a quarter of an hour, or a quiet machine. They run only by name, as in `make bench-when`.
    chosen = sys.argv[1:2] or [name for name in known if name not in _BY_NAME]
    return max(int(importlib.import_module(f"benchmarks.{name}").main(sys.argv[2:])) for name in chosen)


if __name__ == "__main__":
    sys.exit(main())
