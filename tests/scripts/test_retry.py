"""How often a job goes back to the queue: what counts, and when Slurm is told to stop."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit import shell
from tests.support import REPO

LIB = REPO / "templates" / "lib" / "retry.sh"


def bash(folder: Path, script: str, *, capped: bool, requeue: int, restarts: int, own: int | None = None) -> list[str]:
    """What Slurm is told, a command a line, and then what the script says."""
    (folder / "state").mkdir()
    if own is not None:
        (folder / "state" / "requeues").write_text(f"{own}\n")
    (folder / "scontrol").write_text('#!/bin/sh\necho "$@"\n')
    (folder / "scontrol").chmod(0o755)
    head = f"KIT_RUN_DIR={folder} KIT_REQUEUE_CAPPED={int(capped)} KIT_RETRY_REQUEUE={requeue} KIT_RETRY_CODES=(137)"
    state = (
        f"SLURM_RESTART_COUNT={restarts} environment_batch=1 environment_job=7 signals_got='' signals_slurms_term=''"
    )
    stubs = "log::info() { :; }; events::record() { :; }"
    text = f"set -uo pipefail\n{head}\n{state}\n{stubs}\nsource {LIB}\n{script}\n"
    return shell.run(["bash", "-c", text], env={"PATH": f"{folder}:{os.environ['PATH']}"}).stdout.splitlines()


@pytest.mark.parametrize(
    ("capped", "restarts", "told"),
    [(True, 0, []), (True, 1, []), (True, 2, ["update JobId=7 Requeue=0"]), (False, 2, [])],
)
def test_slurm_is_told_once_the_times_are_used_up(tmp_path: Path, capped: bool, restarts: int, told: list[str]) -> None:
    assert bash(tmp_path, "retry::cap_slurm", capped=capped, requeue=2, restarts=restarts) == told


@pytest.mark.parametrize(
    ("capped", "restarts", "own", "wants"),
    [
        (True, 1, None, True),
        (True, 2, None, False),
        # Preempted twice, where slurm.requeue leaves that to Slurm: none of the job's own times is used up.
        (False, 2, None, True),
        (False, 3, 2, False),
        # A new job of a run that was resumed: its first start has used up nothing.
        (False, 0, 2, True),
    ],
)
def test_what_counts(tmp_path: Path, capped: bool, restarts: int, own: int | None, wants: bool) -> None:
    script = "retry::wants_requeue 137 && echo yes || echo no"
    assert bash(tmp_path, script, capped=capped, requeue=2, restarts=restarts, own=own) == ["yes" if wants else "no"]


@pytest.mark.parametrize(
    ("setting", "counted"), [("", "1"), ("retry_without=n2", None), ("signals_slurms_term=1", None)], ids=str
)
def test_a_failed_node_and_a_preemption_do_not_use_up_a_time(tmp_path: Path, setting: str, counted: str | None) -> None:
    said = bash(tmp_path, f"{setting}\nretry::requeue 137", capped=False, requeue=2, restarts=0)
    assert said[0] == "requeue 7"
    file = tmp_path / "state" / "requeues"
    assert (file.read_text().strip() if file.exists() else None) == counted


def test_a4_a_failed_node_is_added_to_what_the_job_is_kept_off(tmp_path: Path) -> None:
    """Overwritten, the job goes back and forth between two bad nodes, and the user's own choice is gone."""
    (tmp_path / "state").mkdir()
    (tmp_path / "scontrol").write_text(
        '#!/bin/sh\ncase "$1" in show) echo "JobId=7 ExcNodeList=n1,n[4-5] Features=(null)" ;; *) echo "$@" ;; esac\n'
    )
    (tmp_path / "scontrol").chmod(0o755)
    head = f"KIT_RUN_DIR={tmp_path} environment_job=7 signals_slurms_term='' SLURM_RESTART_COUNT=0 KIT_REQUEUE_CAPPED=0"
    (tmp_path / "avoid").mkdir()
    for name in ("n2", "n9"):
        (tmp_path / "avoid" / name).write_text("job 6: another one's\n")
    (tmp_path / "avoid" / "n8").touch()
    os.utime(tmp_path / "avoid" / "n8", (0, 0))
    head = f"{head} KIT_AVOID_DIR={tmp_path}/avoid"
    script = f"{head}\nlog::info() {{ :; }}; events::record() {{ :; }}\nsource {LIB}\nretry::leave_out n2,n3; retry::requeue 72"
    done = shell.run(["bash", "-c", script], env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.stdout.splitlines() == ["requeue 7", "update JobId=7 ExcNodeList=n1,n[4-5],n9,n2,n3"]
