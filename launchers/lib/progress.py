"""Reports progress on stderr: as lines of text for a person, or as JSON for the kit, which draws a bar."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

_EVERY_S = 0.5, 5.0  # as JSON, as text


class ProgressPrinter:
    """as_json: one object per line, {"stage", "total"}, {"done"} or {"warning"}; sizes in bytes."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def warn(self, text: str) -> None:
        """Print a warning. The work continues."""
        self._say({"warning": text}, f"warning: {text}")

    @contextlib.contextmanager
    def counting(self, stage: str, total: int) -> Iterator[Callable[[int], None]]:
        """Report a stage of `total` bytes. The block gets a function to call with the number of bytes done since its last call."""
        self._say({"stage": stage, "total": total}, f"{stage} ({total / 1e6:.1f} MB)")
        done, said = 0, time.monotonic()

        def advance(more: int) -> None:
            nonlocal done, said
            done += more
            if time.monotonic() - said >= _EVERY_S[not self._as_json]:
                said = time.monotonic()
                self._say({"done": done}, f"  {done / 1e6:.0f} of {total / 1e6:.0f} MB")

        yield advance
        self._say({"done": total}, "")

    def _say(self, values: dict[str, Any], text: str) -> None:
        if self._as_json or text:
            print(json.dumps(values) if self._as_json else text, file=sys.stderr, flush=True)
