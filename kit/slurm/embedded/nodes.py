"""Virtual nodes: namespaces and the network between them. Root only.

Each node has mount, UTS, IPC, network and PID namespaces, held only by its first process. When that process is killed, the kernel
kills every process in the node (containers too) and drops its mounts and interfaces. The namespaces have no names under /run/netns,
so a crash leaves nothing there.

The nodes are connected to a bridge in its own network namespace, not in the host's. Otherwise the host's packet filter (a container
engine sets FORWARD to DROP) would filter traffic between nodes. The host sees one interface.

    host: kitXXXXXXXX .1 ──── switch: br0 ──┬── node 1: eth0 .11
                                            └── node 2: eth0 .12
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from ipaddress import IPv4Network
from pathlib import Path

from kit import shell
from kit.errors import SlurmError, ToolError
from kit.slurm.embedded import process
from kit.slurm.embedded.cluster_record import EmbeddedCluster, ProcessId, VirtualNode
from kit.slurm.embedded.paths import EmbeddedPaths
from kit.slurm.embedded.pyxis import PyxisPlugin, enroot_wrapper

_NAMESPACES = ("--mount", "--uts", "--ipc", "--net", "--pid")
_START_S = 10.0
# Linux keeps at most 1024 neighbour entries for all network namespaces together (gc_thresh3). With 256 nodes the table overflowed,
# and answers got lost.
MOST_ISOLATED = 200
_POLL_S = 0.02


def allowed() -> bool:
    """Whether this process may make such nodes. Inside most containers, being root is not enough."""
    if os.geteuid() != 0 or not shell.which("ip"):
        return False
    return shell.run(["unshare", *_NAMESPACES, "--fork", "true"], check=False).returncode == 0


def host_address(subnet: IPv4Network) -> str:
    """The host's own address on the cluster's network."""
    return str(subnet[1])


def node_address(subnet: IPv4Network, index: int) -> str:
    """The address of the node with this index, from 0."""
    return str(subnet[11 + index])


def start(cluster: EmbeddedCluster, *, env: Mapping[str, str], pyxis: PyxisPlugin | None) -> tuple[VirtualNode, ...]:
    """Start the switch and all nodes; return the nodes with their first processes.

    env marks the processes as this cluster's. SlurmError with the reason when a node does not start.
    """
    layout = cluster.layout
    if pyxis:
        wrapper = layout.folder / "enroot"
        wrapper.write_text(enroot_wrapper(layout))
        wrapper.chmod(0o755)
    switch = _start_switch(layout, env)
    parents = {node.name: _start_node(layout, node.name, env, pyxis) for node in cluster.nodes}
    inits = {name: _init_of(layout, name, parent) for name, parent in parents.items()}
    nodes = tuple(node.model_copy(update={"init": inits[node.name]}) for node in cluster.nodes)
    assert cluster.subnet is not None
    _connect(layout, IPv4Network(cluster.subnet), switch, nodes)
    return nodes


def remove_interface(layout: EmbeddedPaths) -> None:
    """Remove the host's interface, if it exists; its other end disappears with it."""
    if (Path("/sys/class/net") / layout.interface).exists():
        shell.run([_ip_program(), "link", "delete", layout.interface], check=False)


def _start_switch(layout: EmbeddedPaths, env: Mapping[str, str]) -> int:
    console = layout.console("switch")
    pid = shell.daemon(["unshare", "--net", "sleep", "infinity"], log=console, env=env, cwd=layout.folder)
    _wait_for(lambda: process.program(pid) == "sleep", console, pid)
    return pid


def _start_node(layout: EmbeddedPaths, node: str, env: Mapping[str, str], pyxis: PyxisPlugin | None) -> int:
    own = layout.own(node)
    for folder, mode in ((own, 0o755), (own / "run", 0o755), (own / "bin", 0o755), (own / "enroot", 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
    (own / "bin" / "enroot").touch()
    (own / "hostname").write_text(f"{node}\n")
    script = Path(__file__).with_name("node-init.sh")
    argv = ["unshare", *_NAMESPACES, "--propagation=slave", "--fork", "--kill-child", "--mount-proc"]
    argv += ["bash", str(script), str(layout.folder), node, *([str(pyxis.enroot)] if pyxis else [])]
    return shell.daemon(argv, log=layout.console(node), env=env, cwd=layout.folder)


def _init_of(layout: EmbeddedPaths, node: str, parent: int) -> ProcessId:
    """The node's first process, after it has made the node's mounts. parent: the unshare(1) that started it."""
    ready = layout.own(node) / "ready"
    _wait_for(ready.exists, layout.console(node), parent)
    init = process.identify(process.children(parent)[0])
    if init is None:
        raise SlurmError(f"{node}: its first process died", hint=f"see {layout.console(node)}")
    return init


def _connect(layout: EmbeddedPaths, subnet: IPv4Network, switch: int, nodes: tuple[VirtualNode, ...]) -> None:
    """Make one veth pair from the host to the switch, and one from the switch to each node."""
    remove_interface(layout)
    _ip(
        f"link add {layout.interface} type veth peer name host netns {switch}",
        f"address add {host_address(subnet)}/{subnet.prefixlen} dev {layout.interface}",
        f"link set {layout.interface} up",
    )
    ports = [(f"node{number}", node) for number, node in enumerate(nodes, start=1)]
    _ip(
        "link add br0 type bridge",
        "link set br0 up",
        "link set host master br0 up",
        *(f"link add {port} type veth peer name eth0 netns {node.init.pid}" for port, node in ports if node.init),
        *(f"link set {port} master br0 up" for port, _ in ports),
        inside=switch,
    )
    for node in nodes:
        assert node.init is not None
        _ip(
            "link set lo up",
            f"address add {node.address}/{subnet.prefixlen} dev eth0",
            "link set eth0 up",
            inside=node.init.pid,
        )


def _ip(*commands: str, inside: int | None = None) -> None:
    """Run ip(8) commands on the host or in the network namespace of a process."""
    enter = [] if inside is None else ["nsenter", f"--net=/proc/{inside}/ns/net", "--"]
    shell.run([*enter, _ip_program(), "-batch", "-"], input="\n".join(commands) + "\n")


def _ip_program() -> str:
    return shell.require("ip", hint="apt-get install iproute2")


def _wait_for(condition: Callable[[], bool], console: Path, pid: int) -> None:
    deadline = time.monotonic() + _START_S
    while not condition():
        if process.identify(pid) is None or time.monotonic() > deadline:
            said = console.read_text(errors="replace").strip() if console.exists() else ""
            raise ToolError(f"{console.stem}: a virtual node's first process did not start\n{said}".rstrip())
        time.sleep(_POLL_S)
