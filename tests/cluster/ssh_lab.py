"""A login node of the test cluster behind a real sshd, and a laptop: a project with an ssh_config, a cache and a key of its own.

The laptop is a folder of this machine and has its network; or it has namespaces of its own (laptop.py), and is a user's who is not
root. The user over there is an ordinary one. Every ssh that the kit starts is noted, so that requests are counted and not timed.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from kit import shell
from kit.images import image_lock
from kit.shell import Completed
from kit.slurm.embedded import EmbeddedCluster
from tests.cluster import laptop as laptops
from tests.cluster.lab import TIMEOUT_S, came
from tests.cluster.laptop import Laptop
from tests.support import REPO

# One for each process of pytest: labs may stand side by side.
_USERS = "kit-far-"
USER = f"{_USERS}{os.getpid()}"
JOB = """
name = "far"
launcher = "ddp"
shape = "srun"
script = "program.py"
[resources]
nodes = 1
ranks_per_node = 2
cpus_per_node = 2
time = "00:05:00"
"""
PROGRAM = """
import os, time
for step in range(int(os.environ.get("STEPS", "1"))):
    print("step", step, flush=True)
    time.sleep(float(os.environ.get("PAUSE", "0")))
# Slurm ends the others with the first that fails: none fails before all have printed.
code, run = int(os.environ.get("CODE", "0")), os.environ["KIT_RUN_DIR"]
if code:
    open(f"{run}/printed-{os.environ['RANK']}", "w").close()
    while not all(os.path.exists(f"{run}/printed-{rank}") for rank in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.01)
raise SystemExit(code)
"""


@dataclass(frozen=True)
class Far:
    """The laptop. name: of the cluster's file here. home: of the user over there. laptop: its namespaces, if it has any."""

    project: Path
    cluster: EmbeddedCluster
    home: Path
    port: int
    sshd: int
    name: str = "pod-far"
    laptop: Laptop | None = None

    @property
    def folder(self) -> Path:
        """What the laptop has besides its project."""
        return self.project.parent

    @property
    def runs(self) -> Path:
        """Run folders over there."""
        return self.home / "kit" / "runs"

    @property
    def env(self) -> dict[str, str]:
        """The laptop's: no Slurm is configured here."""
        if self.laptop:
            return {**self.laptop.env(self.folder / "bin"), "KIT_TRACEBACK": "0"}
        keep = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "KIT_"))}
        own = {"XDG_CACHE_HOME": str(self.folder / "cache"), "XDG_DATA_HOME": str(self.folder / "data")}
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {**keep, **own, "PATH": path, "SLURM_CONF": "/nonexistent", "KIT_TRACEBACK": "0"}

    def kit(self, *argv: str, check: bool = True, env: dict[str, str] | None = None) -> Completed:
        """`kit` on the laptop."""
        return self.does(sys.executable, "-m", "kit", *argv, check=check, env=env)

    def does(self, *argv: str, check: bool = True, env: dict[str, str] | None = None) -> Completed:
        """Any command on the laptop, in the project's folder."""
        words = self.laptop.words(argv, self.project) if self.laptop else [*argv]
        return shell.run(words, cwd=self.project, env={**self.env, **(env or {})}, timeout=TIMEOUT_S, check=check)

    def submit(self, *options: str) -> str:
        """Submit the job; its run's id."""
        done = self.kit("submit", "--cluster", self.name, "--no-container", *options)
        return Path(done.stdout.splitlines()[0]).name

    def submit_with(self, env: dict[str, str], *options: str) -> str:
        """The same with more of an environment here."""
        done = self.kit("submit", "--cluster", self.name, "--no-container", *options, env=env)
        return Path(done.stdout.splitlines()[0]).name

    def typed(self, argv: list[str], text: str, *, env: dict[str, str] | None = None) -> Completed:
        """`kit` with these lines at its standard input; not in namespaces."""
        words = [sys.executable, "-m", "kit", *argv]
        env = {**self.env, **(env or {})}
        return shell.run(words, cwd=self.project, env=env, input=text, timeout=TIMEOUT_S, check=False)

    def requests(self) -> int:
        """How many sessions of ssh there were since this was last asked; opening the connection is none."""
        noted = self.folder / "ssh.calls"
        lines = noted.read_text().splitlines() if noted.exists() else []
        noted.write_text("")
        return sum("exec sh -c" in line for line in lines)

    def slurm(self, *argv: str) -> str:
        """One of Slurm's commands, by root."""
        return shell.run(argv, env={**os.environ, **self.cluster.env()}, timeout=60).stdout

    def jobs(self) -> dict[int, str]:
        """All jobs of the user that Slurm remembers: number -> run's id, by the batch script."""
        lines = self.slurm("squeue", "--noheader", "--states=all", f"--user={USER}", "--format=%A|%o").splitlines()
        return {int(number): Path(script).parent.name for number, script in (line.split("|") for line in lines)}

    def scripts(self) -> dict[int, str]:
        """The same, arrays by their own number, with the whole path of the script."""
        lines = self.slurm("squeue", "--noheader", "--states=all", f"--user={USER}", "--format=%F|%o").splitlines()
        return {int(number): script for number, script in (line.split("|") for line in lines)}

    def listed(self) -> dict[str, dict[str, object]]:
        """What `kit runs` says, by run."""
        return {str(one["run"]): one for one in json.loads(self.kit("runs", "--json").stdout)}

    def wait(self, run: str, *states: str) -> dict[str, object]:
        """Until `kit runs` shows one of these states."""
        seen: list[dict[str, object]] = []

        def there() -> bool:
            seen.append(self.listed().get(run, {}))
            ended = sum(one.get("state") in {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"} for one in seen)
            return seen[-1].get("state") in states or ended == 20

        assert came(there) and seen[-1].get("state") in states, seen[-1]
        return seen[-1]

    def sessions(self) -> list[int]:
        """The processes of sshd that serve connections, without the daemon and without what they have started.

        The connection itself is held by the child of the one that the daemon has started.
        """
        parents = {}
        for proc in Path("/proc").iterdir():
            try:
                name, rest = (
                    (proc / "stat").read_text().split("(", 1)[1].rsplit(")", 1) if proc.name.isdigit() else ("", "")
                )
            except OSError:
                continue
            if name.startswith("sshd"):
                parents[int(proc.name)] = int(rest.split()[1])
        first = [pid for pid, parent in parents.items() if parent == self.sshd]
        return first + [pid for pid, parent in parents.items() if parent in first]

    def cut(self) -> None:
        """Break all lines, now."""
        for pid in self.sessions():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End the laptop's kept connection."""
        self.kit("cluster", "login", self.name, "--off", check=False)


@contextmanager
def far_lab(cluster: EmbeddedCluster, folder: Path, *, laptop: Laptop | None = None) -> Iterator[Far]:
    """The lab in `folder`, which others may enter; sshd, user and connection are gone at the end.

    laptop: the namespaces in which the laptop's commands run; without any they run on this machine, as root.
    """
    if os.geteuid() != 0 or shell.which("sshd") is None or shell.which("useradd") is None:
        pytest.skip("needs root, sshd and useradd: make setup")
    for entry in pwd.getpwall():
        # Of a test that was killed.
        kind, _, number = entry.pw_name.rpartition("-")
        if f"{kind}-" in {_USERS, laptops.USERS} and not Path("/proc", number).exists():
            shell.run(["userdel", "--remove", entry.pw_name], check=False)
    shell.run(["useradd", "--create-home", "--shell", "/bin/bash", USER])
    # paths.cache of clusters/local.toml: what an earlier user of this name has left is another number's.
    cache = Path(f"/tmp/kit-{USER}")
    shutil.rmtree(cache, ignore_errors=True)
    user, far = pwd.getpwnam(USER), None
    try:
        # No password, and not locked: sshd lets no locked user in.
        shell.run(["usermod", "--password", "*", USER])
        pid, port = _sshd(folder, cluster, user, laptop.line.here if laptop else "127.0.0.1")
        try:
            far = _project(folder, cluster, user, port=port, sshd=pid, laptop=laptop)
            yield far
        finally:
            if far is not None:
                far.slurm("scancel", f"--user={USER}")
                far.close()
            shell.end(pid)
    finally:
        end = time.monotonic() + 30
        while shell.run(["userdel", "--remove", USER], check=False).returncode == 8 and time.monotonic() < end:
            time.sleep(0.5)  # its last processes are on their way out
        shutil.rmtree(cache, ignore_errors=True)


def store_over_there(far: Far, store: Path, image: str) -> Path:
    """An image store that the user over there may read, with one image of the store of this machine."""
    digest = image_lock.read_lock(REPO / f"containers/{image}/image.lock").sha256
    made = far.home / "store"
    (made / "sha256").mkdir(parents=True)
    for path in (store / "sha256").glob(f"{digest}.*"):
        shutil.copy(path, made / "sha256")
    shell.run(["chown", "-R", USER, str(made)])
    return made


def python_for_users() -> str:
    """A Python that the user over there may run: this one, or the system's if this one is in a folder that others may not enter."""
    for python in (sys.executable, "/usr/bin/python3"):
        asked = ["runuser", "-u", USER, "--", python, "-c", "import sys; assert sys.version_info >= (3, 10)"]
        if shell.run(asked, check=False).returncode == 0:
            return python
    pytest.skip("this Python is in a folder that other users may not enter, and /usr/bin/python3 is missing or old")


def _sshd(folder: Path, cluster: EmbeddedCluster, user: pwd.struct_passwd, address: str) -> tuple[int, int]:
    for name in ("host_key", "id"):
        shell.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)])
    keys = Path(user.pw_dir) / ".ssh"
    keys.mkdir(mode=0o700)
    shutil.copy(folder / "id.pub", keys / "authorized_keys")
    for path in (keys, keys / "authorized_keys"):
        shutil.chown(path, user.pw_uid, user.pw_gid)
    with socket.create_server((address, 0)) as free:
        port = int(free.getsockname()[1])
    conf = folder / "sshd_config"
    conf.write_text(
        f"Port {port}\nListenAddress {address}\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"PasswordAuthentication no\nMaxSessions 100\nSetEnv SLURM_CONF={cluster.slurm_conf}\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    sshd = shell.require("sshd", hint="apt-get install openssh-server")
    pid = shell.daemon([sshd, "-D", "-f", str(conf)], log=folder / "sshd.log")
    end = time.monotonic() + 30
    while True:
        try:
            socket.create_connection((address, port), timeout=1).close()
            return pid, port
        except OSError:
            assert time.monotonic() < end, (folder / "sshd.log").read_text()
            time.sleep(0.1)


def _project(
    folder: Path, cluster: EmbeddedCluster, user: pwd.struct_passwd, *, port: int, sshd: int, laptop: Laptop | None
) -> Far:
    project = folder / "project"
    (project / ".git").mkdir(parents=True)
    (project / "clusters").mkdir()
    config = folder / "ssh_config"
    address, own = (laptop.line.here, laptop.home) if laptop else ("127.0.0.1", folder)
    config.write_text(
        f"Host login.pod\n  HostName {address}\n  Port {port}\n  User {USER}\n  IdentityFile {folder}/id\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {own}/known_hosts\n  StrictHostKeyChecking accept-new\n"
    )
    (folder / "bin").mkdir()
    noting = folder / "bin" / "ssh"
    noting.write_text(f'#!/bin/sh\necho "$*" >>{folder}/ssh.calls\nexec {shell.which("ssh")} "$@"\n')
    noting.chmod(0o755)
    far = Far(project, cluster, Path(user.pw_dir), port, sshd, laptop=laptop)
    write_cluster(far, far.name)
    (project / "job.toml").write_text(JOB)
    (project / "program.py").write_text(PROGRAM)
    if laptop:
        laptop.line.port = port
        calls = folder / "ssh.calls"
        calls.touch()
        # ssh takes no key that is another user's.
        laptop.owns(project, calls, folder / "id")
    return far


def write_cluster(far: Far, name: str, *, host: str = "login.pod", more: str = "", paths: str = "") -> None:
    """A cluster's file that leads to the login node."""
    (far.project / "clusters" / f"{name}.toml").write_text(
        f'[ssh]\nhost = "{host}"\nconfig = "{far.folder}/ssh_config"\n{more}\n[node]\ncpus = 8\n'
        f'[container]\nruntime = "bubblewrap"\n[paths]\n{paths}\n'
    )
