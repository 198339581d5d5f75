"""The wheel: all that the kit needs is inside, so that it works where there is no checkout."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest

from kit import shell
from tests.support import REPO, write_job

pytest.importorskip("hatchling", reason="hatchling is not installed: make setup")


def test_a_wheel_stands_by_itself(tmp_path: Path) -> None:
    stray = REPO / "docs" / "schema" / f"of-my-own-{os.getpid()}.txt"
    stray.touch()
    try:
        shell.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)], cwd=REPO)
    finally:
        stray.unlink()
    (wheel,) = tmp_path.glob("*.whl")
    place = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    assert len(list(place.glob("*.data/data/share/man/man1/kit*.1"))) > 40, "man pages"
    inside = place / "kit" / "_data"
    kinds = {"clusters", "containers", "docs", "examples", "launchers", "mounts", "tables", "templates"}
    assert {path.name for path in inside.iterdir()} == kinds
    assert not (inside / "docs" / "schema" / stray.name).exists(), "what is not committed stays at home"
    assert (inside / "examples" / "ddp" / "../../docs/schema/job.schema.json").is_file(), (
        "editors find it from an example"
    )
    write_job(tmp_path / "project", 'name = "x"\nlauncher = "fsdp"\n[resources]\nnodes = 2\n')
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(place)}
    words = ["render", "--cluster", "pod", "--no-container", "-o", "made"]
    shell.run([sys.executable, "-P", "-m", "kit", *words], cwd=tmp_path / "project", env=env)
    assert "--nodes=2" in (tmp_path / "project" / "made" / "batch.sh").read_text()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "train.py").write_text("print(1)\n")
    (mine / "requirements.txt").write_text("einops\n")
    said = shell.run([sys.executable, "-P", "-m", "kit", "init"], cwd=mine, env=env).stderr
    assert "kit build-image mine; kit submit --follow" in said, "the base and its lock are in the wheel"
    shell.run([sys.executable, "-P", "-m", "kit", "render", "--no-container"], cwd=mine, env=env)
