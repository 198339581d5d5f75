"""rank_numbers without torch: a program runs as it would without it. tests/training has the digests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.kit_node.conftest import NODE

PROGRAM = "import json, sys\nprint(json.dumps([__name__, sys.argv[1:], sys.path[0]]))\nsys.exit(int(sys.argv[1]))\n"


@pytest.mark.parametrize("by_name", [False, True])
def test_a_program_has_its_name_words_folder_and_exit_code(tmp_path: Path, by_name: bool) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(PROGRAM)
    words = ["-m", "package.train"] if by_name else ["package/train.py"]
    # Without the packages of this environment, which may have torch.
    argv = [sys.executable, "-S", str(NODE / "rank_numbers.py"), *words, "3", "--lr", "1"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, env={})
    assert done.returncode == 3, done.stderr
    folder = tmp_path if by_name else tmp_path / "package"
    assert json.loads(done.stdout) == ["__main__", ["3", "--lr", "1"], str(folder)]
