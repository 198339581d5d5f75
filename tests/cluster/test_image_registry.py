"""Layers of a real registry: several at once, resumed, kept by digest, shared by images, and never with wrong bytes."""

from __future__ import annotations

import gzip
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kit.cli import app
from kit.errors import ImageError, UsageError
from kit.images import importing, squash_and_lock
from kit.images.progress import Silent
from kit.images.sources import layer_cache
from tests.cluster import image_corpus as corpus
from tests.cluster.faulty_registry import Faults, proxy, push, registry


def layer(number: int) -> bytes:
    content = random.Random(number).randbytes(200_000)
    return gzip.compress(corpus.tar_of([corpus.d(f"d{number}"), corpus.f(f"d{number}/f", content)]), mtime=0)


LAYERS = [layer(number) for number in range(5)]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry") / "own") as place:
        push(place, "team/four", LAYERS[:4])
        push(place, "team/other", [LAYERS[0], LAYERS[4]])
        yield place


@pytest.fixture
def faults(real: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Faults]]:
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(layer_cache, "_FIRST_WAIT_S", 0.01)
    with proxy(real) as found:
        yield found


def take(place: str, work: Path, *, image: str = "four", name: str = "") -> squash_and_lock.Outcome:
    (work / "project").mkdir(exist_ok=True)
    order = importing.ImportOrder(
        uri=f"docker://{place}#team/{image}:1", name=name or image, project=work / "project", store=work / "store"
    )
    return importing.run(order, Silent())


def cached() -> dict[str, int]:
    return {place.name: place.stat().st_size for place in layer_cache.folder().iterdir()}


def test_layers_come_at_once_and_are_shared(faults: tuple[str, Faults], tmp_path: Path) -> None:
    place, proxied = faults
    proxied.delay_s = 0.3
    first = take(place, tmp_path)
    assert first.built
    assert proxied.most_at_once > 1
    assert [proxied.of(one) for one in LAYERS] == [[""], [""], [""], [""], []]
    take(place, tmp_path, image="other")
    assert [len(proxied.of(one)) for one in LAYERS] == [1, 1, 1, 1, 1]
    assert not take(place, tmp_path).built
    assert take(place, tmp_path, name="again").lock.sha256 == first.lock.sha256
    assert [len(proxied.of(one)) for one in LAYERS] == [1, 1, 1, 1, 1]
    assert first.lock.base.digest.startswith("sha256:")
    # By the digest, and from a layout that holds the same layers.
    (tmp_path / "project").mkdir(exist_ok=True)
    tars = [gzip.decompress(one) for one in LAYERS[:4]]
    layout = corpus.oci_layout(tmp_path / "layout", tars, {}, packed=True)
    order = importing.ImportOrder(
        uri=str(layout), name="layout", project=tmp_path / "project", store=tmp_path / "store"
    )
    by_layout = importing.run(order, Silent()).image.stat().st_size
    assert abs(by_layout - first.image.stat().st_size) < 8192  # but for the provenance in /etc/rc


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_in_the_middle_of_a_layer(faults: tuple[str, Faults], tmp_path: Path, *, ranges: bool) -> None:
    place, proxied = faults
    proxied.cuts, proxied.ranges = [120_000], ranges
    made = take(place, tmp_path)
    ranged = [part for one in LAYERS[:4] for part in proxied.of(one) if part]
    assert len(ranged) == 1
    assert 0 < int(ranged[0].removeprefix("bytes=").rstrip("-")) <= 120_000
    assert sorted(cached().values()) == sorted(len(one) for one in LAYERS[:4])
    for one in layer_cache.folder().iterdir():
        one.unlink()
    assert take(place, tmp_path, name="whole").lock.sha256 == made.lock.sha256


def test_a_line_that_stays_cut_leaves_what_came_for_the_next_time(faults: tuple[str, Faults], tmp_path: Path) -> None:
    place, proxied = faults
    proxied.cuts = [100_000, *[0] * 100]
    with pytest.raises(ImageError, match="the connection broke off 6 times") as caught:
        take(place, tmp_path)
    assert "the bytes received so far are kept" in caught.value.hint
    assert list((tmp_path / "store/sha256").iterdir()) == list((tmp_path / "store/tmp").iterdir()) == []
    (partial,) = [name for name, size in cached().items() if size]
    assert partial.endswith(".partial")
    proxied.cuts, proxied.asked = [], []
    take(place, tmp_path)
    assert len([part for _, part in proxied.asked if part]) == 1
    assert len(cached()) == 4


def test_a_registry_that_limits_requests_is_asked_again(
    faults: tuple[str, Faults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First for the manifests, then for the layers."""
    place, proxied = faults
    proxied.limited = 2
    made = take(place, tmp_path)
    assert (made.built, proxied.limited) == (True, 0)
    for one in layer_cache.folder().iterdir():
        one.unlink()
    fetch, proxied.asked = layer_cache.fetch, []

    def limit_first(*args: Any, **options: Any) -> None:
        proxied.limited = 3
        fetch(*args, **options)

    monkeypatch.setattr(layer_cache, "fetch", limit_first)
    again = take(place, tmp_path, name="again")
    assert (again.lock.sha256, proxied.limited) == (made.lock.sha256, 0)
    assert [len(proxied.of(one)) for one in LAYERS[:4]] == [1, 1, 1, 1]


def test_wrong_bytes_are_fetched_by_nobody(faults: tuple[str, Faults], tmp_path: Path) -> None:
    place, proxied = faults
    proxied.spoil = True
    with pytest.raises(ImageError, match="do not match its digest"):
        take(place, tmp_path)
    assert list((tmp_path / "store/sha256").iterdir()) == []
    assert not any(name.startswith("sha256") and not name.endswith(".partial") for name in cached())
    proxied.spoil = False
    assert take(place, tmp_path).built


def test_what_was_kept_and_is_damaged_is_fetched_anew(faults: tuple[str, Faults], tmp_path: Path) -> None:
    place, proxied = faults
    made = take(place, tmp_path)
    whole = sorted(layer_cache.folder().glob("sha256-*"))
    whole[0].write_bytes(bytes(whole[0].stat().st_size))
    with pytest.raises(ImageError, match=r"instead of sha256:|damaged"):
        take(place, tmp_path, name="second")
    assert not whole[0].exists()
    whole[1].rename(whole[1].with_name(f"{whole[1].name}.partial")).write_bytes(bytes(70_000))
    assert take(place, tmp_path, name="second").lock.sha256 == made.lock.sha256
    assert len(proxied.asked) > 8


def test_two_imports_at_once_fetch_each_layer_once(faults: tuple[str, Faults], tmp_path: Path) -> None:
    place, proxied = faults
    proxied.delay_s = 0.3
    made: list[squash_and_lock.Outcome] = []
    both = [
        threading.Thread(target=lambda name=name: made.append(take(place, tmp_path, name=name))) for name in ("a", "b")
    ]
    (tmp_path / "project").mkdir()
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len({outcome.lock.sha256 for outcome in made}) == 1
    assert len(made) == 2
    assert [len(proxied.of(one)) for one in LAYERS[:4]] == [1, 1, 1, 1]


def test_the_cache_is_bounded_and_pruned(
    faults: tuple[str, Faults], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = faults
    take(place, tmp_path)
    old = sorted(layer_cache.folder().glob("sha256-*"))
    for number, one in enumerate(old):
        os.utime(one, (time.time() - 7200 + number,) * 2)
    monkeypatch.setenv("KIT_LAYER_CACHE_GB", "0.0007")  # three and a half layers
    take(place, tmp_path, image="other")
    kept = set(layer_cache.folder().glob("sha256-*"))
    shared = layer_cache.path(f"sha256:{__import__('hashlib').sha256(LAYERS[0]).hexdigest()}")
    assert shared in kept
    assert len(kept) == 3
    monkeypatch.setenv("KIT_LAYER_CACHE_GB", "many")
    with pytest.raises(UsageError, match="KIT_LAYER_CACHE_GB=many: not a size in GB"):
        layer_cache.make_room()
    (tmp_path / "project").mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "project")
    for words, left in ((["--dry-run"], 3), ([], 0)):
        done = CliRunner().invoke(
            app, ["prune-images", "--older-than", "0", "--store", str(tmp_path / "store"), *words]
        )
        assert done.exit_code == 0, done.output
        assert "and 3 cached layers" in done.output
        assert len(list(layer_cache.folder().glob("sha256-*"))) == left
