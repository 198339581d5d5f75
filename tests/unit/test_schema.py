"""docs/schema is what the models say."""

from __future__ import annotations

import json

import pytest

from kit.spec import models
from tests.support import REPO


@pytest.mark.parametrize("noun", sorted(models()))
def test_schema_file_is_up_to_date(noun: str) -> None:
    path = REPO / "docs" / "schema" / f"{noun}.schema.json"
    assert json.loads(path.read_text()) == models()[noun].model_json_schema(), "run 'make schema'"
