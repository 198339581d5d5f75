"""Changes to an image's file tree: files that are added and removed. Every string of the image's author arrives unchanged."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.errors import ImageError
from kit.images.sources import layer_tree, tree_edits, tree_stream
from kit.images.squash import enroot_layout
from kit.schema.image import ImageConfig

# What execve(2) can carry.
words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


def run_rc(config: ImageConfig, *arguments: str) -> list[str]:
    """Run /etc/rc with `printf` standing in for the container's program; return what it was given."""
    script = enroot_layout.rc(config, "a test")
    done = subprocess.run(["sh", "-c", script, "rc", *arguments], capture_output=True, check=True)
    return done.stdout.decode(errors="surrogateescape").split("\0")[:-1]


@settings(deadline=None)  # a shell is started for each example
@given(cmd=st.lists(words, min_size=1, max_size=4), label=words)
def test_the_command_arrives_as_it_was_written(cmd: list[str], label: str) -> None:
    config = ImageConfig(entrypoint=("printf", "%s\\0"), cmd=tuple(cmd), labels={"label": label})
    assert run_rc(config) == cmd


@settings(deadline=None)
@given(given_words=st.lists(words, min_size=1, max_size=4))
def test_arguments_replace_the_command_and_follow_the_entrypoint(given_words: list[str]) -> None:
    config = ImageConfig(entrypoint=("printf", "%s\\0"), cmd=("unused",))
    assert run_rc(config, *given_words) == given_words


def test_the_working_directory_is_made_and_entered(tmp_path: Path) -> None:
    place = tmp_path / "it's $HOME"
    config = ImageConfig(workdir=str(place), entrypoint=("sh", "-c", 'printf "%s\\0" "$PWD" "${OLDPWD-unset}"'))
    assert run_rc(config) == [str(place), "unset"]


def test_a_newline_in_a_value_goes_around_etc_environment() -> None:
    config = ImageConfig(env={"ONE": "a=b", "TWO": "x\ny"}, entrypoint=("sh", "-c", 'printf "%s\\0" "$TWO"'))
    assert enroot_layout.environment(config) == "ONE=a=b\n"
    assert run_rc(config) == ["x\ny"]


def test_what_enroot_cannot_carry_is_said() -> None:
    config = ImageConfig(env={"A": "x\ny", "B": "${HOME}/x", "ENROOT_X": "1", "FINE": "$HOME"})
    assert [warning.split()[1] for warning in enroot_layout.warnings(config)] == ["A", "B", "ENROOT_X"]


def test_volumes_become_bind_lines_with_blanks_escaped() -> None:
    assert enroot_layout.fstab(ImageConfig(volumes=("/b c", "/a"))) == (
        "${ENROOT_ROOTFS}/a /a none x-create=dir,bind,rw,nosuid,nodev\n"
        "${ENROOT_ROOTFS}/b\\040c /b\\040c none x-create=dir,bind,rw,nosuid,nodev\n"
    )


@pytest.mark.parametrize(
    ("path", "dropped"),
    [
        ("dev", False),
        ("dev/null", True),
        ("dev/shm/x", True),
        ("etc/passwd-", True),
        ("etc/passwd", False),
        ("etc/deep/passwd-", False),
        ("var/log/dpkg.log", True),
        ("var/log/deep/x.log", False),
        ("root/.cache/pip/x", True),
        ("etc/rc", True),
        ("etc/rc.d", False),
        ("tmp", False),
        ("tmp/x", True),
    ],
)
def test_what_a_build_drops(path: str, dropped: bool) -> None:
    edit = enroot_layout.edit(ImageConfig(), provenance="a test", noise=tree_edits.BUILD_NOISE)
    assert edit.drops(path) is dropped


def tar_of(*members: tuple[str, bytes | str | None], format_: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar: (name, content), (name, None) for a folder, (name, target) for a symbolic link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format_) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if content is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o500
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
            else:
                member.size, member.mode = len(content), 0o000
            archive.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


def edited(tar: bytes, config: ImageConfig, work: Path) -> dict[str, tarfile.TarInfo]:
    chunks = (tar[start : start + 700] for start in range(0, len(tar), 700))
    out = b"".join(
        tree_stream.edited(tree_stream.parsed(chunks), enroot_layout.edit(config, provenance="a test"), work)
    )
    with tarfile.open(fileobj=io.BytesIO(out)) as archive:
        names = [member.name for member in archive.getmembers()]
        assert names == sorted(names, key=tree_edits.walk_key)
        assert len(names) == len(set(names))
        return {member.name: member for member in archive.getmembers()}


def test_additions_are_merged_into_the_walk_and_modes_opened(tmp_path: Path) -> None:
    tar = tar_of(
        ("bin", None), ("bin/sh", b"x" * 5000), ("etc", None), ("etc/rc", b"old"), ("usr", None), ("usr/a", b"")
    )
    found = edited(tar, ImageConfig(workdir="/srv/work"), tmp_path)
    assert found["etc/rc"].size > 3
    assert found["bin"].mode == 0o700
    assert found["bin/sh"].mode == 0o400
    assert found["bin/sh"].size == 5000
    assert found["srv/work"].isdir()
    assert found["etc/mtab"].linkname == "/proc/mounts"


def test_a_folder_is_not_made_below_a_link(tmp_path: Path) -> None:
    found = edited(tar_of(("etc", None), ("srv", "/elsewhere")), ImageConfig(workdir="/srv/work"), tmp_path)
    assert found["srv"].issym()
    assert "srv/work" not in found


def links(*members: tuple[str, bytes | str]) -> bytes:
    """A tar: (name, content), or (name, target) for a hard link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.LNKTYPE, content
            else:
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
    return out.getvalue()


def test_a_dropped_file_lives_on_under_its_other_names(tmp_path: Path) -> None:
    """The second name is dropped, too, and the fourth is a link to it."""
    found = edited(
        links(("dev/a", b"abc"), ("dev/b", "dev/a"), ("x", "dev/a"), ("y", "dev/b")), ImageConfig(), tmp_path
    )
    assert (found["x"].size, found["y"].linkname) == (3, "x")
    assert not {"dev/a", "dev/b"} & set(found)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "again", [[("dev/a", "dev/a")], [("dev/b", "dev/a"), ("dev/a", "dev/b")]], ids=["itself", "in a circle"]
)
def test_a_dropped_name_that_comes_twice_ends(tmp_path: Path, again: list[tuple[str, str]]) -> None:
    found = edited(links(("dev/a", b"abc"), *again, ("x", "dev/a")), ImageConfig(), tmp_path)
    assert found["x"].size == 3


@pytest.mark.parametrize(("target", "kept"), [("../../x", "../../x"), ("/x", "/x")])
def test_a_symbolic_link_may_name_any_path(tmp_path: Path, target: str, kept: str) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, target
        archive.addfile(link)
    assert edited(out.getvalue(), ImageConfig(), tmp_path)["a"].linkname == kept


@pytest.mark.parametrize("name", ["../x", "a/../../x", "./../x"])
def test_a_member_that_leads_out_of_the_image_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{re.escape(name)}: leads out of the image"):
        edited(links((name, b"abc")), ImageConfig(), tmp_path)


def test_a_hard_link_to_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"^y: a hard link to z, which is not in the image$"):
        edited(links(("x", b"abc"), ("y", "z")), ImageConfig(), tmp_path)


def merged(tmp_path: Path, *tars: bytes) -> dict[str, bytes | str | None]:
    files = []
    for number, content in enumerate(tars):
        files.append(tmp_path / f"{number}.tar")
        files[-1].write_bytes(content)
    found: dict[str, bytes | str | None] = {}
    with layer_tree.merged(files) as tree_:
        for member, data in tree_.entries():
            found[member.name] = data.read(1 << 20) if data else member.linkname or None
    assert list(found) == sorted(found, key=tree_edits.walk_key)
    return found


def test_layers_hide_and_replace_what_is_below(tmp_path: Path) -> None:
    low = tar_of(("a", None), ("a/old", b"1"), ("b", None), ("b/x", b"2"), ("c", b"3"), ("d", None), ("d/e", b"4"))
    high = tar_of(
        ("a", None), ("a/.wh..wh..opq", b""), ("a/new", b"5"), ("b", None), ("b/.wh.x", b""), ("c", None), ("d", b"6")
    )
    assert merged(tmp_path, low, high) == {"a": None, "a/new": b"5", "b": None, "c": None, "d": b"6"}


def test_a_whiteout_does_not_hide_its_own_layer(tmp_path: Path) -> None:
    assert merged(tmp_path, tar_of(("x", b"1")), tar_of(("x", b"2"), (".wh.x", b""))) == {"x": b"2"}


def test_hard_links_stay_links_to_whichever_name_comes_first(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        file = tarfile.TarInfo("z")
        file.size = 3
        archive.addfile(file, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.LNKTYPE, "./z"
        archive.addfile(link)
    assert merged(tmp_path, out.getvalue()) == {"a": b"abc", "z": "a"}
