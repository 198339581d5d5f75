"""A container's FUSE daemon outlives Slurm's signals, and ends with the container."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit import shell
from tests.support import REPO

SIGNALS = (signal.SIGCONT, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)

needs_fuse = pytest.mark.skipif(
    not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0 or shell.which("squashfuse") is None,
    reason="needs root, /dev/fuse and squashfuse",
)

# As Enroot's helper starts it: in the background of a shell whose process group is killed once CONT wakes the shell. The program of
# the container is the other process of the mount namespace, and knows the image as a rank does: by an open file.
CONTAINER = """
set -m
bash -c '"$0" -f -o uid=0,gid=0 "$1" "$2" & echo $! >"$3/daemon"; kill -STOP $$; kill -KILL 0' "$1" "$2" "$3" "$4" &
shim=$!
until mountpoint -q "$3"; do sleep 0.05; done
echo "${shim}" >"$4/shim"
echo $$ >"$4/program"
exec sleep infinity
"""


@dataclass(frozen=True)
class Started:
    """Process numbers of a container: Enroot's helper, the watcher, the daemon and the program."""

    shim: int
    watcher: int
    daemon: int
    program: int
    file: Path

    def pids(self) -> tuple[int, ...]:
        return (self.shim, self.watcher, self.daemon, self.program)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Started]:
    """A mounted image, its daemon started by the kit's squashfuse in a mount namespace of its own, with one program inside."""
    run, place, tree, image = tmp_path / "runs/run", tmp_path / "mnt", tmp_path / "tree", tmp_path / "image.sqsh"
    (run / "bin").mkdir(parents=True)
    (run / "lib").symlink_to(REPO / "templates/lib")
    (run / "bin/fuse").symlink_to(REPO / "templates/bin/fuse")
    place.mkdir()
    tree.mkdir()
    (tree / "file").write_text("text")
    shell.run(["mksquashfs", str(tree), str(image), "-quiet", "-no-progress", "-all-root"])
    script = tmp_path / "container.sh"
    script.write_text(CONTAINER)
    words = [str(run / "bin/fuse/squashfuse"), str(image), str(place), str(tmp_path)]
    process = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "bash", str(script), *words], start_new_session=True
    )
    found: list[int] = []
    try:
        wait((tmp_path / "program").exists)
        watcher, shim = (int((tmp_path / name).read_text()) for name in ("daemon", "shim"))
        (daemon,) = (
            int(p.name)
            for p in Path("/proc").glob("[0-9]*")
            if is_alive(int(p.name)) and parent(int(p.name)) == watcher
        )
        started = Started(shim, watcher, daemon, process.pid, Path(f"/proc/{process.pid}/root{place}/file"))
        found += started.pids()
        wait(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        yield started
    finally:
        process.kill()
        process.wait()
        for pid in found:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


@needs_fuse
def test_the_files_stay_when_slurm_signals_every_process(container: Started) -> None:
    assert Path(f"/proc/{container.daemon}/exe").resolve().name in {"squashfuse", "squashfuse_ll"}
    for number in SIGNALS:
        for pid in (container.shim, container.watcher, container.daemon):
            if is_alive(pid):
                os.kill(pid, number)
    wait(lambda: not is_alive(container.shim))
    # By another reader than the kernel's memory of the file.
    Path("/proc/sys/vm/drop_caches").write_text("3")
    assert container.file.read_text() == "text"
    assert is_alive(container.watcher)


@needs_fuse
def test_the_daemon_ends_with_the_last_process_of_the_container(container: Started) -> None:
    os.kill(container.shim, signal.SIGKILL)
    os.kill(container.program, signal.SIGKILL)
    wait(lambda: not is_alive(container.daemon) and not is_alive(container.watcher))


@needs_fuse
def test_the_daemon_ends_with_a_watcher_that_is_killed(container: Started) -> None:
    os.kill(container.watcher, signal.SIGKILL)
    wait(lambda: not is_alive(container.daemon))


@needs_fuse
def test_the_watcher_ends_with_its_daemon(container: Started) -> None:
    os.kill(container.daemon, signal.SIGKILL)
    wait(lambda: not is_alive(container.watcher))


@pytest.mark.parametrize(("name", "changed"), [("enroot", True), ("hook.sh", False)])
def test_bash_env_gives_the_path_to_enroot_alone(tmp_path: Path, name: str, changed: bool) -> None:
    library = tmp_path / "run/lib/fuse_path.sh"
    library.parent.mkdir(parents=True)
    library.symlink_to(REPO / "templates/lib/fuse_path.sh")
    script = tmp_path / name
    script.write_text('#!/bin/bash\necho "${PATH} ${BASH_ENV:-unset}"\n')
    script.chmod(0o755)
    said = shell.run([str(script)], env={"PATH": "/usr/bin:/bin", "BASH_ENV": str(library)}).stdout.strip()
    assert said == (f"{tmp_path}/run/bin/fuse:/usr/bin:/bin unset" if changed else f"/usr/bin:/bin {library}")
