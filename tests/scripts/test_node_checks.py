"""The batch script's side of the preflight, with an srun that starts its program here."""

from __future__ import annotations

import os
from pathlib import Path

from kit import shell
from tests.support import REPO

LIB = REPO / "templates" / "lib"
# Starts the program behind its options, as one task on this machine.
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
SLURMD_NODENAME=n1 exec "$@"
"""
# A probe that needs the cache folder, as every container runtime needs the sources of its mounts.
PROBE = """#!/bin/bash
[[ -d "$1" ]] || exit 1
: >"$2/state/preflight/n1.probe.ok"
"""


def bash(folder: Path, script: str) -> str:
    """What a script says that has the functions; `run` is its run folder."""
    programs, run = folder / "bin", folder / "run"
    (run / "state").mkdir(parents=True)
    (run / "logs").mkdir()
    programs.mkdir()
    for name, text in {"srun": SRUN, "probe": PROBE, "squeue": "#!/bin/sh\n", "scancel": "#!/bin/sh\n"}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    names = ("log", "events", "heartbeat", "container_names", "steps", "failures", "nodes", "node_checks")
    head = f"""
set -uo pipefail
KIT_RUN_DIR={run} KIT_NODES=1 KIT_NODE_NAMES=n1 KIT_PREFLIGHT_TIMEOUT=20 KIT_PREFLIGHT_ON_FAILURE=fail
signals_got="" environment_job=1 environment_share=()
{"".join(f"source {LIB}/{name}.sh;" for name in names)}
nodes_all=(n1)
"""
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "1", "KIT_RESTART_COUNT": "0"}
    return shell.run(["bash", "-c", head + script], env=env, check=False).stdout


def test_a18_the_probe_starts_when_the_cache_folder_is_there(tmp_path: Path) -> None:
    """The first job of a user on a fresh node: the preflight makes the folder that the probe's container mounts."""
    slow = tmp_path / "slow-preflight"
    slow.write_text(f'#!/bin/bash\nsleep 0.5\nexec {REPO}/templates/bin/preflight.sh "$@"\n')
    slow.chmod(0o755)
    cache = tmp_path / "cache"
    said = bash(
        tmp_path,
        f"""
KIT_PREFLIGHT_ARGV=(srun --job-name=kit-preflight {slow} run={tmp_path}/run cache={cache} nofile=1)
KIT_PROBE_ARGV=(srun --job-name=kit-probe probe {cache} {tmp_path}/run)
node_checks::nodes 2>&1; echo "code $?"
""",
    )
    assert said.splitlines() == ["code 0"]


# Once Slurm does not reach the node: srun ends, and no task was started.
DEAF_ONCE = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
echo "$1" >>"${0%/*}/starts"
if (($(grep -c preflight "${0%/*}/starts") <= DEAF)) && [[ "$1" == *preflight* ]]; then
    echo "srun: error: Task launch for StepId=1.0 failed on node n1: Communication connection failure"
    exit 1
fi
SLURMD_NODENAME=n1 exec "$@"
"""


def preflight(tmp_path: Path, deaf: int) -> list[str]:
    return bash(
        tmp_path,
        f"""
cat >{tmp_path}/bin/srun <<'END'
{DEAF_ONCE}
END
export DEAF={deaf}
program={REPO}/templates/bin/preflight.sh
KIT_PREFLIGHT_ARGV=(srun --job-name=kit-preflight $program run={tmp_path}/run cache={tmp_path}/cache nofile=1)
KIT_PROBE_ARGV=()
node_checks::nodes 2>&1; echo "code $?"
""",
    ).splitlines()


def test_a_node_that_slurm_does_not_reach_at_once_is_asked_again(tmp_path: Path) -> None:
    """The step's start after a requeue: one failed connection is not a broken node."""
    said = preflight(tmp_path, 1)
    assert said[-1] == "code 0"
    assert "the preflight did not begin on every node; once more in 2 s" in "\n".join(said)


def test_a_node_that_slurm_never_reaches_fails_the_preflight(tmp_path: Path) -> None:
    said = preflight(tmp_path, 99)
    assert said[-1] == "code 72"
    assert "preflight failed on n1" in "\n".join(said)
    assert (tmp_path / "bin" / "starts").read_text().count("preflight.sh") == 3
