"""The batch script's side of the preflight, with an srun that starts its program here."""

from __future__ import annotations

import os
from pathlib import Path

from kit import shell
from tests import laid_out
from tests.scripts.batch_lab import BatchLab

LIB = laid_out.LIB
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
    names = (
        "clock",
        "log",
        "numbers",
        "events",
        "loops",
        "parts",
        "steps",
        "failures",
        "nodes",
        "retry",
        "preflight",
    )
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
    slow.write_text(f'#!/bin/bash\nsleep 0.5\nexec {laid_out.BIN}/preflight.sh "$@"\n')
    slow.chmod(0o755)
    cache = tmp_path / "cache"
    said = bash(
        tmp_path,
        f"""
KIT_PREFLIGHT_ARGV=(srun --job-name=kit-preflight {slow} run={tmp_path}/run cache={cache} nofile=1)
KIT_PROBE_ARGV=(srun --job-name=kit-probe probe {cache} {tmp_path}/run)
preflight::check 2>&1; echo "code $?"
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
program={laid_out.BIN}/preflight.sh
KIT_PREFLIGHT_ARGV=(srun --job-name=kit-preflight $program run={tmp_path}/run cache={tmp_path}/cache nofile=1)
KIT_PROBE_ARGV=()
preflight::check 2>&1; echo "code $?"
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


def staged(folder: Path, step: str, *, nodes: int = 3) -> list[str]:
    """What staging::stage says of a step that runs this, with `folder` for the nodes' reports, on three nodes and a spare."""
    lab = BatchLab(folder)
    lab.command("srun", f"folder={lab.run_dir}/state/stage\n{step}")
    script = 'nodes::learn_addresses; staging::stage; echo "code $? ${KIT_NODE_NAMES}"'
    return lab.bash(f"KIT_NODES={nodes} KIT_STAGE_ARGV=(srun stage.sh)\n{script}")


def test_a_node_that_did_not_get_the_image_is_named_with_its_reason(tmp_path: Path) -> None:
    said = staged(tmp_path, 'echo "its 9 MB do not fit" >"${folder}/n2.failed"; exit 1', nodes=4)
    assert said[-1] == "code 72 n1 n2 n3"
    assert said[-2].endswith("error: the image was not staged on n2; no rank was started")
    assert said[-3] == "  | n2: image not staged: its 9 MB do not fit"


def test_a_spare_takes_the_place_of_a_node_without_the_image(tmp_path: Path) -> None:
    said = staged(tmp_path, 'echo full >"${folder}/n2.failed"; exit 1')
    assert said[-1] == "code 0 n1 n3 n4"
    assert any("continuing with the spare nodes" in line for line in said)


def test_a_stage_step_that_gives_no_reason_starts_no_rank(tmp_path: Path) -> None:
    said = staged(tmp_path, "exit 1")
    assert said[-1] == "code 72 n1 n2 n3"
    assert said[-2].endswith("error: the image was not staged on every node; no rank was started")


def test_reasons_of_an_earlier_start_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "run" / "state" / "stage").mkdir(parents=True)
    (tmp_path / "run" / "state" / "stage" / "n2.failed").write_text("full\n")
    lab = BatchLab.__new__(BatchLab)
    lab.programs, lab.run_dir = tmp_path / "programs", tmp_path / "run"
    lab.programs.mkdir()
    lab.command("srun", "exit 0")
    assert lab.bash('KIT_STAGE_ARGV=(srun stage.sh)\nstaging::stage; echo "code $?"')[-1] == "code 0"


def test_a_signal_ends_the_stage_step_with_term(tmp_path: Path) -> None:
    """It removes a copy that is not complete. KILL came first, and left it."""
    lab = BatchLab(tmp_path)
    lab.command(
        "srun", 'trap \'echo TERM >"${0%/*}/got"; exit 143\' TERM; touch "${0%/*}/up"; while :; do sleep 0.05; done'
    )
    lab.command("squeue", 'case "$*" in *--steps*) echo "7.0 kit-stage" ;; esac')
    lab.command(
        "scancel", 'pkill -TERM -P "${PPID}" -f "srun stage.sh"; case "$*" in *KILL*) echo KILL >>"${0%/*}/got" ;; esac'
    )
    said = lab.bash(
        f"""KIT_STAGE_ARGV=(srun stage.sh)
        trap 'signals_got=TERM' USR1
        ( until [[ -e {lab.programs}/up ]]; do sleep 0.05; done; kill -USR1 $$ ) &
        staging::stage; echo "code $?" """
    )
    assert said[-1] == "code 143", said
    assert (lab.programs / "got").read_text() == "TERM\n"


def test_the_coordinator_that_cannot_start_leaves_every_node_to_the_store(tmp_path: Path) -> None:
    lab = BatchLab(tmp_path)
    lab.command("python3", "exit 1")
    said = lab.bash(
        'image_chain::begin 127.0.0.1 2 /store/a.sqsh abc; echo "[${image_chain_meeting}] ${image_chain_pid}"'
    )
    assert said[-1] == "[] 0"
    assert "no python3 of 3.8 or newer on this node: every node copies the image from the store" in said[-2]
    lab.command("python3", 'case "$*" in *-c*) exit 0 ;; *) exit 1 ;; esac')
    said = lab.bash(
        'image_chain::begin 127.0.0.1 2 /store/a.sqsh abc; echo "[${image_chain_meeting}] ${image_chain_pid}"'
    )
    assert said[-1] == "[] 0"
    assert "the nodes cannot meet: every node copies the image from the store" in said[-2]


def early(tmp_path: Path, rest: str) -> list[str]:
    """The preflight starts early; `rest` is what the batch script does then."""
    return bash(
        tmp_path,
        f"""
program={laid_out.BIN}/preflight.sh
printf '#!/bin/bash\\necho start >>{tmp_path}/starts\\nexec %s "$@"\\n' "$program" >{tmp_path}/bin/once
chmod +x {tmp_path}/bin/once
KIT_PREFLIGHT_ARGV=(srun --job-name=kit-preflight once run={tmp_path}/run cache={tmp_path}/cache nofile=1)
KIT_PROBE_ARGV=(srun --job-name=kit-probe probe {tmp_path}/cache {tmp_path}/run) KIT_STAGE_ARGV=()
{rest}
preflight::check 2>&1; echo "code $?"
""",
    ).splitlines()


def test_a_preflight_that_began_early_is_not_started_again(tmp_path: Path) -> None:
    """Whether it is still there when the batch script comes to it, or has ended long before."""
    assert early(tmp_path / "soon", "preflight::listed") == ["code 0"]
    assert early(tmp_path / "late", "preflight::listed; sleep 1") == ["code 0"]
    assert [(tmp_path / name / "starts").read_text() for name in ("soon", "late")] == ["start\n", "start\n"]


def test_no_preflight_begins_before_the_image_is_staged(tmp_path: Path) -> None:
    """It checks the node's own copy."""
    said = early(tmp_path, "KIT_STAGE_ARGV=(srun true); preflight::listed; echo ${steps_pid[kit-preflight]:-none}")
    assert said == ["none", "code 0"]


def test_c10_a_link_in_place_of_a_record_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """Another user's link from the shared folder led into a file of this user."""
    (tmp_path / "avoid").mkdir()
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "avoid" / "n2").symlink_to(tmp_path / "mine")
    settings = f"KIT_RUN_DIR={tmp_path} KIT_AVOID_DIR={tmp_path}/avoid SLURM_JOB_ID=7 SLURM_RESTART_COUNT=9"
    bash(tmp_path, f"{settings}\npreflight::avoid {tmp_path}/state n2")
    assert (tmp_path / "mine").read_text() == "kept"
    record = tmp_path / "avoid" / "n2"
    assert (record.is_symlink(), record.read_text()) == (False, "job 7: no answer\n")
    assert [path.name for path in record.parent.iterdir()] == ["n2"]
