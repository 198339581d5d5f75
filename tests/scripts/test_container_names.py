"""Names of containers: each node decides by the plugin's configuration and the step's options which containers get one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out
from tests.support import SHA
from tests.warm import came

LIB = laid_out.LIB
FILE, REFERENCE = f"/store/sha256/{SHA}.sqsh", f"docker://reg.example#ns/name@sha256:{SHA}"

ADD = 'steps::add_options() { printf "%s" "$*"; }'


def bash(folder: Path, script: str, *, image: str = FILE, unpacks: str = "") -> str:
    """What a script says that has the batch script's constants; `scontrol` names <folder>/plugstack.conf."""
    (folder / "scontrol").write_text(f'#!/bin/sh\necho "PlugStackConfig         = {folder}/plugstack.conf"\n')
    (folder / "scontrol").chmod(0o755)
    head = f"KIT_IMAGES=('{image}') KIT_PYXIS_UNPACKS={unpacks} KIT_RUN_DIR={folder}\n"
    text = f"set -uo pipefail\n{head}source {LIB}/container_names.sh\n{script}\n"
    return shell.run(["bash", "-c", text], env={"PATH": f"{folder}:{os.environ['PATH']}"}).stdout.strip()


@pytest.mark.parametrize(
    ("line", "image", "unpacks"),
    [
        ("required /usr/lib/spank_pyxis.so runtime_path=/run/pyxis", FILE, True),
        ("required spank_pyxis.so", FILE, True),
        ("required /usr/lib/spank_pyxis.so use_squashfuse=1 container_scope=job", FILE, False),
        ("optional /usr/lib/spank_pyxis.so container_scope=job use_squashfuse=yes", FILE, False),
        ("required /usr/lib/spank_pyxis.so use_squashfuse=0", FILE, True),
        ("required /usr/lib/spank_pyxis.so use_squashfuse=1", REFERENCE, True),
        ("required /usr/lib/spank_pyxis.so use_squashfuse=1 importer=/usr/bin/importer", REFERENCE, False),
        ("required /usr/lib/spank_pyxis.so importer=/usr/bin/importer", REFERENCE, True),
        ("# required /usr/lib/spank_pyxis.so", FILE, False),
        ("required /usr/lib/other.so", FILE, False),
    ],
)
def test_the_plugins_own_configuration_decides(tmp_path: Path, line: str, image: str, unpacks: bool) -> None:
    (tmp_path / "plugstack.conf").write_text(f"{line}\n")
    assert bash(tmp_path, "container_names::unpacks && echo yes || echo no", image=image) == (
        "yes" if unpacks else "no"
    )


@pytest.mark.parametrize("pattern", ["{folder}/more.d/*.conf", "more.d/*"])
def test_included_files_are_read(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "plugstack.conf").write_text(f"include {pattern.format(folder=tmp_path)}\n")
    (tmp_path / "more.d").mkdir()
    (tmp_path / "more.d" / "pyxis.conf").write_text("required /usr/lib/spank_pyxis.so\n")
    assert bash(tmp_path, "container_names::unpacks && echo yes") == "yes"


@pytest.mark.parametrize(("unpacks", "said"), [("yes", "0"), ("no", "1")])
def test_the_clusters_file_wins(tmp_path: Path, unpacks: str, said: str) -> None:
    (tmp_path / "plugstack.conf").write_text("required spank_pyxis.so\n" if unpacks == "no" else "")
    assert bash(tmp_path, "container_names::unpacks; echo $?", unpacks=unpacks) == said


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (f"srun --container-image={FILE} --container-readonly /kit/run/worker.sh", True),
        (f"--nodes=2 --container-image={REFERENCE} /kit/run/worker.sh", True),
        (f"--container-image={FILE} --container-writable /kit/run/worker.sh", False),
        ("--nodes=2 /run/bin/gpu-monitor.sh /run/monitor", False),
        (f"--nodes=2 /run/bin/preflight.sh --container-image={FILE}", False),
    ],
)
def test_steps_with_a_readonly_container_are_named(tmp_path: Path, words: str, named: bool) -> None:
    (tmp_path / "state").mkdir()
    name = f"container_names::step_options {words.removeprefix('srun ')}"
    script = f"container_names_prefix=kit-7-1700000000\n{ADD}\n{name}"
    assert bash(tmp_path, script) == (f"--container-name=kit-7-1700000000-{SHA[:12]}:no_exec" if named else "")
    assert (tmp_path / "state" / f"container-{SHA[:12]}").exists() == named


def test_an_image_that_is_mounted_beside_one_that_is_not_gets_no_name(tmp_path: Path) -> None:
    """The roles of one job may have both."""
    (tmp_path / "plugstack.conf").write_text("required spank_pyxis.so use_squashfuse=1\n")
    (tmp_path / "state").mkdir()
    names = "".join(
        f'echo "[$(container_names::step_options --container-image={image} run)]"\n' for image in (FILE, REFERENCE)
    )
    said = bash(
        tmp_path,
        f"container_names::unpacks && container_names_prefix=kit-7-1\n{ADD}\n{names}",
        image=f"{FILE}' '{REFERENCE}",
    )
    assert said.splitlines() == ["[]", f"[--container-name=kit-7-1-{SHA[:12]}:no_exec]"]


def test_nothing_is_left_where_the_signal_reaches_the_sleep_first(tmp_path: Path) -> None:
    """Slurm signals the processes of a step one after the other, in any order."""
    (tmp_path / "enroot").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "enroot").chmod(0o755)
    program = laid_out.BIN / "container.sh"
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    keeper = subprocess.Popen(["bash", str(program), "kit-7-1"], env=env, start_new_session=True)

    def sleeps() -> list[int]:
        found = shell.run(["pgrep", "--pgroup", str(keeper.pid), "--exact", "sleep"], check=False).stdout
        return [int(pid) for pid in found.split()]

    try:
        came(sleeps)
        (first,) = sleeps()
        os.kill(first, signal.SIGTERM)
        came(lambda: sleeps() and sleeps() != [first])
        keeper.terminate()
        assert keeper.wait(10) == 0
        came(lambda: not sleeps())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(keeper.pid, signal.SIGKILL)
