"""Prints the summary of a finished run, from its folder: summary.py RUN_DIR. Exit code 1 when the demo's promises are not kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kit.record.manifest import read_manifest
from kit.schema.run_paths import RunPaths
from kit.schema.world_size_text import PLAIN

# The accuracy that a small ConvNet reaches on the digits within a dozen epochs, with a margin.
WANTED_ACCURACY = 0.95


def main(run_dir: Path) -> int:
    """Print image digest, job id, world size, accuracy and folder. Returns 1 when the accuracy or a file is missing."""
    paths, made = RunPaths(run_dir), read_manifest(RunPaths(run_dir).manifest)
    records = [json.loads(line) for line in paths.metrics.read_text(encoding="utf-8").splitlines()]
    final = next(r for r in reversed(records) if r["kind"] == "final")
    print(f"image digest    {made.image_digest}")
    print(f"job id          {made.job_id}")
    print(f"world size      {final['world_size']} over {made.nodes} nodes ({made.runtime}, {made.shape})")
    print(f"final accuracy  {100 * final['accuracy']:.2f} %")
    print(f"checkpoints     {sum(1 for _ in paths.checkpoints.iterdir())} entries in {paths.checkpoints}")
    print(f"monitors        {sum(1 for _ in paths.monitor.iterdir())} files in {paths.monitor}")
    print(f"run folder      {run_dir}")
    kept = final["accuracy"] >= WANTED_ACCURACY and made.world_sizes == {PLAIN: final["world_size"]}
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
