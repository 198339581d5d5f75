"""Output of kit.cli.print_json: JSON, with a version in each object."""

from __future__ import annotations

import json
import math

import pytest

from kit.cli.print_json import print_json


def printed(capsys: pytest.CaptureFixture[str]) -> object:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(capsys.readouterr().out, parse_constant=refuse)


def test_nan_and_infinity_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json("status", {"training": {"values": {"loss": math.nan, "lr": 0.5}, "more": [(math.inf,)]}})
    assert printed(capsys) == {"schema_version": 1, "training": {"values": {"loss": None, "lr": 0.5}, "more": [[None]]}}


def test_each_object_of_a_list_and_of_names_has_a_version(capsys: pytest.CaptureFixture[str]) -> None:
    print_json("nodes", [{"node": "n1"}, {"node": "n2"}])
    assert printed(capsys) == [{"schema_version": 1, "node": "n1"}, {"schema_version": 1, "node": "n2"}]
    print_json("submit", {"first": {"schema_version": 7}, "second": {}}, named=True)
    assert printed(capsys) == {"first": {"schema_version": 7}, "second": {"schema_version": 1}}
