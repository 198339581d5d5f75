"""Caches of cluster files and of an embedded cluster's record always match the files."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.errors import ConfigError
from kit.hosts.clusters import find_host
from kit.record import find_runs, known_files
from kit.record.known_files import KnownCluster
from kit.slurm.embedded import EmbeddedCluster, find_cluster

Kept = Callable[[], dict[str, object]]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    """The files that are kept."""
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return lambda: {
        path: entry
        for place in (tmp_path / "cache" / "kit").glob("clusters-*.json")
        for path, entry in json.loads(place.read_text())["files"].items()
    }


def settled(path: Path, text: str, *, ago_s: float = 3600) -> Path:
    """A file that was written some time ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    before = path.stat().st_mtime - ago_s
    os.utime(path, (before, before))
    return path


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return settled(tmp_path / "clusters" / "c.toml", "embedded = true\n[node]\ncpus = 4\n")


def test_a_file_is_read_once(local: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_files.cluster(local) == KnownCluster(ssh=False, embedded=True, runs="{project}/runs")
    assert [*kept()] == [str(local)]
    with monkeypatch.context() as patch:
        patch.setattr("kit.config.toml_file.load_toml", lambda _: pytest.fail("read again"))
        assert known_files.cluster(local).embedded
    settled(local, '[node]\ncpus = 4\n[paths]\nruns = "/r"\n')
    assert known_files.cluster(local) == KnownCluster(ssh=False, embedded=False, runs="/r")
    settled(local, '[node]\ncpus = 4\n[ssh]\nhost = "h"\n')
    assert known_files.cluster(local).ssh


def test_another_file_of_the_same_size(local: Path) -> None:
    """By its time alone, and by its inode alone."""
    assert known_files.cluster(local).embedded
    settled(local, local.read_text().replace("true", "#rue").replace("#rue", "false")[:-1], ago_s=1800)
    assert not known_files.cluster(local).embedded
    stamp = local.stat()
    other = settled(local.with_name("new"), local.read_text().replace("false", "true "))
    os.utime(other, ns=(stamp.st_mtime_ns, stamp.st_mtime_ns))
    assert other.stat().st_size == stamp.st_size
    other.rename(local)
    assert known_files.cluster(local).embedded


def test_a_file_that_was_just_written_is_not_kept(tmp_path: Path, kept: Kept) -> None:
    fresh = settled(tmp_path / "clusters" / "c.toml", "[node]\ncpus = 4\n", ago_s=0)
    assert not known_files.cluster(fresh).embedded
    assert kept() == {}


@pytest.mark.parametrize(
    "damaged",
    ["", "[]", "{", "[" * 100_000, '{"form": 1}', '{"form": FORM, "files": 7}', '{"form": FORM, "files": {"FILE": 7}}',
     '{"form": FORM, "files": {"FILE": [SEEN, [1, 1, 1]]}}', '{"form": FORM, "files": {"FILE": [SEEN, [false, false]]}}',
     '{"form": ["another kit"], "files": {"FILE": [SEEN, [true, false, "/"]]}}'],
)  # fmt: skip
def test_a_damaged_cache_is_read_anew(local: Path, tmp_path: Path, damaged: str) -> None:
    before = known_files.cluster(local)
    (place,) = (tmp_path / "cache" / "kit").glob("clusters-*.json")
    table = json.loads(place.read_text())
    seen = table["files"][str(local)][0]
    text = damaged.replace("FORM", json.dumps(table["form"])).replace("FILE", str(local)).replace("SEEN", str(seen))
    place.write_text(text)
    assert known_files.cluster(local) == before


def test_a_cache_that_cannot_be_written_is_done_without(local: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the cache folder would be")
    assert known_files.cluster(local).embedded


def test_a_wrong_file_says_all_its_faults_each_time(local: Path, kept: Kept) -> None:
    settled(local, "embedde = true\n[node]\ncpus = 0\n")
    for _ in range(2):
        with pytest.raises(ConfigError) as error:
            known_files.cluster(local)
        assert len(error.value.faults) == 2
    assert kept() == {}


def test_folders_of_runs_are_those_of_the_files(tmp_path: Path, local: Path) -> None:
    settled(local.with_name("far.toml"), '[node]\ncpus = 4\n[ssh]\nhost = "h"\n')
    settled(local.with_name("own.toml"), f'[node]\ncpus = 4\n[paths]\nruns = "{tmp_path}/own"\n')
    settled(local.with_name("wrong.toml"), "no TOML")
    first = find_runs.folders(tmp_path)
    assert {tmp_path / "runs", tmp_path / "own"} <= set(first)
    assert any(path.is_relative_to(tmp_path / "cache" / "kit" / "remote") for path in first)
    assert find_runs.folders(tmp_path) == first


def record(folder: Path, **changes: object) -> EmbeddedCluster:
    """A cluster that is up, as its folder says."""
    facts = {
        "name": "c", "folder": folder, "phase": "up", "boot_id": find_cluster.this_boot(), "cpus_per_node": 4, "gpus_per_node": 0,
        "memory_mb": 1000, "controller_host": "h", "controller_address": "127.0.0.1", "controller_port": 1, "subnet": None,
        "nodes": (), "pyxis": None,
    }  # fmt: skip
    made = EmbeddedCluster.model_validate({**facts, **changes})
    folder.mkdir(parents=True, exist_ok=True)
    made.save()
    before = made.layout.record.stat().st_mtime - 3600
    os.utime(made.layout.record, (before, before))
    return made


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for clusters whose path is short enough for Slurm's sockets."""
    with tempfile.TemporaryDirectory(prefix="kit-", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_DATA_HOME", folder)
        yield


def test_the_slurm_of_an_embedded_cluster(
    tmp_path: Path, local: Path, short: None, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = find_cluster.default_folder("c")
    assert known_files.embedded_conf("c") is None
    assert not find_host("c").is_up()
    made = record(folder)
    for _ in range(2):
        found = find_cluster.find("c")
        assert found is not None
        assert known_files.embedded_conf("c") == found.slurm_conf == made.slurm_conf
    assert str(made.layout.record) in kept()
    assert find_host("c").is_up()
    assert find_host("c").env()["SLURM_CONF"] == str(made.slurm_conf)
    for changes in ({"phase": "starting"}, {"boot_id": "another"}):
        record(folder, **changes)
        assert known_files.embedded_conf("c") is None
    made.layout.record.write_text("{}")
    assert known_files.embedded_conf("c") is None
    assert known_files.embedded_conf("no/name") is None


def test_files_that_are_gone_leave_first(
    tmp_path: Path, local: Path, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_files, "_MOST", 2)
    for name in ("a", "b"):
        path = settled(tmp_path / "clusters" / f"{name}.toml", local.read_text())
        known_files.cluster(path)
        path.unlink()
    known_files.cluster(local)
    assert [*kept()] == [str(local)]
