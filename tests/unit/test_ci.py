"""Tests of what .ci/run needs: this machine without Pyxis and Enroot, and the tests that were skipped for want of them."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from kit import shell
from kit.slurm.embedded import pyxis
from tests import lacking
from tests.support import REPO

HIDDEN = REPO / ".ci" / "hidden.sh"
LOOKS = """\
from kit import shell
from kit.slurm.embedded.pyxis import choose
print(choose("auto", isolated=True), shell.which("enroot"))
raise SystemExit(7)
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a mount namespace")
def test_the_kit_finds_no_pyxis_where_it_is_hidden(tmp_path: Path) -> None:
    plugin, enroot = tmp_path / "spank_pyxis.so", tmp_path / "bin" / "enroot"
    enroot.parent.mkdir()
    for file in (plugin, enroot):
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
    env = {**os.environ, "KIT_PYXIS_PLUGIN": str(plugin), "PATH": f"{enroot.parent}:{os.environ['PATH']}"}
    looks = [sys.executable, "-c", LOOKS]
    there = shell.run(looks, cwd=REPO, env=env, timeout=60, check=False)
    hidden = shell.run([str(HIDDEN), *looks], cwd=REPO, env=env, timeout=60, check=False)
    assert f"plugin=PosixPath('{plugin}')" in there.stdout
    assert there.stdout.endswith(f" {enroot}")
    assert (hidden.stdout, hidden.returncode) == ("None None", 7)
    assert plugin.read_text() == "#!/bin/sh\n"


def test_it_hides_what_the_kit_looks_for() -> None:
    hidden = re.search(r"^for folder in (.*); do$", HIDDEN.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert hidden is not None
    assert hidden[1].split() == [f"/{folder}" for folder in pyxis._FOLDERS]


def test_what_was_skipped_for_want_of_a_part_is_named_with_its_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skips = {
        "tests/cluster/test_runs.py::test_a[pyxis-a b]": "Pyxis and Enroot are not on this machine",
        "tests/cluster/test_images.py::test_b": "enroot is not installed",
        "tests/cluster/test_mpi.py::test_c": "no mpirun here",
    }
    (tmp_path / "tests.skips").write_text(json.dumps(skips))
    assert lacking.main(["pyxis", "enroot"], tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [test for test in sorted(skips) if "mpi" not in test]
    assert lacking.main(["pyxis", "enrot"], tmp_path) == 1
    assert lacking.main(["pyxis"], tmp_path / "empty") == 69
