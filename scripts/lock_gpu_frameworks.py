"""Writes containers/frameworks-gpu/requirements.lock: the packages of train-gpu, and those of frameworks-cpu that it lacks.

    python scripts/lock_gpu_frameworks.py

The kit's own resolver takes wheels only, and DeepSpeed is published as source. Both locks are resolved for the same Python, and the
versions of train-gpu hold for what both have.
"""

import re
from pathlib import Path

CONTAINERS = Path(__file__).resolve().parents[1] / "containers"
_HEAD = (
    "# The packages of containers/train-gpu, and those of containers/frameworks-cpu that it lacks, with their hashes.\n"
    "# scripts/lock_gpu_frameworks.py writes this file; run it after a change of one of them.\n"
)


def entries(image: str) -> dict[str, str]:
    """Name of a package -> its entry in the image's lock: version and hashes, without comments."""
    text = (CONTAINERS / image / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (re.sub(r"\s+", " ", line) for line in text.splitlines() if re.match(r"[A-Za-z0-9]", line))
    return {line.partition("==")[0].lower(): line.strip() for line in lines}


def merged() -> str:
    """The lock of frameworks-gpu."""
    both = {**entries("frameworks-cpu"), **entries("train-gpu")}
    return _HEAD + "".join(f"{entry}\n".replace(" --hash", " \\\n    --hash") for _, entry in sorted(both.items()))


if __name__ == "__main__":
    (CONTAINERS / "frameworks-gpu" / "requirements.lock").write_text(merged(), encoding="utf-8")
