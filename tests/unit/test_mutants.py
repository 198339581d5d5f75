"""scripts/mutants.py: the faults that it makes, and the list of those that may survive."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from types import ModuleType

import pytest

from tests.support import REPO


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", REPO / "scripts" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = made
    spec.loader.exec_module(made)
    return made


def test_the_files_and_their_tests_are_there(script: ModuleType) -> None:
    assert len(script.FILES) == 11
    for file, tests in script.FILES.items():
        assert (REPO / file).is_file(), file
        assert tests
        for test in tests:
            assert (REPO / test).exists(), test
        assert script.mutants(file, (REPO / file).read_bytes()), file


def test_what_may_survive_is_still_there_and_has_a_reason(script: ModuleType) -> None:
    table = tomllib.loads((REPO / script.KNOWN).read_text(encoding="utf-8"))
    for one in table["survivor"]:
        assert set(one) == {"file", "line", "becomes", "reason"}
        assert one["reason"].strip()
        made = {script.named(mutant) for mutant in script.mutants(one["file"], (REPO / one["file"]).read_bytes())}
        key = (one["file"], one["line"], one["becomes"])
        assert key in made, f"no longer in the file: {key}"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("x = (a) < (b)", {"<": "<="}),
        ("x = a or b", {"or": "and"}),
        ("x = a not in b", {"not in": "in"}),
        ("x = 'a' + b", {}),
        ("def f():\n    return None", {}),
        ("x = a + 2", {"+": "-", "2": "3"}),
        ("if not a:\n    pass", {"not a": "a"}),
        ("@dataclass(frozen=True)\nclass A:\n    pass", {}),
    ],
)
def test_a_fault_is_where_it_says(script: ModuleType, text: str, made: dict[str, str]) -> None:
    found = script.mutants("kit/x.py", text.encode())
    assert {one.before: one.text for one in found} == made
    for one in found:
        assert text.encode()[one.first : one.last].decode() == one.before


def test_faults_of_bash(script: ModuleType) -> None:
    text = "# a && b\n[[ -z ${a} ]] && return 1\n"
    found = [(one.line, one.before, one.text) for one in script.mutants("lib/x.sh", text.encode())]
    assert found == [(2, " -z ", " -n "), (2, " && ", " || "), (2, "return 1", "return 0")]
