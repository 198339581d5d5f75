"""A line with a delay and a rate between a network namespace and this machine, in user space: kernels without netem have no other.

A pair of TUN devices, one in each network namespace, and a thread that carries IP packets between them. Each direction sends at the
rate and delivers after the delay. The TCP of both ends is the kernel's own, so that its handshakes and windows meet a real line.
"""

from __future__ import annotations

import ctypes
import fcntl
import ipaddress
import itertools
import os
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kit import shell
from kit.errors import SlurmError

# linux/if_tun.h: TUNSETIFF, IFF_TUN | IFF_NO_PI.
_TUNSETIFF, _FLAGS = 0x400454CA, 0x1 | 0x1000
_CLONE_NEWNET = 0x40000000
_TCP = 6
_NUMBERS = itertools.count()
# More than this waits nowhere: the packet is dropped, as by a router's queue.
_QUEUE_S = 0.4


@dataclass
class SlowLink:
    """A line that is up. here, there: its addresses on this machine and in the namespace. carried: bytes of IP packets, both ways.

    port: the only TCP port of this machine that it leads to, if set. Other packets are lost, as behind a firewall.
    """

    here: str
    there: str
    rate_bit_s: float
    delay_s: float
    port: int | None = None
    carried: int = 0
    dropped: int = 0
    _ends: list[int] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def carry(self) -> None:
        """Carry packets until `_stop`: each waits for those before it at the rate, and then for the delay."""
        queues: list[deque[tuple[float, bytes]]] = [deque(), deque()]
        free = [0.0, 0.0]
        while not self._stop.is_set():
            due = min((queue[0][0] for queue in queues if queue), default=time.monotonic() + 0.2)
            ready, _, _ = select.select(self._ends, [], [], max(0.0, due - time.monotonic()))
            for way, end in enumerate(self._ends):
                if end in ready:
                    self._take(os.read(end, 65536), queues[way], free, way)
            for way, queue in enumerate(queues):
                while queue and queue[0][0] <= time.monotonic():
                    os.write(self._ends[1 - way], queue.popleft()[1])

    def _take(self, packet: bytes, queue: deque[tuple[float, bytes]], free: list[float], way: int) -> None:
        if self.port is not None and _port_here(packet, way) != self.port:
            return
        now = time.monotonic()
        begins = max(now, free[way])
        if begins - now > _QUEUE_S:
            self.dropped += 1
            return
        free[way] = begins + len(packet) * 8 / self.rate_bit_s
        queue.append((free[way] + self.delay_s, packet))
        self.carried += len(packet)


def _port_here(packet: bytes, way: int) -> int | None:
    """The TCP port of this machine that an IPv4 packet comes from (way 0) or goes to (way 1)."""
    if packet[0] >> 4 != 4 or packet[9] != _TCP:
        return None
    ports: tuple[int, int] = struct.unpack_from("!HH", packet, (packet[0] & 15) * 4)
    return ports[way]


@contextmanager
def slow_link(inside: int, *, rate_bit_s: float, delay_s: float) -> Iterator[SlowLink]:
    """A line between this machine and the network namespace of a process. delay_s: one way. Needs root."""
    # 198.18.0.0/15 is for measurements (RFC 2544). Lines of several processes may stand side by side.
    number, slot = next(_NUMBERS), (os.getpid() * 4) % (1 << 14)
    first = int(ipaddress.IPv4Address("198.18.0.0")) + (slot + number % 4) * 4
    here, there = str(ipaddress.IPv4Address(first + 1)), str(ipaddress.IPv4Address(first + 2))
    link = SlowLink(here=here, there=there, rate_bit_s=rate_bit_s, delay_s=delay_s)
    own, other = f"kit{os.getpid()}l{number}", "line0"
    ip = shell.require("ip", hint="apt-get install iproute2")
    carrier = threading.Thread(target=link.carry, daemon=True)
    try:
        link._ends.append(_device(own))
        link._ends.append(_inside(inside, other))
        for enter, address, peer, name in (
            ([], link.here, link.there, own),
            (["nsenter", f"--net=/proc/{inside}/ns/net", "--"], link.there, link.here, other),
        ):
            shell.run([*enter, ip, "address", "add", address, "peer", peer, "dev", name])
            shell.run([*enter, ip, "link", "set", name, "up", "txqueuelen", "1000"])
        carrier.start()
        yield link
    finally:
        link._stop.set()
        if carrier.ident is not None:
            carrier.join()  # it may not read a descriptor that is another file's by then
        for end in link._ends:
            os.close(end)  # the device goes with it


def _device(name: str) -> int:
    try:
        end = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _FLAGS))
    except OSError as error:
        raise SlurmError(f"no TUN device can be made: {error.strerror}", hint="run as root") from None
    return end


def _inside(pid: int, name: str) -> int:
    """A device in another network namespace. Only a thread of its own enters it, and ends there."""
    made: list[int | BaseException] = []

    def enter() -> None:
        try:
            space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            if ctypes.CDLL(None, use_errno=True).setns(space, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            os.close(space)
            made.append(_device(name))
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            made.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if isinstance(made[0], BaseException):
        raise made[0]
    return made[0]
