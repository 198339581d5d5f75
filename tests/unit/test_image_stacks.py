"""Random stacks of layers: the merged tree is that of folders which are laid over one another, as engines lay them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.errors import ImageError
from kit.images.sources import layer_tree, tree_edits, tree_stream
from kit.images.sources.tree_edits import Edit
from tests.cluster import image_corpus as corpus

# A layer's own tree: name -> content, a folder's content, or a link's target. A folder that is opaque holds the mark.
OPAQUE, GONE = ".opaque", None
Tree = dict[str, "Tree | bytes | str | None"]

names = st.sampled_from(["a", "b", "b-", "c.d", "é"])
leaves = st.one_of(st.binary(max_size=3), st.sampled_from(["a", "/x", "../b"]), st.just(GONE))
trees: st.SearchStrategy[Tree] = st.recursive(
    st.dictionaries(names, leaves, max_size=4),
    lambda inner: st.dictionaries(st.one_of(names, st.just(OPAQUE)), st.one_of(leaves, inner), max_size=4),
    max_leaves=12,
)


def members(tree: Tree, folder: str = "") -> list[corpus.Member]:
    """The tar of a layer with this tree."""
    found = []
    for name, what in tree.items():
        path = f"{folder}{name}"
        if name == OPAQUE:
            found.append(corpus.opaque(folder.rstrip("/")) if folder else corpus.f(".wh..wh..opq"))
        elif what is GONE:
            found.append(corpus.gone(path))
        elif isinstance(what, bytes):
            found.append(corpus.f(path, what))
        elif isinstance(what, str):
            found.append(corpus.link(path, what))
        else:
            assert isinstance(what, dict)
            found += [corpus.d(path), *members(what, f"{path}/")]
    return found


def laid_over(lower: Tree, upper: Tree) -> Tree:
    """What an overlay of two trees shows."""
    shown: Tree = {} if OPAQUE in upper else dict(lower)
    for name, what in upper.items():
        if name == OPAQUE:
            continue
        below = shown.get(name)
        if what is GONE:
            shown.pop(name, None)
        elif isinstance(what, dict):
            shown[name] = laid_over(below if isinstance(below, dict) else {}, what)
        else:
            shown[name] = what
    return shown


def flat(tree: Tree, folder: str = "") -> dict[str, bytes | str | None]:
    found: dict[str, bytes | str | None] = {}
    for name, what in tree.items():
        found[f"{folder}{name}"] = None if isinstance(what, dict) else what
        if isinstance(what, dict):
            found |= flat(what, f"{folder}{name}/")
    return found


def merged(stack: list[Tree]) -> dict[str, bytes | str | None]:
    with tempfile.TemporaryDirectory() as work:
        files = []
        for number, tree in enumerate(stack):
            files.append(Path(work) / f"{number}.tar")
            files[-1].write_bytes(corpus.tar_of(members(tree)))
        found: dict[str, bytes | str | None] = {}
        with layer_tree.merged(files) as tree_:
            for member, data in tree_.entries():
                content = data.read(1 << 20) if data is not None else None
                found[member.name] = member.linkname if member.issym() else content
            assert list(found) == sorted(found, key=tree_edits.walk_key)
        return found


def check(stack: list[Tree]) -> None:
    expected: Tree = {}
    for tree in stack:
        expected = laid_over(expected, tree)
    assert merged(stack) == flat(expected)


stacks = st.lists(trees, min_size=1, max_size=5)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(stack=stacks)
def test_a_stack_is_what_an_overlay_shows(stack: list[Tree]) -> None:
    check(stack)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(stack=stacks)
def test_five_thousand_stacks_are_what_an_overlay_shows(stack: list[Tree]) -> None:
    check(stack)


@settings(max_examples=50, deadline=None)
@given(damage=st.integers(0, 2000), value=st.integers(0, 255))
def test_a_damaged_layer_is_read_or_refused(damage: int, value: int) -> None:
    tar = bytearray(corpus.tar_of([corpus.d("a"), corpus.f("a/b", b"x" * 600), corpus.hard("c", "a/b")]))
    tar[damage] = value
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "x.tar"
        file.write_bytes(tar)
        try:
            with layer_tree.merged([file]) as tree:
                edit = Edit(additions=(), dropped=())
                assert b"".join(tree_stream.edited(tree.entries(), edit, Path(work)))
        except ImageError as error:
            assert "x.tar" in error.message or ":" in error.message
