"""A hook of mkdocs: writes the JSON Schemas of what commands print with --json into the site, beside those of TOML files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kit.answers import schemas


def on_post_build(*, config: Any) -> None:
    """Write site/schema/kit-*.schema.json and error.schema.json."""
    folder = Path(config["site_dir"]) / "schema"
    folder.mkdir(exist_ok=True)
    for command in schemas.answers():
        text = json.dumps(schemas.schema(command), indent=2) + "\n"
        (folder / f"{schemas.file_name(command)}.schema.json").write_text(text, encoding="utf-8")
