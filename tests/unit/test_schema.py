"""docs/schema is what the models say."""

from __future__ import annotations

import json

import pytest

from kit.schema import schemas
from tests.support import REPO


@pytest.mark.parametrize("noun", sorted(schemas()))
def test_schema_file_is_up_to_date(noun: str) -> None:
    path = REPO / "docs" / "schema" / f"{noun}.schema.json"
    assert json.loads(path.read_text()) == schemas()[noun].model_json_schema(), "run 'make schema'"
