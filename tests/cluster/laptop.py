"""A laptop of namespaces: no Slurm, no container engine, no image store, a user who is not root, one port that answers.

Mounts hide the programs, configuration, sockets, homes and run folders of this machine (laptop.sh). The network namespace holds
one device: a line with a delay and a rate (`slow_link`), on which only the test's sshd answers.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit import shell
from tests.cluster.slow_link import SlowLink, slow_link
from tests.support import REPO

USERS = "kit-here-"
USER = f"{USERS}{os.getpid()}"
_NAMESPACES = ("--mount", "--net", "--propagation=slave")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_STARTS_S = 30.0
_ENDS_S = 30.0


@dataclass(frozen=True)
class Laptop:
    """Namespaces that stand. init: the process that holds them. home: of its user, the only folder that this one may write to."""

    init: int
    line: SlowLink
    home: Path

    def words(self, argv: Sequence[str], cwd: Path) -> list[str]:
        """The command that runs `argv` here, as the user; its process is that of argv."""
        enter = ["nsenter", f"--mount=/proc/{self.init}/ns/mnt", f"--net=/proc/{self.init}/ns/net", "--"]
        user = pwd.getpwnam(USER)
        become = [
            "setpriv",
            f"--reuid={user.pw_uid}",
            f"--regid={user.pw_gid}",
            "--clear-groups",
            "--no-new-privs",
            "--",
        ]
        return [*enter, *become, "sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(cwd), *argv]

    def env(self, folder: Path) -> dict[str, str]:
        """All variables that its user has. folder: with a program `ssh` that notes its calls."""
        return {"HOME": str(self.home), "USER": USER, "LOGNAME": USER, "LANG": "C.UTF-8", "PATH": f"{folder}:{_PATH}"}

    def owns(self, *paths: Path) -> None:
        """Give these files, and what is in them, to its user."""
        shell.run(["chown", "-R", "--", USER, *map(str, paths)])

    def processes(self) -> list[int]:
        """What runs in it."""
        own = Path(f"/proc/{self.init}/ns/net").stat().st_ino
        found = []
        for proc in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (proc / "ns/net").stat().st_ino == own:
                    found.append(int(proc.name))
        return found


@contextmanager
def laptop(folder: Path, *, rate_bit_s: float = 1e9, delay_s: float = 0.0) -> Iterator[Laptop]:
    """The laptop. It has `folder`, and nothing else of /tmp. delay_s: of its line, one way. Skips where there can be none."""
    _require_namespaces()
    home = folder / "home"
    shell.run(["useradd", "--no-create-home", "--home-dir", str(home), "--shell", "/bin/sh", USER])
    try:
        home.mkdir()
        log = folder / "laptop.log"
        script = str(Path(__file__).with_name("laptop.sh"))
        kept = _needed(Path(sys.base_prefix), Path(sys.prefix), REPO)
        pid = shell.daemon(["unshare", *_NAMESPACES, "bash", script, str(folder), *map(str, kept)], log=log)
        try:
            until = time.monotonic() + _STARTS_S
            while not (folder / "ready").exists():
                assert not shell.ended(pid) and time.monotonic() < until, log.read_text()
                time.sleep(0.02)
            with slow_link(pid, rate_bit_s=rate_bit_s, delay_s=delay_s) as line:
                made = Laptop(pid, line, home)
                made.owns(home)
                try:
                    yield made
                finally:
                    _end_all(made)
        finally:
            shell.end(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    finally:
        shell.run(["userdel", USER], check=False)


def _require_namespaces() -> None:
    if os.geteuid() != 0:
        pytest.skip("the laptop of namespaces needs root")
    for name in ("unshare", "nsenter", "setpriv", "ip", "useradd"):
        if shell.which(name) is None:
            pytest.skip(f"the laptop of namespaces needs root and {name}: make setup")
    trial = "mount -t tmpfs tmpfs /mnt && mkdir /mnt/a && mknod /mnt/a/cat c 0 0 && "
    trial += "mount -t overlay -o lowerdir=/mnt/a:/usr/bin overlay /mnt"
    if shell.run(["unshare", *_NAMESPACES, "sh", "-c", trial], check=False).returncode != 0:
        pytest.skip("root may make no namespaces, overlays or devices here: no laptop of namespaces")
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"no TUN device can be made here, {error.strerror}: no laptop of namespaces")


def _needed(*paths: Path) -> list[Path]:
    """Those folders that lie in none of the others."""
    real = [path.resolve() for path in paths]
    return [one for one in dict.fromkeys(real) if not any(other in one.parents for other in real)]


def _end_all(made: Laptop) -> None:
    """End what its user has left, such as the connection that ssh keeps."""
    until = time.monotonic() + _ENDS_S
    while left := [pid for pid in made.processes() if pid != made.init]:
        assert time.monotonic() < until, left
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
