"""munged, slurmctld and slurmd: starts them, checks whether they run, and reads their last output."""

from __future__ import annotations

import os
import pwd
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from kit import shell
from kit.errors import SlurmError
from kit.slurm.embedded import process
from kit.slurm.embedded.cluster_record import EmbeddedCluster, ProcessId, VirtualNode
from kit.slurm.embedded.paths import EmbeddedPaths

# Every process that the kit starts for a cluster has this variable, and no other process does. SLURM_CONF may also be in users'
# shells.
MARK = "KIT_CLUSTER_FOLDER"
_PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sinfo", "unshare", "nsenter")
_HINT = "install them: `make setup`, or apt-get install slurm-wlm munge util-linux iproute2"
_MUNGE_START_S = 5.0
_TAIL_LINES = 12


def require_programs() -> None:
    """ToolError that names every missing program and the packages that contain them."""
    missing = [name for name in _PROGRAMS if shell.which(name) is None]
    if missing:
        shell.require(", ".join(missing), hint=_HINT)


def program(name: str) -> str:
    """The path of a program that may be in an sbin folder. An ordinary user's PATH lacks these."""
    return shell.require(name, hint=_HINT)


def environment(layout: EmbeddedPaths) -> dict[str, str]:
    """The complete environment of a daemon. Of the user's shell it takes only PATH, since jobs inherit from daemons."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    return {"PATH": path, "HOME": str(Path.home()), "SLURM_CONF": str(layout.slurm_conf), MARK: str(layout.folder)}


def user() -> str:
    """The user who runs the daemons."""
    return pwd.getpwuid(os.geteuid()).pw_name


def start_munged(layout: EmbeddedPaths, env: Mapping[str, str]) -> ProcessId:
    """Make the cluster's own munge key and start munged with it. Returns when munged's socket exists."""
    home = layout.munge_key.parent
    home.mkdir(mode=0o755)
    layout.munge_key.touch(mode=0o600)
    layout.munge_key.write_bytes(secrets.token_bytes(128))
    # --force, since munged refuses a socket below a home folder that others may not enter.
    argv = [
        program("munged"),
        "--foreground",
        "--force",
        f"--key-file={layout.munge_key}",
        f"--socket={layout.munge_socket}",
    ]
    argv += [f"--pid-file={home / 'munged.pid'}", f"--seed-file={home / 'munged.seed'}"]
    started = start(layout, "munged", argv, env)
    deadline = time.monotonic() + _MUNGE_START_S
    while not layout.munge_socket.exists():
        if not process.is_alive(started) or time.monotonic() > deadline:
            raise SlurmError(f"munged did not start\n{tail(layout, 'munged')}")
        time.sleep(0.02)
    return started


def start_controller(layout: EmbeddedPaths, env: Mapping[str, str]) -> ProcessId:
    """Start slurmctld with an empty state."""
    layout.controller_state.mkdir(mode=0o700)
    return start(layout, "slurmctld", [program("slurmctld"), "-D", "-c"], env)


def start_slurmd(cluster: EmbeddedCluster, node: VirtualNode, env: Mapping[str, str]) -> ProcessId:
    """Start a node's slurmd, inside the node's namespaces if it has any.

    In namespaces, the returned process is nsenter(1), which waits for slurmd and ends with it.
    """
    (cluster.layout.spool / node.name).mkdir(parents=True, mode=0o755)
    enter = cluster.node_exec_argv(node.name) if cluster.isolated else []
    return start(cluster.layout, f"slurmd-{node.name}", [*enter, program("slurmd"), "-D", "-N", node.name], env)


def dead(cluster: EmbeddedCluster) -> list[str]:
    """The names of recorded daemons that do not run, and of nodes whose first process is dead."""
    gone = [name for name, daemon in cluster.daemons.items() if not process.is_alive(daemon)]
    return gone + [node.name for node in cluster.nodes if node.init and not process.is_alive(node.init)]


def tail(layout: EmbeddedPaths, daemon: str) -> str:
    """The last lines of a daemon's log or, if it has none, of its console output; each indented by two blanks."""
    for path in (layout.log(daemon), layout.console(daemon)):
        if path.exists() and (said := path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]):
            return "\n".join([f"{path.name} ends with:", *(f"  {line}" for line in said)])
    return f"{daemon} logged nothing"


def start(layout: EmbeddedPaths, name: str, argv: list[str], env: Mapping[str, str]) -> ProcessId:
    """Start a daemon of the cluster, with its output in `console(name)`. SlurmError with its last output if it ends at once."""
    pid = shell.daemon(argv, log=layout.console(name), env=env, cwd=layout.folder)
    started = process.identify(pid)
    if started is None:
        raise SlurmError(f"{name} ended at once\n{tail(layout, name)}")
    return started
