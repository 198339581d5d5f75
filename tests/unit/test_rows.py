"""A row of tests/capabilities.md that only skipped tests show fails the run, unless the machine lacks a part."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import rows
from tests.support import REPO

ONE, OTHER = "tests/unit/test_a.py::test_one", "tests/unit/test_b.py::test_other"
TORCH = "skipped: torch is not installed (make training)"


@pytest.mark.parametrize(
    ("outcomes", "has", "verdict"),
    [
        ({ONE: ["passed"], OTHER: [TORCH]}, "", None),
        ({ONE: ["failed"]}, "", None),
        ({}, "", None),
        ({ONE: [TORCH]}, "", "missing"),
        ({ONE: [TORCH]}, "training", "failed"),
        ({ONE: [TORCH], OTHER: ["skipped: Pyxis and Enroot are not on this machine"]}, "slurm", "missing"),
        ({ONE: [TORCH], OTHER: ["skipped: Pyxis and Enroot are not on this machine"]}, "pyxis", "failed"),
        ({ONE: ["skipped: not today"]}, "", "failed"),
        ({ONE: [TORCH, "passed"]}, "training", None),
    ],
)
def test_a_row_is_shown_missing_or_failed(outcomes: dict[str, list[str]], has: str, verdict: str | None) -> None:
    found = rows.judged([ONE, OTHER], outcomes, set(has.split(",")) - {""})
    assert (found and found[0]) == verdict


def test_a_file_that_is_named_whole_or_skipped_whole() -> None:
    assert rows.judged(["tests/unit/test_a.py"], {ONE: ["skipped: not today"]}, set()) == ("failed", "not today")
    assert rows.judged([ONE], {"tests/unit/test_a.py": ["skipped: not today"]}, set()) == ("failed", "not today")
    assert rows.judged(["tests/unit/test_a.py"], {ONE: ["passed"]}, set()) is None


def test_the_rows_of_the_page_are_read_with_their_tests() -> None:
    found = rows.rows((REPO / "tests" / "capabilities.md").read_text(encoding="utf-8"))
    assert found["S2.34"][0] == "tests/training/test_gpt.py::test_megatron_goes_on_in_another_layout"
    assert len(found) > 140


def test_what_becomes_of_tests_is_kept_also_under_xdist(tmp_path: Path) -> None:
    """Passed, failed, and skipped by a mark, in a test, by a fixture, or the module whole; parameters are one test."""
    (tmp_path / "test_x.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_p(n):\n    if n == 2: pytest.skip('why not')\n"
        "@pytest.mark.skip(reason='marked')\ndef test_m(): pass\n"
        "@pytest.fixture\ndef f(): pytest.skip('no f')\n"
        "def test_f(f): pass\n"
        "def test_bad(): assert 0\n"
    )
    (tmp_path / "test_y.py").write_text("import pytest\npytest.importorskip('no_such_thing')\ndef test_q(): pass\n")
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\nfrom tests.outcomes import Outcomes\n"
        "def pytest_configure(config):\n"
        "    if not hasattr(config, 'workerinput'):\n"
        f"        config.pluginmanager.register(Outcomes(Path({str(tmp_path / 'out' / 'x.json')!r})))\n"
    )
    argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir"]
    subprocess.run([*argv, tmp_path, tmp_path], cwd=REPO, check=False, capture_output=True)
    found = json.loads((tmp_path / "out" / "x.json").read_text())
    assert {name: sorted(words) for name, words in found.items()} == {
        "test_x.py::test_p": ["passed", "skipped: why not"],
        "test_x.py::test_m": ["skipped: marked"],
        "test_x.py::test_f": ["skipped: no f"],
        "test_x.py::test_bad": ["failed"],
        "test_y.py": ["skipped: could not import 'no_such_thing': No module named 'no_such_thing'"],
    }
