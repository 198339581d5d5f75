"""The FUSE program that mounts an image, and the `squashfuse` that Enroot finds first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out

CACHED = "kernel_cache,entry_timeout=86400,attr_timeout=86400,negative_timeout=86400"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with its programs, and stand-ins of both FUSE programs that print how they were called."""
    run = tmp_path / "runs/run"
    (run / "bin").mkdir(parents=True)
    (run / "lib").symlink_to(laid_out.LIB)
    (run / "bin/fuse").symlink_to(laid_out.BIN / "fuse")
    for name in ("squashfuse", "squashfuse_ll"):
        path = tmp_path / "programs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('#!/bin/bash\necho "${0##*/} $*"\n')
        path.chmod(0o755)
    return tmp_path


def image(folder: Path, *owner: str) -> Path:
    """A small image; by default of files that root owns."""
    (folder / "tree").mkdir()
    (folder / "tree/file").write_text("text")
    path = folder / "image.sqsh"
    shell.run(["mksquashfs", str(folder / "tree"), str(path), "-quiet", "-no-progress", *(owner or ("-all-root",))])
    return path


def called(folder: Path, *words: str) -> str:
    run = folder / "runs/run"
    path = f"{run}/bin/fuse:{folder}/programs:/usr/bin:/bin"
    return shell.run([f"{run}/bin/fuse/squashfuse", *words], env={"PATH": path}).stdout.strip()


def test_root_in_the_container_gets_the_program_without_owners(folder: Path) -> None:
    file = image(folder)
    assert called(folder, "-f", "-o", "uid=0,gid=0", str(file), "/mnt") == f"squashfuse_ll -f {file} /mnt"


def test_another_user_keeps_the_owners_that_enroot_asks_for(folder: Path) -> None:
    file = image(folder)
    said = called(folder, "-f", "-o", "uid=1000,gid=1000", str(file), "/mnt")
    assert said == f"squashfuse -o {CACHED} -f -o uid=1000,gid=1000 {file} /mnt"


@pytest.mark.parametrize("owner", [("-force-uid", "7"), ("-force-uid", "7", "-force-gid", "7")])
def test_an_image_with_other_owners_keeps_them_hidden(folder: Path, owner: tuple[str, ...]) -> None:
    """Enroot shows all files as the user's own."""
    file = image(folder, *owner)
    assert called(folder, "-f", "-o", "uid=0,gid=0", str(file), "/mnt").startswith(
        f"squashfuse -o {CACHED} -f -o uid=0"
    )


def test_a_node_without_squashfuse_ll(folder: Path) -> None:
    (folder / "programs/squashfuse_ll").unlink()
    file = image(folder)
    run = folder / "runs/run"
    # Only the programs that the script itself needs.
    for name in ("bash", "od", "env", "setsid"):
        (folder / "programs" / name).symlink_to(f"/usr/bin/{name}")
    env = {"PATH": f"{run}/bin/fuse:{folder}/programs"}
    said = shell.run(
        [f"{run}/bin/fuse/squashfuse", "-f", "-o", "uid=0,gid=0", str(file), "/mnt"], env=env
    ).stdout.strip()
    assert said == f"squashfuse -o {CACHED} -f {file} /mnt"


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0, reason="needs root and /dev/fuse")
@pytest.mark.parametrize("program", ["squashfuse", "squashfuse_ll"])
def test_the_real_programs_take_these_options(folder: Path, program: str) -> None:
    if shell.which(program) is None:
        pytest.skip(f"{program} is not installed")
    file, place = image(folder), folder / "mnt"
    place.mkdir()
    options = "image_mount::use_cached" if program == "squashfuse" else "image_mount::choose_fuse"
    script = folder / "script.sh"
    script.write_text(
        f"source {laid_out.LIB}/image_mount.sh\n{options}\n"
        f'"${{image_mount_fuse[@]}}" {file} {place} && cat {place}/file && umount {place}\n'
    )
    assert shell.run(["unshare", "--mount", "--propagation", "private", "bash", str(script)]).stdout == "text"
