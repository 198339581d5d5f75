"""`python -m kit.notices RUN-FOLDER`: the batch script calls it (templates/parts/notices/part.sh). Slurm is not asked."""

from __future__ import annotations

import sys
from pathlib import Path

from kit.config import load_model
from kit.errors import KitError
from kit.hosts import status as host_status
from kit.notices.send_once import tell
from kit.record import secret
from kit.schema.job import Job
from kit.schema.run_paths import RunPaths

# Less than the batch script gives this program.
_PATIENCE_S = 10.0


def main(run_dir: Path) -> None:
    """Send a run's notices for the events that it recorded, to the URLs that `kit submit` stored in its folder."""
    one = host_status.of_record(run_dir)
    job = load_model(RunPaths(run_dir).job, Job)
    tell(one, job.notify.on, secret.read_urls(run_dir), say=lambda line: print(f"notice: {line}"), patience=_PATIENCE_S)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except (KitError, OSError) as error:
        print(f"notice: {error}")
