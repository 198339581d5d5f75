"""Hostile input on either side of ssh: names, paths, a full disk, an old client. One clear error each, no half-written file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit import shell
from kit.slurm.embedded import EmbeddedCluster
from tests.cluster.conftest import short_folder
from tests.cluster.ssh_lab import Far, far_lab, write_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.root]

OWNED = Path("/tmp/kit-owned")
NAMES = [
    b"-rf",
    b"--checkpoint-action=exec=touch ${OWNED}",
    b"a\nb",
    b"it's",
    b'"q"',
    b"$(touch owned)",
    b"`x`",
    b" two  ",
    b"\xff\xfe",
    b"*",
]


@pytest.fixture(scope="module")
def far(cluster: EmbeddedCluster) -> Iterator[Far]:
    with short_folder() as folder, far_lab(cluster, folder) as lab:
        yield lab


@contextmanager
def another(far: Far, name: str, **given: str) -> Iterator[None]:
    """One more cluster's file."""
    write_cluster(far, name, **given)
    try:
        yield
    finally:
        (far.project / "clusters" / f"{name}.toml").unlink()


def refused(far: Far, name: str, *argv: str) -> str:
    """What a submit says that must not work. Nobody's words were run, and no traceback was shown."""
    done = far.kit(*(argv or ("submit", "--cluster", name, "--no-container")), check=False)
    assert done.returncode not in {0, 1}, done
    assert "Traceback" not in done.stderr
    assert not OWNED.exists()
    return done.stderr


def test_hostile_file_names_arrive_byte_for_byte(far: Far) -> None:
    folder = far.project / "odd"
    folder.mkdir()
    for number, name in enumerate(NAMES):
        (folder / os.fsdecode(name)).write_bytes(b"%d" % number)
    run = far.submit("--set", "env.STEPS=1")
    assert far.wait(run, "COMPLETED")["exit_code"] == 0
    there = far.runs / run / "workspace" / "odd"
    assert {os.fsencode(path.name): path.read_bytes() for path in there.iterdir()} == {
        name: b"%d" % number for number, name in enumerate(NAMES)
    }
    assert not OWNED.exists()
    assert not (there.parent / "owned").exists()


@pytest.mark.slow
def test_folders_over_there_with_hostile_names(far: Far) -> None:
    with another(far, "odd", paths="runs = \"{home}/my $(touch /tmp/kit-owned) 'runs'\""):
        done = far.kit("submit", "--cluster", "odd", "--no-container", check=False)
        if done.returncode == 0:
            run = Path(done.stdout.splitlines()[0]).name
            assert far.wait(run, "COMPLETED")["exit_code"] == 0
            assert (far.home / "my $(touch /tmp/kit-owned) 'runs'" / run).is_dir()
    assert not OWNED.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "host",
    [
        "-oProxyCommand=touch /tmp/kit-owned",
        "a b",
        "a\\nb",
        "$(touch /tmp/kit-owned)",
        "a;b",
        "-l",
        "me@-oX=y",
        "",
        "ü",
    ],
)
def test_a_host_that_ssh_could_take_for_more_is_refused(far: Far, host: str) -> None:
    with another(far, "hostile", host=host):
        said = refused(far, "hostile")
    # Either the file is wrong, or ssh itself knows no such host.
    assert "ssh.host" in said or "cannot be reached" in said


@pytest.mark.slow
def test_a_users_configuration_that_is_wrong_is_told_in_ssh_s_words(far: Far) -> None:
    config = far.folder / "ssh_config"
    was = config.read_text()
    far.close()
    try:
        config.write_text(f"{was}Host *\n  NoSuchOption yes\n")
        said = refused(far, far.name)
    finally:
        config.write_text(was)
    assert "nosuchoption" in said.lower()


@pytest.mark.slow
def test_an_older_ssh_that_refuses_an_option_of_the_kits_does_without_it(far: Far) -> None:
    """OpenSSH before 7.6 has no RemoteCommand, and ends with these words: a fault that the installed one cannot be made to show."""
    program = far.folder / "bin" / "ssh"
    was = program.read_text()
    far.close()
    words = "command-line: line 0: Bad configuration option: remotecommand"
    old = f'#!/bin/sh\ncase "$*" in *RemoteCommand=*) echo "{words}" >&2; exit 255 ;; esac\n'
    try:
        program.write_text(was.replace("#!/bin/sh\n", old))
        assert isinstance(json.loads(far.kit("runs", "--json").stdout), list)
        assert "cannot be reached" not in far.kit("runs").stderr
    finally:
        program.write_text(was)


def test_a_full_disk_over_there_leaves_nothing_half_written(far: Far) -> None:
    small = far.folder / "small"
    small.mkdir()
    shell.run(["mount", "-t", "tmpfs", "-o", f"size=256k,mode=0777,uid={far.home.stat().st_uid}", "tmpfs", str(small)])
    try:
        (far.project / "weights").write_bytes(os.urandom(1 << 20))
        with another(far, "full", paths=f'runs = "{small}/runs"'):
            said = refused(far, "full")
            assert "KiB are free in" in said
            assert "free some space" in said
            left = [path for path in small.rglob("*") if path.is_file()]
            assert not [path for path in left if "partial" in str(path) or path.name == "manifest.json"], left
    finally:
        (far.project / "weights").unlink()
        shell.run(["umount", str(small)])
    assert not [run for run in far.jobs().values() if "small" in run]


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o500, 0o700])
def test_a_folder_without_permission_is_named(far: Far, mode: int) -> None:
    closed = far.folder / f"closed-{mode:o}"
    closed.mkdir(mode=mode)
    closed.chmod(mode)
    with another(far, "closed", paths=f'runs = "{closed}/runs"'):
        assert "ermission denied" in refused(far, "closed")


@pytest.mark.slow
def test_names_of_runs_are_no_words_of_a_shell(far: Far) -> None:
    for name in ("-rf", "$(touch /tmp/kit-owned)", "../../etc", "a b", "'"):
        for command in ("status", "cancel", "logs", "resume", "export"):
            done = far.kit(command, "--", name, check=False)
            assert done.returncode != 0
            assert "Traceback" not in done.stderr
    assert not OWNED.exists()
