"""image_blocks: a list of blocks, and what is found wrong with it or with a file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import image_blocks
import pytest

SIZE = 600_000


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Two whole blocks, and a shorter one."""
    path = tmp_path / "image"
    path.write_bytes(os.urandom(SIZE))
    return path


def listed(path: Path, copy: Path | None = None) -> image_blocks.BlockList:
    with path.open("rb") as source:
        if copy is None:
            return image_blocks.make(source.fileno())
        with copy.open("wb") as target:
            return image_blocks.make(source.fileno(), target.fileno())


def test_a_list_names_every_block_and_the_copy_has_the_same_bytes(image: Path, tmp_path: Path) -> None:
    made = listed(image, tmp_path / "copy")
    content = image.read_bytes()
    assert (tmp_path / "copy").read_bytes() == content
    assert made.sha256 == hashlib.sha256(content).hexdigest()
    assert (made.count, made.block) == (3, 256 * 1024)
    pieces = [content[made.offset(i) : made.offset(i) + made.length(i)] for i in range(made.count)]
    assert b"".join(pieces) == content
    assert all(made.fits(i, piece) for i, piece in enumerate(pieces))
    assert not made.fits(0, pieces[1])


def test_the_text_of_a_list_is_read_again(image: Path) -> None:
    made = listed(image)
    read = image_blocks.parse(made.text(), made.sha256)
    assert read is not None
    assert vars(read) == vars(made)


def test_a_text_that_is_not_a_whole_list_of_the_image_is_none(image: Path) -> None:
    made = listed(image)
    text, sha256 = made.text(), made.sha256
    head, _, body = text.partition("\n")
    for wrong in (
        "",
        head,
        text.replace("kit-blocks-1", "kit-blocks-2"),
        text.replace(f" {SIZE} ", f" {SIZE * 2} "),
        text.replace(f" {SIZE} ", " many "),
        text.replace(f" {made.block}\n", " 0\n"),
        f"{head}\n{body[: len(body) // 2]}",
        f"{head}\n{body}{'a' * 64}\n",
        f"{head}\n{body.replace(made.digests[1], made.digests[1][:-1])}",
    ):
        assert wrong != text
        assert image_blocks.parse(wrong, sha256) is None, wrong[:120]
    assert image_blocks.parse(text, "0" * 64) is None


def test_blocks_count_until_the_first_wrong_one(image: Path) -> None:
    made = listed(image)
    with image.open("r+b") as file:
        assert image_blocks.good_prefix(file.fileno(), made) == 3
        image_blocks.write_at(file.fileno(), made.offset(1) + 5, b"wrong")
        assert image_blocks.good_prefix(file.fileno(), made) == 1
        file.truncate(100)
        assert image_blocks.good_prefix(file.fileno(), made) == 0


def test_a_file_that_ends_early_is_said_with_its_place(image: Path) -> None:
    with image.open("rb") as file:
        assert len(image_blocks.read_at(file.fileno(), SIZE - 10, 10)) == 10
        with pytest.raises(EOFError, match=f"ends at byte {SIZE}"):
            image_blocks.read_at(file.fileno(), SIZE - 10, 11)


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 1 << 30, (1 << 30) + 1, 40 << 30])
def test_a_list_has_at_most_4096_blocks_of_a_power_of_two(size: int) -> None:
    block = image_blocks.block_bytes(size)
    assert block & (block - 1) == 0
    assert block >= 256 * 1024
    assert -(-size // block) <= 4096
