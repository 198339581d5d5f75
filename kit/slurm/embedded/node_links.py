"""The network links of virtual nodes: counts the bytes sent, and limits the speed. Needs root, as the nodes do."""

from __future__ import annotations

from pathlib import Path

from kit import shell
from kit.errors import SlurmError
from kit.slurm.embedded.cluster_record import EmbeddedCluster, VirtualNode

_LINK = "eth0"
# tbf(8) drops a packet that is larger than the bucket, and a veth carries segments of up to 64 kB in one piece.
_BUCKET = "256kb"
_QUEUE = "400ms"


def sent(cluster: EmbeddedCluster) -> int:
    """Bytes that the nodes have sent since their start, without those that a node sends to itself."""
    return sum(_counters(node)[8] for node in cluster.nodes)


def sent_by(cluster: EmbeddedCluster, name: str) -> int:
    """Bytes that one node has sent since its start."""
    return _counters(cluster.node(name))[8]


def limit(cluster: EmbeddedCluster, rate: str | None) -> None:
    """Limit each node's sending to `rate`, in the form of tc(8): `100mbit`. None: no limit."""
    tc = shell.require("tc", hint="apt-get install iproute2")
    for node in cluster.nodes:
        enter = ["nsenter", f"--net=/proc/{_init(node)}/ns/net", "--"]
        shell.run([*enter, tc, "qdisc", "delete", "dev", _LINK, "root"], check=False)  # fails if there is no limit
        if rate is not None:
            rule = ["root", "tbf", "rate", rate, "burst", _BUCKET, "latency", _QUEUE]
            shell.run([*enter, tc, "qdisc", "add", "dev", _LINK, *rule])


def _counters(node: VirtualNode) -> list[int]:
    """The counters of proc_net_dev(5): eight for received, then eight for sent data; the first of each is bytes."""
    for line in Path(f"/proc/{_init(node)}/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == _LINK:
            return [int(word) for word in counters.split()]
    raise SlurmError(f"{node.name}: it has no interface {_LINK}")


def _init(node: VirtualNode) -> int:
    if node.init is None:
        raise SlurmError(f"{node.name}: it has no network of its own", hint="start the cluster as root")
    return node.init.pid
