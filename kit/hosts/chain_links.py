"""Submits the later links of a chain. Each waits until all earlier ones have ended with a code other than 0."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kit.files import atomic_write
from kit.hosts import submission
from kit.schema.run_paths import RunPaths
from kit.slurm import client

# The script of the later links, in the run folder.
LINK = "link.sh"


def submit(run_dir: Path, first: int, count: int, *, env: Mapping[str, str]) -> tuple[int, ...]:
    """Submit `count` links after the job `first`; return their job ids. If one is refused, all are cancelled."""
    sent = [first]
    try:
        for _ in range(count):
            before = ":".join(map(str, sent))
            options = ["--kill-on-invalid-dep=yes", f"--dependency=afternotok:{before}"]
            argv = ["sbatch", "--parsable", *options, str(run_dir / LINK)]
            sent.append(submission.submit(argv, env=env, note=RunPaths(run_dir).submission, earlier=sent))
        atomic_write.write(RunPaths(run_dir).state / "links", "".join(f"{job_id}\n" for job_id in sent))
    except BaseException:
        client.cancel_each(sent, env=env)
        raise
    return tuple(sent[1:])
