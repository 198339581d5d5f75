"""hatchling's build hook: adds the data folders to the wheel, as kit/_data."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DataFolders(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the folders that pyproject.toml names: their committed files in a checkout, all files in a source archive."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to the wheel. An editable install reads the checkout itself."""
        if version == "editable":
            return
        root = Path(self.root)
        for folder in self.config["folders"]:
            for path in self._files(root, folder):
                build_data["force_include"][str(root / path)] = f"kit/_data/{path}"

    def _files(self, root: Path, folder: str) -> list[str]:
        if (root / ".git").exists() and shutil.which("git"):
            argv = ["git", "-C", str(root), "ls-files", "-z", "--", folder]
            done = subprocess.run(argv, check=False, capture_output=True, text=True)
            if done.returncode == 0:
                return [path for path in done.stdout.split("\0") if path and (root / path).is_file()]
            self.app.display_warning(f"git does not list the files: {done.stderr.strip()}; all of {folder}/ is taken")
        return [str(path.relative_to(root)) for path in sorted((root / folder).rglob("*")) if path.is_file()]
