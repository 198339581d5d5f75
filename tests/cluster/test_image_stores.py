"""A store on a file system of a real kind that has neither links, modes nor owners: exFAT, on a loop device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import shell
from kit.errors import ToolError
from tests.cluster.image_lab import needs_root, rootfs
from tests.support import REPO


@pytest.fixture
def exfat(tmp_path: Path) -> Iterator[Path]:
    """An exFAT file system of 64 MiB, mounted."""
    try:
        make = shell.require("mkfs.exfat", hint="apt-get install exfatprogs")
        mount = shell.require("mount.exfat-fuse", hint="apt-get install exfat-fuse")
        disk, place = tmp_path / "disk", tmp_path / "exfat"
        with disk.open("wb") as file:
            file.truncate(64 << 20)
        place.mkdir()
        shell.run([make, str(disk)])
        device = shell.run(["losetup", "--find", "--show", str(disk)]).stdout
    except ToolError as error:
        pytest.skip(error.message)
    try:
        shell.run([mount, device, str(place)])
        if not os.path.ismount(place):  # its own code is 0 where FUSE is not allowed
            pytest.skip("nothing may be mounted by FUSE here")
        yield place
        shell.run(["umount", str(place)])
    finally:
        shell.run(["losetup", "--detach", device])


def kit(project: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kit", *words],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@needs_root
def test_a_store_without_links_or_modes(tmp_path: Path, exfat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    project, tree = tmp_path / "project", rootfs(tmp_path / "tree")
    project.mkdir()
    with tarfile.open(tmp_path / "tree.tar", "w") as archive:
        archive.add(tree, arcname=".")
    (exfat / "a").touch()
    with pytest.raises(PermissionError):
        (exfat / "b").hardlink_to(exfat / "a")
    results = []
    for store in (exfat / "store", tmp_path / "ordinary"):
        both = [
            kit(project, "import-image", str(source), "--name", name, "--store", str(store), "--json")
            for source, name in (
                (tmp_path / "tree.tar", "by-tar"),
                (tmp_path / "tree.tar", "by-tar"),
                (tree, "by-mount"),
            )
        ]
        for process in both:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            results.append(json.loads(out))
    assert {result["method"] for result in results[2::3]} == {"reading the folder"}
    by_name = {name: {r["digest"] for r in results if r["name"] == name} for name in ("by-tar", "by-mount")}
    assert {len(digests) for digests in by_name.values()} == {1}
    assert [list((exfat / "store" / name).iterdir()) for name in ("tmp", "locks")] == [[], []]
    for lock in project.glob("containers/*/image.lock"):
        lock.unlink()
    pruned = kit(project, "prune-images", "--older-than", "0", "--store", str(exfat / "store"), "--json")
    out, err = pruned.communicate(timeout=60)
    assert len(json.loads(out)["removed"]) == len({r["digest"] for r in results}), err
