"""lib/fuse_daemon.sh: the daemon of a container ends with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import laid_out

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace of one's own needs root")

# The container's only process is the first witness, and ends after a second. mistaken: what find_witness says at its first call.
SCRIPT = """
source {lib}
{mistaken}
(exec env --unset=KIT_FUSE_DAEMON sleep 1) &
fuse_daemon::run sleep 30
"""
# As in the moment in which the daemon is started: its environment is empty.
ITSELF = """
eval "real_$(declare -f fuse_daemon::find_witness)"
calls=0
fuse_daemon::find_witness() {
    if ((calls++)); then real_fuse_daemon::find_witness; else witness="${daemon}"; fi
}
"""


@pytest.mark.parametrize("mistaken", ["", ITSELF])
def test_a_daemon_ends_with_the_last_process_of_its_container(mistaken: str) -> None:
    """It was taken for a process of the container that it serves, so that both stayed on the node."""
    script = SCRIPT.format(lib=laid_out.LIB / "fuse_daemon.sh", mistaken=mistaken)
    argv = ["unshare", "--mount", "/bin/bash", "-c", script]
    done = subprocess.run(argv, env=os.environ | {"KIT_FUSE_DAEMON": "1"}, timeout=20, check=False)
    assert done.returncode == 137


@pytest.mark.parametrize(("name", "first"), [("enroot", "/bin/fuse"), ("other", "/usr/bin")])
def test_only_enroot_finds_the_programs_of_the_kit(tmp_path: Path, name: str, first: str) -> None:
    library = laid_out.LIB / "fuse_path.sh"
    script = tmp_path / name
    script.write_text(f"""#!/bin/bash
echo "${{PATH%%:*}}"
exec /bin/bash -c 'source {library}; fuse_path::leave; echo "$PATH"'
""")
    script.chmod(0o755)
    env = {"PATH": "/usr/bin:/bin", "BASH_ENV": str(library)}
    begins, left = subprocess.run(
        [script], env=env, check=True, capture_output=True, text=True, timeout=20
    ).stdout.split()
    assert begins.endswith(first)
    assert left == "/usr/bin:/bin"
