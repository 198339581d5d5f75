"""Reports this rank's last collectives, with their numbers and shapes, from torch's flight recorder.

kit_rank loads it with the first step after torch.distributed is in use. A thread waits at a pipe. evidence.sh writes a byte, and
the thread answers with a file next to the pipe. A rank that ends by an exception writes the same to its log. Gloo has the recorder,
too.
"""

from __future__ import annotations

import json
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

# The number of collectives to report of each process group.
_LAST = 8
MARK = "kit: collective"


def answer_at(path: str) -> bool | None:
    """Answer at the pipe `path`.ask with the file `path`. None while torch has no process group; False where it has no recorder."""
    import torch.distributed  # noqa: PLC0415

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    from torch._C import _distributed_c10d  # noqa: PLC0415

    if not hasattr(_distributed_c10d, "_dump_fr_trace_json"):
        return False
    if os.path.lexists(f"{path}.ask"):
        os.unlink(f"{path}.ask")  # noqa: PTH108
    os.mkfifo(f"{path}.ask", 0o600)
    # Opened for reading and writing: then the pipe never ends, and a read waits without using a CPU.
    pipe = os.open(f"{path}.ask", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    threading.Thread(target=_answer, args=(pipe, path), name="kit-recorder", daemon=True).start()
    before = sys.excepthook

    def say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        for line in lines():
            print(line, file=sys.stderr, flush=True)

    sys.excepthook = say
    return True


def lines() -> list[str]:
    """Lines `kit: collective GROUP #NUMBER NAME of TYPE SIZES`. ` waits` follows those that have not ended. The newest is last."""
    from torch._C._distributed_c10d import _dump_fr_trace_json  # noqa: PLC0415

    try:
        entries = json.loads(_dump_fr_trace_json(includeCollectives=True, onlyActive=False)).get("entries", [])
    except (RuntimeError, ValueError):
        return []
    last: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        if not entry.get("is_p2p"):
            last.setdefault(entry["process_group"][0], []).append(entry)
    return [_line(group, entry) for group, found in last.items() for entry in found[-_LAST:]]


def _line(group: str, entry: dict[str, Any]) -> str:
    name = entry["profiling_name"].rpartition(":")[2]
    sizes = json.dumps(entry.get("input_sizes"), separators=(",", ":"))[:80]
    kinds = ",".join(entry.get("input_dtypes") or ["-"])[:40]
    waits = "" if entry.get("retired") else " waits"
    return f"{MARK} {group} #{entry['collective_seq_id']} {name} of {kinds} {sizes}{waits}"


def _answer(pipe: int, path: str) -> None:
    while True:
        try:
            os.read(pipe, 1)
            with open(f"{path}.new", "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write("".join(f"{line}\n" for line in lines()))
            os.replace(f"{path}.new", path)  # noqa: PTH105
        except OSError:
            return
