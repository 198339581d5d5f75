"""Hot pages: what a start reads of an image is learnt, used by the next one, and nothing of another user is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kit import shell
from tests import laid_out
from tests.support import NODE, write_libraries

BIN = laid_out.BIN
DIGEST = "a" * 64
sys.path.insert(0, str(NODE))
import hot_pages  # noqa: E402
import squashfs_image  # noqa: E402

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it mounts an image")
# Files of several blocks, one of a fragment, and one that is all holes.
FILES = {"one": 700_000, "folder/two": 900_000, "folder/deep/three": 5_000, "four": 400_000}


@pytest.fixture(params=["zstd", "gzip", "xz", "lz4"])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An image in a store below a folder of runs, with files that do not compress to nothing."""
    tree = tmp_path / "tree"
    for name, size in FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(os.urandom(size // 2) + b"x" * (size - size // 2))
    with (tree / "holes").open("wb") as file:
        file.truncate(300_000)
    (tree / "link").symlink_to("one")
    path = tmp_path / f"{DIGEST}.sqsh"
    shell.run(["mksquashfs", str(tree), str(path), "-comp", request.param, "-noappend", "-quiet", "-no-progress"])
    return path


def test_every_file_is_found_with_its_blocks(image: Path, tmp_path: Path) -> None:
    read = squashfs_image.Image(str(image))
    found = {file.path.lstrip("/"): file for file in read.files()}
    assert {name: file.size for name, file in found.items()} == {**FILES, "holes": 300_000}
    assert all(length == 0 for _, length in found["holes"].blocks)
    blocks = [block for file in found.values() for block in file.blocks if block[1]]
    assert all(start >= 96 and start + length <= read.inodes for start, length in blocks)
    assert len(set(blocks)) == len(blocks)
    assert found["folder/deep/three"].fragment is not None


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.sqsh").write_bytes(b"no" * 100)
    with pytest.raises(squashfs_image.UnreadableImageError, match="no squashfs image"):
        squashfs_image.Image(str(tmp_path / "no.sqsh"))


@needs_root
def test_only_what_was_read_is_hot(image: Path, tmp_path: Path) -> None:
    """In a mount namespace, so that the mount is nobody else's, and gone with its process."""
    (tmp_path / "mnt").mkdir()
    script = f"""
import os, sys
sys.path.insert(0, {str(NODE)!r})
import hot_pages, squashfs_image
image, root = squashfs_image.Image({str(image)!r}), {str(tmp_path / "mnt")!r}
assert list(hot_pages.used_blocks(image, root)) == []
open(root + "/folder/two", "rb").read()
used = set(hot_pages.used_blocks(image, root))
files = {{file.path: file for file in image.files()}}
assert used >= set(files["/folder/two"].blocks), used
assert not used & set(files["/one"].blocks + files["/four"].blocks), used
print("learnt")
"""
    mount = f"mount -t squashfs -o loop,ro {image} {tmp_path}/mnt && exec {sys.executable} - <<'END'\n{script}\nEND"
    (tmp_path / "script.sh").write_text(mount)
    words = ["unshare", "--mount", "--propagation", "private", "bash", str(tmp_path / "script.sh")]
    assert shell.run(words).stdout == "learnt"


def test_near_parts_are_joined() -> None:
    far = hot_pages.NEAR + 20
    assert hot_pages.joined([(far + 10, 5), (0, 10), (12, 8), (0, 10)]) == [(0, 20), (far + 10, 5)]


def start(tmp_path: Path, text: str, *, mode: int = 0o600) -> tuple[Path, Path]:
    """A run folder beside the list of an image: the programs of the run, and the list."""
    run, folder = tmp_path / "runs/run", tmp_path / "runs/.hot-pages"
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    run.mkdir()
    write_libraries(run)
    (run / "bin").symlink_to(BIN)
    (folder / DIGEST).write_text(text)
    (folder / DIGEST).chmod(mode)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "dd").write_text(f'#!/bin/bash\necho "$*" >>{tmp_path}/reads\n')
    (programs / "fincore").write_text("#!/bin/bash\necho ${CACHED:-0}\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    return run, folder / DIGEST


def reads(tmp_path: Path, run: Path, **env: str) -> list[str]:
    """What read-ahead.sh reads of the image: `skip=OFFSET count=LENGTH` each."""
    (tmp_path / "reads").unlink(missing_ok=True)
    image = tmp_path / f"{DIGEST}.sqsh"
    image.write_bytes(b"x" * 100)
    given = {"PATH": f"{tmp_path}/programs:{os.environ['PATH']}", **env}
    shell.run([str(run / "bin/read-ahead.sh"), str(image)], env=given)
    path = tmp_path / "reads"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(" ".join(word for word in line.split() if word.startswith(("skip=", "count="))) for line in lines)


LIST = "# settled\n10 20\n500 7\n"


def test_the_list_is_read_ahead(tmp_path: Path) -> None:
    run, _ = start(tmp_path, LIST)
    assert reads(tmp_path, run) == ["skip=10 count=20", "skip=500 count=7"]


def test_nothing_is_read_where_the_node_has_it(tmp_path: Path) -> None:
    run, _ = start(tmp_path, LIST)
    assert reads(tmp_path, run, CACHED="27") == []
    assert len(reads(tmp_path, run, CACHED="26")) == 2


def test_a_damaged_list_reads_its_good_lines(tmp_path: Path) -> None:
    run, _ = start(tmp_path, "# growing\n-1 5\n$(touch x) 1\n3 4 5\n" + "9" * 40 + " 1\n")
    assert reads(tmp_path, run) == ["skip=3 count=4"]


def test_a_list_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    run, _ = start(tmp_path, LIST, mode=0o666)
    assert reads(tmp_path, run) == []


@needs_root
@pytest.mark.parametrize("what", ["list", "folder"])
def test_a_list_of_another_user_is_not_used(tmp_path: Path, what: str) -> None:
    run, path = start(tmp_path, LIST)
    os.chown(path if what == "list" else path.parent, 12345, 12345)
    assert reads(tmp_path, run) == []


def test_a_link_in_place_of_the_list_is_not_used(tmp_path: Path) -> None:
    run, path = start(tmp_path, LIST)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert reads(tmp_path, run) == []


def test_a_list_grows_until_a_late_look_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "list"
    looks = [[(1000, 10_000)], [(5_000_000, 10_000)], [(1000, 10_000)]]

    class Known:
        inodes, used, block_size = 90_000_000, 90_001_000, 131072

    monkeypatch.setattr(hot_pages, "rank_root", lambda _job: "/")
    monkeypatch.setattr(hot_pages, "Image", lambda _path: Known())
    monkeypatch.setattr(hot_pages, "used_blocks", lambda _image, _root: iter(looks.pop(0)))
    found = []
    for seconds in ("10", "60", "300"):
        hot_pages.main("image", str(path), "1", seconds)
        found.append(path.read_text().splitlines())
    everything = ["1000 10000", "5000000 10000", "90000000 1000"]
    assert found[0] == ["# growing", "1000 10000", "90000000 1000"]
    assert found[1] == ["# growing", *everything]
    assert found[2] == ["# settled", *everything]
    assert [one.name for one in tmp_path.iterdir()] == ["list"]


def test_an_image_that_seems_to_be_read_whole_is_not_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file of another user, the kernel says that every page is cached."""

    class Known:
        inodes, used, block_size = 990, 1000, 131072

    monkeypatch.setattr(hot_pages, "rank_root", lambda _job: "/")
    monkeypatch.setattr(hot_pages, "Image", lambda _path: Known())
    monkeypatch.setattr(hot_pages, "used_blocks", lambda _image, _root: iter([(96, 894)]))
    hot_pages.main("image", str(tmp_path / "list"), "1", "60")
    assert not (tmp_path / "list").exists()
    assert "904 of 1000 bytes seem to be read" in capsys.readouterr().out
