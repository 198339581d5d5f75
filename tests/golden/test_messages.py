"""Every message is FILE: KEY: PROBLEM and what to try, in words of the field; every validator and every rule has one here.

After a meant change: `make golden`, then read the diff.
"""

from __future__ import annotations

import re

import pytest

from kit import config
from kit.errors import ConfigError
from tests.golden import wrong
from tests.golden.wrong_values import VALUES
from tests.support import REPO

# Places that no wrong value reaches, each with its reason.
UNREACHED = {
    "kit/validation.py": 2,  # a validator that raises a plain ValueError, and an error of pydantic's that no model can have
}
# Number of rules that may lack a wrong value.
SLACK = 0
_PYTHON = re.compile(
    r"\b(NoneType|dict|tuple|str|int|float|bool|TypeError|ValueError|KeyError|pydantic|Input should|regex)\b|\(\?|\\d|\^\[|\{0,"
)


@pytest.mark.parametrize("kind", wrong.kinds())
def test_messages_are_the_committed_ones(kind: str) -> None:
    path = wrong.FOLDER / f"{kind}.txt"
    assert path.is_file(), f"{path} is missing: run 'make golden' and read what it writes"
    assert wrong.text_of(kind) == path.read_text(encoding="utf-8"), f"{kind} differs; 'make golden' rewrites it"


@pytest.mark.parametrize("kind", wrong.kinds())
def test_a_message_says_where_what_and_what_to_try(kind: str) -> None:
    for one in wrong.wrong(kind):
        for fault in one.error.faults:
            said = str(fault)
            assert fault.key or fault.file, said
            assert said.startswith(": ".join(filter(None, (fault.file, fault.key, fault.problem)))), said
            assert fault.problem and not fault.problem.endswith("."), said
            assert "\n  try: " in said, f"nothing to try: {said}"
            assert not fault.got or fault.allowed, said
            assert not _PYTHON.search(fault.problem + fault.hint), said
            assert "(the whole file)" not in said


@pytest.mark.parametrize("kind", VALUES)
def test_the_line_to_try_works(kind: str) -> None:
    tried = 0
    for one in wrong.wrong(kind):
        for fault in one.error.faults:
            assert one.table is not None
            assert one.model is not None
            mended = wrong.with_hint(one.table, fault)
            if mended is None:
                continue
            tried += 1
            try:
                config.validate(mended, one.model, file="mended")
            except ConfigError as error:
                assert fault.key not in {left.key for left in error.faults}, f"{fault}\nthen: {error}"
    assert tried, "a line of TOML for at least one"


def test_every_validator_and_every_rule_has_a_wrong_value() -> None:
    with wrong.watched() as (lines, forms):
        for kind in wrong.kinds():
            wrong.wrong(kind)
    rooms = (
        "kit/allocation.py",
        "kit/config",
        "kit/data_folders.py",
        "kit/frameworks",
        "kit/planning",
        "kit/runtimes",
    )
    later = (
        "kit/submission/chain.py",
        "kit/record/secret.py",
        "kit/sweeps/points/expand.py",
        "kit/sweeps/points/grouped_faults.py",
    )
    expected = [
        *wrong.places("kit/schema", "kit/validation.py", made="Invalid"),
        *wrong.places(*rooms, *later, "kit/sweeps/prepare.py", "kit/workflow", made="Fault"),
    ]
    missing = [p for p in expected if not any(p.file == file and p.first <= line <= p.last for file, line in lines)]
    for file, count in UNREACHED.items():
        assert len([p for p in missing if p.file == file]) <= count, [str(p) for p in missing if p.file == file]
    unreached = [str(p) for p in missing if p.file not in UNREACHED]
    assert len(unreached) <= SLACK, f"no wrong value in tests/golden reaches these: {unreached}"
    unused = [form.what for at, form in wrong.all_forms().items() if at not in forms]
    assert len(unused) <= SLACK, f"no wrong value has another form than these: {unused}"


def test_no_key_has_a_bare_pattern() -> None:
    """A Form has a sentence and an example; pydantic's own pattern would show a regular expression."""
    found = [
        str(file)
        for file in (REPO / "kit/schema").rglob("*.py")
        if re.search(r"Field\([^)]*pattern=", file.read_text())
    ]
    assert found == []
