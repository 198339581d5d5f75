"""Free ports and a free private subnet.

Both searches start at a position derived from the cluster's folder. So two clusters that start at the same moment look at different
positions, and one cluster gets the same numbers again.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network
from itertools import chain, islice

from kit import shell
from kit.errors import SlurmError

# Below the ephemeral ports (ip_local_port_range starts at 32768), so that no outgoing connection takes one by chance.
PORTS = range(20000, 30000)
# Parts of the RFC 1918 ranges that routers and container engines rarely use, then RFC 2544's range for benchmarks.
_POOLS = tuple(map(IPv4Network, ("10.213.0.0/16", "172.30.0.0/16", "192.168.128.0/17", "198.18.0.0/15")))

# Addresses of a subnet that no node uses: those before the first node's (`nodes.node_address`), and the broadcast address.
_SPARE_ADDRESSES = 12


def choose_ports(count: int, *, seed: str, in_use: Callable[[int], bool]) -> tuple[int, ...]:
    """The first `count` ports of PORTS that are not `in_use`, starting at `seed`'s position."""
    start = _number(seed) % len(PORTS)
    order = chain(PORTS[start:], PORTS[:start])
    found = tuple(islice((port for port in order if not in_use(port)), count))
    if len(found) < count:
        raise SlurmError(f"fewer than {count} free ports between {PORTS.start} and {PORTS.stop - 1}")
    return found


def choose_subnet(*, seed: str, taken: Iterable[IPv4Network], nodes: int = 2) -> IPv4Network:
    """A /24 that overlaps no network in `taken`; a larger subnet if `nodes` do not fit into a /24."""
    used = tuple(taken)
    # The first addresses are the host's; the last one is for broadcast.
    prefix = min(24, 32 - (nodes + _SPARE_ADDRESSES - 1).bit_length())
    for pool in _POOLS:
        candidates = list(pool.subnets(new_prefix=prefix))
        start = _number(seed) % len(candidates)
        for candidate in candidates[start:] + candidates[:start]:
            if not any(candidate.overlaps(network) for network in used):
                return candidate
    raise SlurmError("every private subnet that the kit may use is routed somewhere", hint="see `ip route`")


def port_in_use(port: int) -> bool:
    """Whether a process on this machine listens on the TCP port, on any address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False


def routed_networks() -> list[IPv4Network]:
    """All networks to which this machine has a route, except the default route."""
    routes = json.loads(
        shell.run([shell.which("ip") or "ip", "-json", "-4", "route", "show", "table", "all"]).stdout or "[]"
    )
    return [IPv4Network(route["dst"], strict=False) for route in routes if route.get("dst") != "default"]


def _number(seed: str) -> int:
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big")
