"""The software bill of materials of an image, held against the validators of the two forms."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pytest

from kit.errors import ToolError
from kit.images import image_lock, sbom
from tests.support import REPO, make_lock

NOW = datetime(2026, 11, 22, tzinfo=UTC)
LOCK = image_lock.read_lock(REPO / "containers/train-cpu/image.lock")
COUNT = len(LOCK.packages.apt) + len(LOCK.packages.pip)

# The extra `sbom`, which dev.lock holds; an environment from before has it after `make setup`.
needs_libraries = pytest.mark.skipif(
    None in (find_spec("cyclonedx"), find_spec("spdx_tools")), reason="needs the extra sbom: make setup"
)


@needs_libraries
def test_cyclonedx_is_valid_and_names_every_package() -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = sbom.make_sbom(LOCK, "cyclonedx", now=NOW)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    made = json.loads(text)
    assert made["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": LOCK.sha256}]
    assert len(made["components"]) == COUNT
    assert f"pkg:pypi/torch@{LOCK.packages.pip['torch']}".replace("+", "%2B") in text


@needs_libraries
def test_spdx_is_valid_and_names_every_package(tmp_path: Path) -> None:
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    path = tmp_path / "image.spdx.json"
    path.write_text(sbom.make_sbom(LOCK, "spdx", now=NOW))
    document = parse_file(str(path))
    assert validate_full_spdx_document(document) == []
    assert len(document.packages) == COUNT + 1
    assert document.packages[0].checksums[0].value == LOCK.sha256


@needs_libraries
@pytest.mark.parametrize("form", ["spdx", "cyclonedx"])
def test_the_same_lock_gives_the_same_document(form: sbom.Form) -> None:
    assert sbom.make_sbom(LOCK, form, now=NOW) == sbom.make_sbom(LOCK, form, now=NOW)


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "packageurl", None)
    with pytest.raises(ToolError, match="which writes the bill of materials, is not installed") as caught:
        sbom.make_sbom(make_lock(), "cyclonedx", now=NOW)
    assert caught.value.hint == "pip install 'slurm-kit[sbom]'"
