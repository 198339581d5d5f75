"""The links of virtual nodes: what went over them, and how fast they are. Root only, as such nodes are."""

from __future__ import annotations

from pathlib import Path

from kit import shell
from kit.errors import SlurmError
from kit.slurm.embedded.cluster_record import EmbeddedCluster, Node

_LINK = "eth0"
# tbf(8): a packet larger than the bucket is dropped, and a veth carries segments of up to 64 kB in one piece.
_BUCKET = "256kb"
_QUEUE = "400ms"


def sent(cluster: EmbeddedCluster) -> int:
    """Bytes that left the nodes since they were started, those that a node sends itself not counted."""
    return sum(_counters(node)[8] for node in cluster.nodes)


def limit(cluster: EmbeddedCluster, rate: str | None) -> None:
    """Let each node send at most `rate`, as tc(8) writes it: `100mbit`. None: as fast as the machine is."""
    tc = shell.require("tc", hint="apt-get install iproute2")
    for node in cluster.nodes:
        enter = ["nsenter", f"--net=/proc/{_init(node)}/ns/net", "--"]
        shell.run([*enter, tc, "qdisc", "delete", "dev", _LINK, "root"], check=False)  # fails where there is no limit
        if rate is not None:
            rule = ["root", "tbf", "rate", rate, "burst", _BUCKET, "latency", _QUEUE]
            shell.run([*enter, tc, "qdisc", "add", "dev", _LINK, *rule])


def _counters(node: Node) -> list[int]:
    """proc_net_dev(5): eight counters of what was received, then eight of what was sent, each led by the bytes."""
    for line in Path(f"/proc/{_init(node)}/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == _LINK:
            return [int(word) for word in counters.split()]
    raise SlurmError(f"{node.name}: it has no interface {_LINK}")


def _init(node: Node) -> int:
    if node.init is None:
        raise SlurmError(f"{node.name}: it has no network of its own", hint="start the cluster as root")
    return node.init.pid
